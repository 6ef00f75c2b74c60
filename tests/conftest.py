"""Bundles as fixtures; see :mod:`tests.bundles`."""

import functools
import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests import bundles

# Tests run on all cores, beside each other: torch's threads would wait for one another, and tiny
# matrices are slower with several. Torch reads it when it is imported, in programs of tests too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# For the tests that import ONNX Runtime themselves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# No test is timed: the machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Folders and files whose tests train, export or start whole programs: half of the total time.
SLOW = (
    "client/test_default_models.py",
    "console",
    "container",
    "defaults",
    "deploy",
    "export/importers/test_defaults.py",
    "export/importers/test_gliner.py",
    "export/importers/test_rerankers.py",
    "export/test_audio_classifiers.py",
    "export/test_ctc.py",
    "export/test_large.py",
    "export/test_literature.py",
    "export/test_retrieval_quality.py",
    "families",
    "loadtest/test_compare_servers.py",
    "loadtest/test_gpu.py",
    "loadtest/test_gpu_server.py",
    "server/test_audio_classification.py",
    "server/test_ctc_calls.py",
    "server/test_freed_calls.py",
    "server/test_spectrogram_classification.py",
    "soak",
    "test_round_trip.py",
    "train/test_resume.py",
    "train/test_tiny.py",
)
# Folders and files that take longest: a worker that began one last would leave the others idle.
FIRST = (
    "defaults",
    "container",
    "arm",
    "train/test_tiny.py",
    "train/test_resume.py",
    "loadtest/test_gpu.py",
    "export/importers/test_static_libraries.py",
    "fuzz/test_fuzz.py",
    "frontends/http/test_guidellm.py",
    "test_wheel.py",
    "console",
    "deploy",
    "soak",
    "cuda",
)
SLOW_PATHS = {Path(__file__).parent / name for name in SLOW}
# Bundles that few tests need: their export takes longer than these tests.
SLOW_BUNDLES = {
    *("compact_bundles", "gliner_bundles", "hybrid_bundles"),
    *("recurrent_bundles", "shortlist_bundles"),
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the garbage collector from the modules and tests, which all live until the end.

    Else every full collection visits these 700,000 objects, in 0.5 s.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keeps the fast tests from importing what is in SLOW, and the models of every family."""
    is_fast = config.option.markexpr.startswith("not slow")
    return True if is_fast and collection_path in SLOW_PATHS else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Marks the tests in SLOW, and those of SLOW_BUNDLES, as ``slow``.

    Orders the files that several processes share: those in FIRST, then those of many tests.
    """
    files = {item.path for item in items}
    slow = {file for file in files if not SLOW_PATHS.isdisjoint((file, *file.parents))}
    for item in items:
        needed = {*getattr(item, "fixturenames", ()), *_parameters(item)}
        if item.path in slow or not needed.isdisjoint(SLOW_BUNDLES):
            item.add_marker(pytest.mark.slow)
    yield
    if hasattr(config, "workerinput"):
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (_rank(item.path), -counts[item.path], item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seeds torch, so that a test has the same numbers each time."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def _rank(file: Path) -> int:
    """The index in FIRST of a file, or of its folder."""
    paths = [Path(__file__).parent / name for name in FIRST]
    return next((i for i, path in enumerate(paths) if file.is_relative_to(path)), len(FIRST))


def _parameters(item: pytest.Item) -> list[str]:
    """The texts among the parameters of a test, which may name fixtures."""
    call = getattr(item, "callspec", None)
    return [] if call is None else [value for value in call.params.values() if type(value) is str]


@pytest.fixture(scope="session", autouse=True)
def operators_are_listed_once() -> Iterator[None]:
    """Shares torch's lists of operators, which it makes anew for each graph, in 0.6 s."""
    if find_spec("torch") is None:  # on the emulated machine of tests/arm
        yield
        return
    # torch takes seconds to import, and the process that starts the workers needs none.
    from torch._export.utils import _collect_all_valid_cia_ops  # noqa: PLC0415
    from torch.export import decomp_utils, exported_program  # noqa: PLC0415
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: PLC0415

    listed = functools.cache(ONNXRegistry.from_torchlib)
    # Those that PyTorch implements by others: no module of this project registers more.
    composite = functools.cache(_collect_all_valid_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(listed))
        for module in (exported_program, decomp_utils):
            patch.setattr(module, "_collect_all_valid_cia_ops", composite)
        yield


@pytest.fixture(autouse=True)
def logging_state_is_restored() -> Iterator[None]:
    """Fails a test that leaves logging disabled, which would silence all later tests."""
    disabled = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == disabled


@pytest.fixture(scope="session")
def tiny_bundles() -> Path:
    """Small models trained by the tests: ``dates``, ``tiny-decoder``, ``tiny-classifier``."""
    return bundles.tiny_bundles()


@pytest.fixture(scope="session")
def compact_bundles() -> Path:
    """The same models in int8 and int4, and with int8 caches."""
    return bundles.compact_bundles()


@pytest.fixture(scope="session")
def recurrent_bundles() -> Path:
    """A GRU encoder-decoder with attention: ``tiny-gru`` in fp32, ``tiny-gru-int8``."""
    return bundles.recurrent_bundles()


@pytest.fixture(scope="session")
def hybrid_bundles() -> Path:
    """A decoder with convolutions: ``tiny-hybrid``, ``tiny-hybrid-int8`` with an int8 cache."""
    return bundles.hybrid_bundles()


@pytest.fixture(scope="session")
def shortlist_bundles() -> Path:
    """The model ``dates`` in int8: ``shortlist`` with a lexical shortlist, ``dates`` without."""
    return bundles.shortlist_bundles()


@pytest.fixture(scope="session")
def head_bundles() -> Path:
    """Random encoders, one per task head: ``tests.heads.NAMES``."""
    return bundles.head_bundles()


@pytest.fixture(scope="session")
def gliner_bundles() -> Path:
    """``tests.bundles.gliner_bundles``."""
    return bundles.gliner_bundles()


@pytest.fixture(scope="session")
def m3_bundles() -> Path:
    """``tests.bundles.m3_bundles``."""
    return bundles.m3_bundles()


@pytest.fixture(scope="session")
def static_bundles() -> Path:
    """``tests.bundles.static_bundles``."""
    return bundles.static_bundles()


@pytest.fixture(scope="session")
def retrieval_bundles() -> Path:
    """Random embedding models: ``splade``, ``colbert``, ``colbert-unfilled``."""
    return bundles.retrieval_bundles()


@pytest.fixture(scope="session")
def image_bundles() -> Path:
    """Random models of images: ``vit``, ``vit-embed``; of texts with images: ``vilbert``."""
    return bundles.image_bundles()


@pytest.fixture(scope="session")
def vision_models() -> Path:
    """Decoders that read images: ``bundles``, and ``sources`` of ``transformers``."""
    return bundles.vision_models()


@pytest.fixture(scope="session")
def caption_bundles() -> Path:
    """A random model that writes texts about images: ``captioner``."""
    return bundles.caption_bundles()


@pytest.fixture(scope="session")
def audio_bundles() -> Path:
    """Random classifiers of recordings: ``sounds``, a Wav2Vec2, and ``ast``."""
    return bundles.audio_bundles()


@pytest.fixture(scope="session")
def speech_bundles() -> Path:
    """Random models that transcribe: ``speech`` of three languages, ``speech-en`` of English."""
    return bundles.speech_bundles()


@pytest.fixture(scope="session")
def literature_bundles() -> Path:
    """Random encoders of the literature: ``tests.literature.LITERATURE``."""
    return bundles.literature_bundles()


@pytest.fixture(scope="session")
def fp32_bundles() -> Path:
    """The default models that have an fp32 reference, in fp32."""
    return bundles.default_bundles("fp32")


@pytest.fixture(scope="session")
def int8_bundles() -> Path:
    """All default models in int8."""
    return bundles.default_bundles("int8")
