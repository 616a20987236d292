"""What users of TransformerLens, nnsight and pyvene type, and what to type here: the one table of both."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

PAGE = "Coming from TransformerLens, nnsight, pyvene"


class Habit(NamedTuple):
    """What is typed in a tool and here; ``names`` are not here, each after the module or object where it is sought."""

    tool: str
    theirs: str
    here: str
    names: str = ""


_LENS, _NNSIGHT, _PYVENE = "TransformerLens", "nnsight", "pyvene"

HABITS = (
    Habit(
        _LENS,
        "HookedTransformer.from_pretrained(name)",
        "model = mh.load(name)",
        "mh.HookedTransformer mh.TransformerBridge mh.from_pretrained model.from_pretrained",
    ),
    Habit(_LENS, "logits, cache = model.run_with_cache(prompts)", "run = model.cache(prompts)", "*.run_with_cache"),
    Habit(_LENS, 'cache["pattern", 2]', "run.pattern.layer(2)", "run.cache_dict"),
    Habit(_LENS, 'cache["blocks.2.attn.hook_z"][:, :, 1]', 'run.z["L2H1"]'),
    Habit(
        _LENS,
        "cache.stack_head_results()",
        "run.result.stacked()",
        "run.stack_head_results run.compute_head_results run.stack_activation",
    ),
    Habit(_LENS, "model.to_tokens(prompts)", "mh.Prompts(prompts).tokens(model).ids", "model.to_tokens"),
    Habit(
        _LENS,
        "model.to_str_tokens(prompts)",
        "mh.Prompts(prompts).tokens(model).strings",
        "model.to_str_tokens run.to_str_tokens",
    ),
    Habit(_LENS, "model.to_string(ids)", "model.tokenizer.decode(ids)", "model.to_string model.to_single_str_token"),
    Habit(_LENS, 'model.to_single_token(" Paris")', 'model.tokenizer(" Paris")["input_ids"]', "model.to_single_token"),
    Habit(_LENS, "model(tokens)", "model.cache(prompts).logits", "model.forward model.loss_fn"),
    Habit(_LENS, "model.cfg.n_heads", "model.n_heads", "model.cfg"),
    Habit(_LENS, "model.blocks[2].attn.W_O", "model.W_O[2]", "model.blocks model.hook_dict model.mod_dict"),
    Habit(
        _LENS,
        "model.run_with_hooks(tokens, fwd_hooks=[...])",
        "mh.sweep(model, prompts, intervention=lambda z, context: 0.5 * z)",
        "*.run_with_hooks model.add_hook model.add_perma_hook model.hooks model.reset_hooks",
    ),
    Habit(_LENS, "model.generate(text, max_new_tokens=3)", "mh.generate(model, prompts, 3)", "model.generate"),
    *(
        Habit(
            _LENS,
            f"get_act_patch_attn_head_{what}_by_pos(model, tokens, cache, metric)",
            f'mh.activation_patch(model, pairs, site="{site}", positions="each")',
            f"mh*.get_act_patch_attn_head_{what}_by_*",
        )
        for what, site in (("out", "z"), ("v", "v"))
    ),
    *(
        Habit(
            _LENS,
            f"get_act_patch_attn_head_{what}_all_pos(model, tokens, cache, metric)",
            f'mh.activation_patch(model, pairs, site="{site}")',
            f"mh*.get_act_patch_attn_head_{what}_*",
        )
        for what, site in (("out", "z"), ("q", "q"), ("k", "k"), ("v", "v"), ("pattern", "pattern"))
    ),
    Habit(
        _LENS,
        "generic_activation_patch(...)",
        "mh.activation_patch(model, pairs)",
        "mh*.generic_activation_patch mh*.activation_patching mh*.get_act_patch_* model.activation_patch",
    ),
    Habit(
        _LENS,
        "path patching, as in its demos",
        'mh.path_patch(model, pairs, receivers=["L2H1.q"])',
        "mh*.path_patching",
    ),
    Habit(
        _LENS,
        "attribution patching, as in its demos",
        "mh.patching.attribution_patch(model, pairs)",
        "mh*.attribution_patching mh.attribution_patch",
    ),
    Habit(
        _LENS,
        "cache.logit_attrs(...)",
        "mh.behaviour.logit_attribution(model, pairs)",
        "run.logit_attrs run.decompose_resid run.accumulated_resid run.apply_ln_to_stack "
        "mh.direct_logit_attribution mh.logit_attribution",
    ),
    Habit(
        _LENS,
        'detect_head(model, text, "induction_head")',
        "mh.profile_heads(model, texts, window=16)",
        "mh.detect_head mh.head_detector",
    ),
    Habit(_NNSIGHT, "LanguageModel(name)", "model = mh.load(name)", "mh.LanguageModel mh.NNsight mh.nnsight"),
    Habit(
        _NNSIGHT,
        "with model.trace(prompts): z = model.transformer.h[2].attn.c_proj.input.save()",
        "model.cache(prompts).z.layer(2)",
        "model.trace model.session model.scan model.transformer model.layers model.output model.input "
        "model.lm_head run.output run.save",
    ),
    Habit(_NNSIGHT, "model.lm_head.output.save()", "model.cache(prompts).logits"),
    Habit(
        _NNSIGHT,
        "with model.trace(prompts): model.transformer.h[2].attn.c_proj.input[..., 64:128] = 0",
        'mh.ablate(model, prompts, intervention="zero", heads="L2H1")',
        "model.edit model.invoke",
    ),
    Habit(
        _PYVENE,
        "IntervenableModel(config, model)(base, sources)",
        'mh.sweep(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted")',
        "mh.IntervenableModel mh.IntervenableConfig mh.RepresentationConfig mh.build_intervenable_model",
    ),
    Habit(_PYVENE, "VanillaIntervention", "mh.Patch()", "mh.VanillaIntervention mh.InterchangeIntervention"),
    Habit(_PYVENE, "ZeroIntervention", "mh.Zero()", "mh.ZeroIntervention"),
    Habit(_PYVENE, "CollectIntervention", "model.cache(prompts).z", "mh.CollectIntervention"),
    Habit(
        _PYVENE,
        "AdditionIntervention, NoiseIntervention, or one of your own",
        "mh.sweep(model, prompts, intervention=lambda z, context: z + 1)",
        "mh.*Intervention",
    ),
    Habit(
        _PYVENE,
        'unit_locations={"sources->base": 4}',
        'mh.activation_patch(model, pairs, positions=["last"])',
        "mh.unit_locations model.unit_locations",
    ),
)
"""Both spellings, in the order in which the docs show them; the first that has a name counts."""

_SITE = re.compile(r"(?:blocks\.)?(?P<layer>\d+)?\.?(?:attn\.)?(?:hook_)?(?P<site>z|q|k|v|pattern|result)")


def advice(where: str, name: str) -> str:
    """What to type in place of a name that is not there, as the end of an error message; empty if it is not known."""
    for habit in HABITS:
        if any(fnmatchcase(f"{where}.{name}", known) for known in habit.names.split()):
            return f"; coming from {habit.tool}, write {habit.here}"
    return ""


def item_advice(item: object) -> str:
    """What to type in place of an item of a cache of TransformerLens."""
    parts = item if isinstance(item, tuple) else (item,)
    shown = ", ".join(f'"{part}"' if isinstance(part, str) else repr(part) for part in parts)
    found = _SITE.fullmatch(str(parts[0]))
    layer = parts[1] if len(parts) > 1 else found and found["layer"]
    if found is None:
        return (
            f"run[{shown}]: a run has no items; it keeps what heads do: run.z, run.pattern and run.result, and run.q, "
            "run.k and run.v with sites=; for anything else, model.model is the TransformerLens model"
        )
    if layer is None:
        return f'run[{shown}] is run.{found["site"]} here; index it by a head, such as run.{found["site"]}["L0H0"]'
    return f"run[{shown}] is run.{found['site']}.layer({layer}) here, [prompt, head, ...]"
