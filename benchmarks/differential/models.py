"""What of a case stands in files: a tiny model, its tokenizer, its chat template, and what is special about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from support import tiny_families
from support.tiny_families import FAMILIES, REFUSED, VOCABULARY, WORDS

_EXACT = (name for name in FAMILIES if name not in REFUSED | {"llama", "gpt2"})
ARCHITECTURES = ("llama", "gpt2", *_EXACT, "gemma3-bidirectional")
"""Those that are exact, and one that is not causal."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES: dict[str, str | None] = {
    "none": None,
    "chatml": _CHATML,
    "opens a thought": _CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"),
    "reads the date": "{{ strftime_now('%d %b %Y') }}\n" + _CHATML,
    "drops the system": _CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}"),
    "refuses a system": (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + _CHATML
    ),
    "writes the beginning": "{{ bos_token }}" + _CHATML,
    "never opens an answer": _CHATML.split("{% if add_generation_prompt %}")[0],
    "trims": _CHATML.replace("{{ m['content'] }}", "{{ m['content'] | trim }}"),
    "ends with the end": _CHATML.split("{% if add_generation_prompt %}")[0] + "{{ eos_token }}",
}

SPECIALS = ["<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>"]
TOKENIZERS = (
    "bytes",
    "bytes, beginning",
    "bytes, pad is end",
    "bytes, all is end",
    "bytes, no pad",
    "bytes, left",
    "bytes, beginning, left",
    "bytes, appends the end",
    "llama-2",
    "mistral",
    "wordpiece",
    "unigram",
)


