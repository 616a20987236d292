"""What is converted once and kept: whole or not at all, by one process at a time."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import SafetensorError

import mechheads as mh
from mechheads.model.sources import ModelSourceError, gguf_files
from mechheads.model.sources.reading import read
from support.tiny_gguf import load


@pytest.fixture
def file(tiny_gguf: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_gguf, tmp_path / "tiny.gguf"))


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_a_gguf_file_is_converted_once(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    direct, tokenizer = read(str(file.parent), dtype=torch.float32, gguf_file=file.name, local_files_only=True)
    capfd.readouterr()
    load(file)
    said = capfd.readouterr()
    (name,) = folders(cache)
    assert f"mechheads: converting tiny.gguf to safetensors (once, to {cache / name}, up to" in said.err
    assert name.startswith("gguf-") and f"-transformers-{transformers.__version__}-" in name
    monkeypatch.setattr(gguf_files, "convert", None)
    monkeypatch.setattr(gguf_files, "GGUFReader", None)
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


def test_a_file_that_was_written_again_is_converted_again(cache: Path, file: Path) -> None:
    load(file)
    before, metadata = file.read_bytes(), file.stat()
    data = bytearray(before)
    data[-3] ^= 1
    for content, written in ((bytes(data), metadata.st_mtime_ns), (before, metadata.st_mtime_ns + 1)):
        count = len(folders(cache))
        file.write_bytes(content)
        os.utime(file, ns=(metadata.st_atime_ns, written))
        changed = load(file).model.state_dict()
        assert len(folders(cache)) == count + 1
        direct, _ = read(str(file.parent), dtype=torch.float32, gguf_file=file.name, local_files_only=True)
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
    fault: BaseException, raised: type, message: str | None, cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(model: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(transformers.PreTrainedModel, "save_pretrained", stop)
        with pytest.raises(raised, match=message):
            load(file)
    assert folders(cache) == []
    assert load(file).model.config.num_hidden_layers == 3


def test_what_a_killed_process_left_is_removed(cache: Path, file: Path) -> None:
    load(file)
    (name,) = folders(cache)
    shutil.rmtree(cache / name)
    (cache / f"{name}.partial").mkdir()
    (cache / f"{name}.partial" / "half").write_text("x")
    load(file)
    assert folders(cache) == [name]


@pytest.mark.slow
def test_processes_that_start_at_once_convert_once(cache: Path, file: Path) -> None:
    code = "import sys, pathlib; from mechheads.model.sources import gguf_files; "
    code += "print(gguf_files.converted_folder(pathlib.Path(sys.argv[1])))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", code, file], env=environment, **pipes) for _ in range(2)]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert sum(err.count("converting tiny.gguf") for _, err in said) == 1
    assert {out.strip() for out, _ in said} == {str(cache / folders(cache)[0])}
