"""What many tests share: the default model, and tiny random models in local folders."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share the machine; read when torch is first imported

import mechheads  # and no torch, which the process that only hands tests to the workers does not need

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("any machine")

LONG = (
    "test_notebooks",
    "test_docs",
    "test_teaching",
    "test_interrupts",
    "test_planted_labels",
    "test_default_model",
    "test_every_analysis",
    "test_proof",
    "test_resuming",
    "test_interventions",
    "test_figures",
    "test_text_and_ids",
    "test_sweep",
    "test_families",
    "test_generate",
    "test_safety",
    "test_check",
)
"""The files that take longest, by time, so that two workers end together."""


@pytest.fixture(scope="session", autouse=True)
def without_progress() -> Iterator[None]:
    """No progress bars, except where a test asks for them."""
    with mechheads.settings(progress=False):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests in ``tests/slow`` are marked so, what takes long goes first; what cannot run here is left out.

    A file's tests share a worker (``--dist loadfile``), and so its models.
    """
    elsewhere = [item for item in items if not all(mark.args[0] for mark in item.iter_markers("needs"))]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
    for item in items:
        if item.get_closest_marker("release"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
        elif item.path.parent.name == "slow":
            item.add_marker("slow")
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collecting the tests imports everything. The garbage collector would find nothing meanwhile, nor in it later.

    Later it looks through all that is alive a fifth as often as usual: this is much, and little of it is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(700, 10, 50)


@pytest.fixture(scope="session")
def model() -> mechheads.Model:
    """The default model. Leave it as it is: every test that asks for it gets the same one."""
    return mechheads.load()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny("gpt2")``, or "llama", "neox", "gemma": a folder with that random model and its tokenizer."""
    from support.tiny import build

    return _made_once(build, tmp_path_factory.mktemp("tiny"))


def _made_once(build: Callable[[str, Path], object], within: Path) -> Callable[[str], Path]:
    """A function that gives the folder of a model by its name, and builds it the first time."""

    @cache
    def folder(name: str) -> Path:
        build(name, within / name)
        return within / name

    return folder


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``family("mistral")``, or another of ``FAMILIES``: a folder with a tiny random model of that architecture."""
    from support.tiny_families import build

    return _made_once(build, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def loaded(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], mechheads.Model]]:
    """``loaded("gpt2")``: a model from that folder, one for all. Leave it as it is: it is compared in the end."""
    before: dict[str, object] = {}

    def state(model: mechheads.Model) -> object:
        tensors = [*model.model.named_parameters(), *model.model.named_buffers()]
        hooks = [name for name, point in model.model.hook_dict.items() if point.fwd_hooks or point.bwd_hooks]
        sums = {name: tensor.detach().double().sum().item() for name, tensor in tensors}
        return sums, hooks, model.model.training, vars(model.tokenizer).get("chat_template")

    @cache
    def model(name: str) -> mechheads.Model:
        made = mechheads.load(tiny(name))
        before[name] = state(made)
        return made

    yield model
    changed = [name for name, there in before.items() if state(model(name)) != there]
    assert not changed, f"a test changed these models, which others use too: {changed}"


@pytest.fixture(scope="session")
def llama(loaded: Callable[[str], mechheads.Model]) -> mechheads.Model:
    """The tiny llama that most tests use."""
    return loaded("llama")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``small`` is each model of the test's own ``on_two``, or of its file's ``ARCHITECTURES``, or the tiny llama."""
    own = any(mark.args[0] == "small" for mark in metafunc.definition.iter_markers("parametrize"))
    if not own and "small" in metafunc.fixturenames and (names := getattr(metafunc.module, "ARCHITECTURES", None)):
        metafunc.parametrize("small", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest, loaded: Callable[[str], mechheads.Model]) -> mechheads.Model:
    """A tiny model from a local folder; see ``pytest_generate_tests``."""
    return loaded(getattr(request, "param", "llama"))


@pytest.fixture
def brief_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are short where refusals are counted or begun: for tests to which that does not matter."""
    monkeypatch.setattr("mechheads.safety.openings.TOKENS", 4)
    monkeypatch.setattr("mechheads.safety.openings.ANSWER_TOKENS", 8)


@pytest.fixture
def terminal() -> Iterator[None]:
    """Ctrl-C as a terminal leaves it; a process that was started in the background ignores it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``others("llama-2")``, or another of ``KINDS``: a folder with a tiny random model that has such a tokenizer."""
    from support.tokenizers_of_others import build

    return _made_once(build, tmp_path_factory.mktemp("others"))
