"""What to type in place of names of TransformerLens, nnsight and pyvene; docs/coming_from.md has both spellings."""

from __future__ import annotations

from fnmatch import fnmatchcase

PATCHING = "mh.activation_patch(model, pairs"

NAMES = {
    "mh.HookedTransformer mh.TransformerBridge *.from_pretrained": "mh.load(name)",
    "mh.LanguageModel mh.NNsight mh.nnsight": "mh.load(name)",
    "*.run_with_cache": "run = model.cache(prompts)",
    "model.trace model.session model.scan model.transformer model.layers": "model.cache(prompts).z.layer(2)",
    "model.forward model.loss_fn model.lm_head model.input model.output": "model.cache(prompts).logits",
    "run.output run.save": "model.cache(prompts).logits",
    "run.cache_dict": "run.pattern.layer(2)",
    "run.stack_head_results run.compute_head_results run.stack_activation": "run.result.stacked()",
    "model.to_tokens": "mh.Prompts(prompts).tokens(model).ids",
    "*.to_str_tokens": "mh.Prompts(prompts).tokens(model).strings",
    "model.to_string model.to_single_str_token": "model.tokenizer.decode(ids)",
    "model.to_single_token": 'model.tokenizer(" Paris")["input_ids"]',
    "model.cfg": "model.n_heads",
    "model.blocks model.hook_dict model.mod_dict": "model.W_O[2]",
    "*.run_with_hooks model.add_hook model.add_perma_hook model.hooks model.reset_hooks": (
        "mh.sweep(model, prompts, intervention=lambda z, context: 0.5 * z)"
    ),
    "model.generate": "mh.generate(model, prompts, 3)",
    "mh*.get_act_patch_attn_head_v_by_*": f'{PATCHING}, site="v", positions="each")',
    "mh*.get_act_patch_attn_head_*_by_*": f'{PATCHING}, site="z", positions="each")',
    **{f"mh*.get_act_patch_attn_head_{site}_*": f'{PATCHING}, site="{site}")' for site in ("q", "k", "v", "pattern")},
    "mh*.get_act_patch_attn_head_out_*": f'{PATCHING}, site="z")',
    "mh*.get_act_patch_* mh*.generic_activation_patch mh*.activation_patching model.activation_patch": f"{PATCHING})",
    "mh*.path_patching": 'mh.path_patch(model, pairs, receivers=["L2H1.q"])',
    "mh*.attribution_patching mh.attribution_patch": "mh.patching.attribution_patch(model, pairs)",
    "run.logit_attrs run.decompose_resid run.accumulated_resid run.apply_ln_to_stack": (
        "mh.behaviour.logit_attribution(model, pairs)"
    ),
    "mh.direct_logit_attribution mh.logit_attribution": "mh.behaviour.logit_attribution(model, pairs)",
    "mh.detect_head mh.head_detector": "mh.profile_heads(model, texts, window=16)",
    "model.edit model.invoke": 'mh.ablate(model, prompts, intervention="zero", heads="L2H1")',
    "mh.IntervenableModel mh.IntervenableConfig mh.RepresentationConfig mh.build_intervenable_model": (
        'mh.sweep(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted")'
    ),
    "mh.VanillaIntervention mh.InterchangeIntervention": "mh.Patch()",
    "mh.ZeroIntervention": "mh.Zero()",
    "mh.CollectIntervention": "model.cache(prompts).z",
    "mh.*Intervention": "mh.sweep(model, prompts, intervention=lambda z, context: z + 1)",
    "*.unit_locations": f'{PATCHING}, positions=["last"])',
}
"""Names, each after its module or object, and what to type instead; the first match counts."""


def advice(where: str, name: str) -> str:
    """What to type in place of a missing name, as the end of an error message; empty if there is no advice."""
    for names, here in NAMES.items():
        if any(fnmatchcase(f"{where}.{name}", known) for known in names.split()):
            return f"; here, write {here}"
    return ""
