"""Tokenizers that treat the space before a text as those of well-known models do, with a tiny model for each."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

import mechheads as mh
from support.tiny import WORDS, make_config

KINDS = ("llama-2", "mistral", "phi-3", "appends-eos")
"""llama-2 puts a space before every piece of text; mistral before the first; phi-3 as llama-2, and its special tokens
swallow the white space after them; appends-eos ends every text with the end token. A character that none of them knows
falls apart into bytes."""
_TEMPLATES = {
    "phi-3": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
}
_TEMPLATE = (
    "<bos>{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def make_tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of one of ``KINDS``."""
    specials = ["<bos>", "<eos>", "<pad>", "<unk>"]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)  # pyright: ignore
    alphabet = [chr(c) for c in range(32, 127)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([WORDS] * 3 + [" A A A B B B I I I"], trainer)
    if kind in ("llama-2", "phi-3"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # pyright: ignore
        tokenizer.pre_tokenizer = None  # pyright: ignore
    content = json.loads(tokenizer.to_str())
    content["model"] |= {"byte_fallback": True}
    content["model"]["vocab"] |= {f"<0x{byte:02X}>": tokenizer.get_vocab_size() + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    if kind == "phi-3":
        roles = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
        tokenizer.add_special_tokens([AddedToken(role, special=True, rstrip=True, normalized=False) for role in roles])
    single = "<bos> $A <eos>" if kind == "appends-eos" else "<bos> $A"
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore
        single=single, special_tokens=[("<bos>", 0), ("<eos>", 1)]
    )
    return _in_transformers(tokenizer, _TEMPLATES.get(kind, _TEMPLATE))


def _in_transformers(tokenizer: tokenizers.Tokenizer, template: str | None) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=template,
        model_max_length=512,
    )


def build(kind: str, folder: Path) -> None:
    """Save a tiny random Llama with the tokenizer of a kind."""
    tokenizer = make_tokenizer(kind)
    config = make_config("llama", tokenizer)
    config.max_position_embeddings = 512
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0, 1.4 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class BesidePlain:
    """A model with its tokenizer, and what plain transformers gives for a text that is tokenised once."""

    def __init__(self, folder: Path) -> None:
        self.model = mh.load(folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.own = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def log_prob(self, ids: list[int], start: int) -> float:
        """The log-probability of the tokens from ``start`` on."""
        with torch.no_grad():
            each = self.own(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(each[i - 1, ids[i]]) for i in range(start, len(ids)))
