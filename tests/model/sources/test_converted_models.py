"""What is converted once and kept: by content, whole or not at all, by one process at a time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import mechheads as mh
from mechheads.model.sources import ModelSourceError, Pretrained, converted_models, load_pretrained
from mechheads.model.sources.converted_models import _smallest
from mechheads.model.sources.reading import count_stored, read
from support.tiny_gguf import write_gguf

Tiny = Callable[[str], Path]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("MECHHEADS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def original(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny("llama"), path)
    return path


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "tiny.gguf"))


def load(path: Path, **changes: Any) -> Pretrained:
    options: dict[str, Any] = {"revision": None, "dtype": torch.float32, "device": "cpu", "trust_remote_code": False}
    return load_pretrained(path, **(options | changes))


def folders(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.iterdir() if path.is_dir() and path.name != "hashes")


def test_a_gguf_file_is_converted_once(
    kept: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    direct, tokenizer = read(
        str(file.parent), file.parent, dtype=torch.float32, gguf_file=file.name, local_files_only=True, places={}
    )
    capfd.readouterr()
    load(file)
    said = capfd.readouterr()
    (name,) = folders(kept)
    assert f"mechheads: converting tiny.gguf to safetensors (once, to {kept / name}, up to" in said.err
    assert name.startswith("gguf-") and f"-transformers-{transformers.__version__}-" in name
    monkeypatch.setattr(converted_models, "convert", None)
    monkeypatch.setattr(converted_models, "GGUFReader", None)
    monkeypatch.setattr(converted_models, "file_sha256", None)  # an unchanged file is not even read
    again = load(file)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert again.name == str(file)
    stored, wanted = again.model.state_dict(), direct.state_dict()
    assert stored.keys() == wanted.keys()
    assert all(torch.equal(stored[name], wanted[name]) for name in wanted)
    text = "The capital of France is Paris, and 7 more."
    assert again.tokenizer(text).input_ids == tokenizer(text).input_ids
    assert not hasattr(again.model.config, "quantization_config")
    half = load(file, dtype=torch.bfloat16).model.state_dict()
    assert all(torch.equal(half[name], wanted[name].bfloat16()) for name in wanted)
    assert mh.load(file).n_heads == 4


def test_a_file_is_known_by_its_content(kept: Path, file: Path, tmp_path: Path) -> None:
    load(file)
    first = folders(kept)
    load(Path(shutil.copy(file, tmp_path / "other name.gguf")))
    assert folders(kept) == first
    data, before = bytearray(file.read_bytes()), file.stat()
    data[-3] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as old and as large as it was
    changed = load(file).model.state_dict()
    assert len(folders(kept)) == 2
    direct, _ = read(
        str(file.parent), file.parent, dtype=torch.float32, gguf_file=file.name, local_files_only=True, places={}
    )
    assert all(torch.equal(changed[name], value) for name, value in direct.state_dict().items())


@pytest.mark.parametrize(
    ("fault", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ModelSourceError, "No space left on device; free 0.0 GB"),
        (SafetensorError("I/O error: No space left"), ModelSourceError, "No space left; free 0.0 GB there, or set"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_conversion_that_fails_leaves_nothing(
    fault: BaseException, raised: type, message: str | None, kept: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(model: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(transformers.PreTrainedModel, "save_pretrained", stop)
        with pytest.raises(raised, match=message):
            load(file)
    assert folders(kept) == []
    assert load(file).model.config.num_hidden_layers == 3


def test_what_a_killed_process_left_is_removed(kept: Path, file: Path) -> None:
    load(file)
    (name,) = folders(kept)
    shutil.rmtree(kept / name)
    (kept / f"{name}.partial").mkdir()
    (kept / f"{name}.partial" / "half").write_text("x")
    load(file)
    assert folders(kept) == [name]


def test_a_full_disk_is_told_before_the_work(kept: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(converted_models.shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 10**6, 10**6))
    monkeypatch.setattr(converted_models, "convert", None)
    with pytest.raises(
        ModelSourceError, match=r"tiny\.gguf cannot be stored in .*: 0\.0 GB are free; free .* MECHHEADS"
    ):
        load(file)


def test_a_file_that_changes_while_it_is_converted_is_not_kept(
    kept: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = converted_models.convert

    def slowly(source: Path, folder: Path) -> Path:
        made = convert(source, folder)
        os.utime(source)
        return made

    monkeypatch.setattr(converted_models, "convert", slowly)
    with pytest.raises(ModelSourceError, match=r"tiny\.gguf' was changed while it was read; load it again"):
        load(file)
    assert folders(kept) == []


@pytest.mark.slow
def test_processes_that_start_at_once_convert_once(kept: Path, file: Path) -> None:
    code = "import sys, pathlib; from mechheads.model.sources import converted_models; "
    code += "print(converted_models.converted_folder(pathlib.Path(sys.argv[1])))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", code, file], env=environment, **pipes) for _ in range(2)]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert sum(err.count("converting tiny.gguf") for _, err in said) == 1
    assert {out.strip() for out, _ in said} == {str(kept / folders(kept)[0])}


def test_numbers_are_kept_in_the_smallest_type_that_holds_them() -> None:
    values = torch.tensor([1.0, -2.5, 0.0, 3e38])
    for tensor, dtype in [
        (values.bfloat16().float(), torch.bfloat16),
        (torch.tensor([1.0, 1 + 2**-10]), torch.float16),
        (torch.tensor([1.0, 1 + 2**-11]), torch.float32),
        (torch.tensor([1e-7, 1.0]), torch.float32),
        (torch.tensor([float("nan")]), torch.float32),
    ]:
        assert _smallest(tensor).dtype == dtype
        assert torch.equal(_smallest(tensor).float().nan_to_num(7), tensor.nan_to_num(7))


# --- sizes that nothing stands behind ----------------------------------------------------------------------


def changed_copy(folder: Path, at: Path, **config: Any) -> Path:
    shutil.copytree(folder, at)
    about = json.loads((at / "config.json").read_text())
    (at / "config.json").write_text(json.dumps(about | config))
    return at


@pytest.mark.parametrize(
    "sizes",
    [{"hidden_size": 10**7}, {"num_hidden_layers": 10**9}, {"intermediate_size": 10**9}, {"vocab_size": 10**9}],
    ids=str,
)
def test_sizes_far_beyond_the_files_are_refused_early(sizes: dict[str, int], tiny: Tiny, tmp_path: Path) -> None:
    folder = changed_copy(tiny("llama"), tmp_path / "absurd", **sizes)
    numbers = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    with pytest.raises(ModelSourceError, match=rf"config asks for at least .* numbers.* its files hold {numbers:,}\."):
        load(folder)


def test_sizes_of_shards_and_pickles_count_too(tiny: Tiny, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    shutil.copytree(tiny("llama"), tmp_path / "shards", ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert load(tmp_path / "shards").model.config.hidden_size == 32
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny("llama"), pickled)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    assert load(pickled).model.config.hidden_size == 32
    for folder in (tmp_path / "shards", pickled):
        with pytest.raises(ModelSourceError, match="its config asks for"):
            load(changed_copy(folder, tmp_path / f"absurd {folder.name}", hidden_size=10**7))


def test_a_gguf_file_without_weights_is_refused_early(kept: Path, tmp_path: Path, tiny: Tiny) -> None:
    write_gguf(tiny("llama"), tmp_path / "large.gguf", embedding_length=2**20)
    with pytest.raises(ModelSourceError, match=r"large\.gguf': its config asks for at least .* numbers"):
        load(tmp_path / "large.gguf")
    assert folders(kept) == []


@pytest.mark.parametrize("weights", [{}, {"weight_map": 3}, {"weight_map": {"a": 3}}, []])
def test_an_index_without_places_is_named(weights: Any, tiny: Tiny, tmp_path: Path) -> None:
    folder = changed_copy(tiny("gpt2"), tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(weights))
    with pytest.raises(ModelSourceError, match=r"model\.safetensors\.index\.json has no weight_map"):
        load(folder)


def test_a_config_that_is_nested_too_deeply_is_named(tiny: Tiny, tmp_path: Path) -> None:
    folder = changed_copy(tiny("gpt2"), tmp_path / "m")
    (folder / "config.json").write_text("[" * 100_000)
    for how in (mh.load, partial(mh.load, max_memory="least")):
        with pytest.raises(
            ModelSourceError, match=r"config\.json cannot be read: its lists or objects are nested too deeply"
        ):
            how(folder)


def test_packed_weights_are_not_held_against_the_config(tmp_path: Path) -> None:
    save_file({"packed": torch.zeros(1000, dtype=torch.int32)}, tmp_path / "model.safetensors")
    assert count_stored(tmp_path) >= 32_000
    save_file({"plain": torch.zeros(10, 7)}, tmp_path / "model.safetensors")
    assert count_stored(tmp_path) == 70