def make_tokenizer(kind: str, template: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of at most ``VOCABULARY`` tokens."""
    made, begins, ends = _BUILD[kind.split(",")[0]](), "beginning" in kind or not kind.startswith("bytes"), False
    ends = "appends" in kind or kind == "wordpiece"
    if begins or ends:
        single = f"{'<bos> ' * begins}$A{' <eos>' * ends}"
        specials = [(token, made.token_to_id(token)) for token in ("<bos>", "<eos>")]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)  # pyright: ignore
    all_is_end = "all is end" in kind
    pad = None if "no pad" in kind else "<eos>" if "is end" in kind else "<pad>"
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<eos>" if all_is_end else "<bos>",
        eos_token="<eos>",
        pad_token=pad,
        unk_token=None if kind.startswith("bytes") else "<unk>",
        additional_special_tokens=SPECIALS[3:],
        padding_side="left" if "left" in kind else "right",
        chat_template=TEMPLATES[template],
        model_max_length=64,
    )


def _bytes() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    made.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([f" {word}" for word in WORDS], trainer)
    return made


def _metaspace(prepend: str) -> Callable[[], Tokenizer]:
    def build() -> Tokenizer:
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore
        steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        made.decoder = decoders.Sequence(steps)  # pyright: ignore
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[*SPECIALS, "<unk>"],
            initial_alphabet=[chr(c) for c in range(32, 127)] + ["▁", "\n"],
            show_progress=False,
        )
        made.train_from_iterator([" " + " ".join(WORDS)] * 3, trainer)
        if prepend == "normalizer":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # pyright: ignore
            made.pre_tokenizer = None  # pyright: ignore
        return made

    return build


def _wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    made.decoder = decoders.WordPiece()  # pyright: ignore
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=[*SPECIALS, "<unk>"], show_progress=False, initial_alphabet=list("abcxyz")
    )
    made.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    return made


def _unigram() -> Tokenizer:
    scores = [(f"▁{word}", -5.0 - i / 100) for i, word in enumerate(WORDS)]
    letters = [(chr(c), -12.0) for c in range(33, 127)] + [("▁", -11.0), ("\n", -11.0)]
    specials = [(token, 0.0) for token in [*SPECIALS, "<unk>"]]
    made = Tokenizer(models.Unigram([*specials, *scores, *letters], len(SPECIALS)))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # pyright: ignore
    made.decoder = decoders.Metaspace(prepend_scheme="always")  # pyright: ignore
    made.add_special_tokens(SPECIALS)
    return made


_BUILD: dict[str, Callable[[], Tokenizer]] = {
    "bytes": _bytes,
    "llama-2": _metaspace("normalizer"),
    "mistral": _metaspace("first"),
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}

Change = Callable[[Path], None]
FILES: dict[str, tuple[Change | None, str]] = {}
"""What is special about a folder, and whether its numbers are those of transformers ("equal"), it must be refused
("refused"), or either ("either")."""


def _file(name: str, must: str) -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        FILES[name] = (change, must)
        return change

    return keep


FILES["plain"] = (None, "equal")


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def _matrix(tensors: dict[str, torch.Tensor], layer: int = 1) -> str:
    """The name of a weight of the given layer that is no norm and no part of the attention's q, k and v."""
    names = [name for name in sorted(tensors) if f".{layer}." in name and tensors[name].ndim == 2]
    return next((name for name in names if "o_proj" in name or "c_proj" in name or "dense" in name), names[0])


@_file("sharded", "equal")
def _sharded(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="30KB")


@_file("no cache by default", "equal")
def _no_cache(folder: Path) -> None:
    _config(folder, use_cache=False)


@_file("outputs as tuples", "either")
def _tuples(folder: Path) -> None:
    _config(folder, return_dict=False)


@_file("outputs hidden states and attentions", "equal")
def _outputs(folder: Path) -> None:
    _config(folder, output_hidden_states=True, output_attentions=True)


@_file("stored in half precision", "equal")
def _stored_in_half(folder: Path) -> None:
    _rewrite(folder, lambda tensors: tensors.update({name: each.bfloat16() for name, each in tensors.items()}))


@_file("config names another dtype", "equal")
def _other_dtype(folder: Path) -> None:
    _config(folder, dtype="bfloat16")


@_file("rotation buffer in the file", "either")
def _buffer(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    _rewrite(folder, change)


@_file("scale beside a weight", "refused")
def _scale(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{_matrix(tensors)}_scale"] = torch.tensor(0.5)

    _rewrite(folder, change)


@_file("bias without a place", "refused")
def _bias(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = _matrix(tensors)
        tensors[name.replace(".weight", ".lora_bias")] = torch.ones(tensors[name].shape[0])

    _rewrite(folder, change)


@_file("norm without a place", "refused")
def _norm(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = _matrix(tensors)
        tensors[name.replace(".weight", "_norm.weight")] = torch.ones(tensors[name].shape[0])

    _rewrite(folder, change)


@_file("weight is missing", "refused")
def _missing(folder: Path) -> None:
    _rewrite(folder, lambda tensors: tensors.pop(_matrix(tensors)))


@_file("norm is missing", "refused")
def _norm_missing(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        norms = [name for name in sorted(tensors) if tensors[name].ndim == 1 and name.endswith("weight")]
        del tensors[norms[0] if norms else _matrix(tensors)]

    _rewrite(folder, change)


@_file("weight has another shape", "refused")
def _shape(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = _matrix(tensors)
        tensors[name] = torch.cat([tensors[name], tensors[name]])

    _rewrite(folder, change)


@_file("names have another beginning", "refused")
def _prefix(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        every = dict(tensors)
        tensors.clear()
        tensors.update({f"policy.module.{name}": each for name, each in every.items()})

    _rewrite(folder, change)


@_file("layer too many in the file", "refused")
def _layer_too_many(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".2." in name]:
            tensors[name.replace(".2.", ".7.")] = tensors[name].clone()

    _rewrite(folder, change)


@_file("quantised in an unknown way", "refused")
def _quantised(folder: Path) -> None:
    _config(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})


@_file("quantised by nobody", "refused")
def _quantised_by_nobody(folder: Path) -> None:
    _config(folder, quantization_config={"quant_algo": "FP8", "kv_cache_quant_algo": None})


@_file("codes as weights", "refused")
def _codes(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = _matrix(tensors)
        tensors[name] = (tensors[name] * 40).round().clamp(-127, 127).to(torch.int8)

    _rewrite(folder, change)


@_file("head beside tied embeddings", "either")
def _head(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        embedding = next(each for name, each in tensors.items() if len(each) == VOCABULARY and "lm_head" not in name)
        tensors["lm_head.weight"] = -embedding

    _rewrite(folder, change)
    if "tie_word_embeddings" in json.loads((folder / "config.json").read_text("utf-8")):
        _config(folder, tie_word_embeddings=True)


@_file("not causal by its config", "either")
def _not_causal(folder: Path) -> None:
    _config(folder, is_causal=False, is_decoder=False, use_bidirectional_attention=True)


@_file("dropout in its config", "equal")
def _dropout(folder: Path) -> None:
    _config(folder, attention_dropout=0.3, attn_pdrop=0.3, resid_pdrop=0.3, hidden_dropout=0.3)


@_file("no generation config", "equal")
def _no_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)


def _adapter(folder: Path, **settings: Any) -> None:
    import peft

    base = folder.with_name(f"{folder.name} base")
    shutil.rmtree(base, ignore_errors=True)
    folder.rename(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, trust_remote_code=False)
    target = _matrix(dict(model.named_parameters())).rsplit(".", 2)[-2]
    fan = type(model.get_submodule(_matrix(dict(model.named_parameters())).rsplit(".", 1)[0])).__name__ == "Conv1D"
    config = peft.LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=settings.pop("target_modules", [target]),
        fan_in_fan_out=fan,
        task_type="CAUSAL_LM",
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.data.normal_(0.0, 0.3 if parameter.ndim > 1 or "bias" in name else 1.0)
    adapted.save_pretrained(str(folder))
    make = transformers.AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    make.save_pretrained(folder)


@_file("adapter", "either")
def _plain_adapter(folder: Path) -> None:
    _adapter(folder)


@_file("adapter of the embedding", "either")
def _embedding_adapter(folder: Path) -> None:
    names = ("embed_tokens", "wte", "embed_in", "word_embeddings")
    stored = " ".join(load_file(folder / "model.safetensors"))
    _adapter(folder, target_modules=[next(name for name in names if name in stored)])


@_file("adapter with biases", "either")
def _adapter_with_biases(folder: Path) -> None:
    _adapter(folder, bias="all")


@_file("adapter with a head", "either")
def _adapter_with_head(folder: Path) -> None:
    _adapter(folder, modules_to_save=["lm_head"])


@_file("adapter, rank-stabilised, DoRA", "either")
def _dora(folder: Path) -> None:
    _adapter(folder, use_dora=True, use_rslora=True)


class Shelf:
    """Folders of models in a temporary folder; each is made when it is first asked for.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[tuple[str, ...], Path | None] = {}
        self._loaded: dict[Any, Any] = {}
        self._base = cache(self._build)
        self._tokenizer = cache(make_tokenizer)

    def folder(self, architecture: str, tokenizer: str, template: str, file: str) -> Path | None:
        """The folder of a model; None if the file of this architecture cannot be so."""
        key = (architecture, tokenizer, template, file)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def loaded(self, key: Any, load: Callable[[], Any]) -> Any:
        """What was loaded for a key before, if it was not long ago."""
        if key not in self._loaded:
            while len(self._loaded) >= 24:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[key] = load()
        return self._loaded[key]

    def forget(self) -> None:
        """Load every model anew from now on."""
        self._loaded.clear()

    def _make(self, architecture: str, tokenizer: str, template: str, file: str) -> Path | None:
        folder = self.root / f"{len(self._made)}" / "model"
        shutil.copytree(self._base(architecture), folder)
        self._tokenizer(tokenizer, template).save_pretrained(folder)
        change, _ = FILES[file]
        if change is not None:
            try:
                change(folder)
            except Exception:
                return None
        return folder

    def _build(self, architecture: str) -> Path:
        folder = self.root / "base" / architecture
        name = architecture.removesuffix("-bidirectional")
        tiny_families.build(name, folder)
        if name != architecture:
            _config(folder, use_bidirectional_attention=True)
        return folder


def is_routed(architecture: str) -> bool:
    """Whether rounding may choose another expert, so that numbers in half precision cannot be compared."""
    return "experts" in FAMILIES[architecture.removesuffix("-bidirectional")].description
