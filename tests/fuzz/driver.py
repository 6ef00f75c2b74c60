"""One target under atheris: ``python -m tests.fuzz.driver TARGET LIBFUZZER-OPTIONS…``.

``tests.fuzz.__main__`` starts it, one process a target: libFuzzer ends the process it runs in.
"""

import os
import resource
import sys
from pathlib import Path

# More threads only make an input's coverage depend on luck.
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")

import atheris

from tests.fuzz.registry import load

# What an input may take beyond what the target holds when it begins, in bytes of addresses.
MAX_ADDRESS_GROWTH = 4 << 30
INSTRUMENTED = (
    "tests.fuzz.planted",
    "server",
    "model",
    "export",
    "client",
    "yaml",
    "gguf",
    "jinja2",
)


def bound_memory() -> None:
    """An allocation that no input can be worth ends in ``MemoryError``, which is a finding."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_ADDRESS_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def main() -> None:
    """Runs until libFuzzer's options say so, or something is found."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        target = load(name)
    corpus = Path(next(option for option in options if not option.startswith("-")))
    for index, seed in enumerate(target.seeds()):
        (corpus / f"seed-{index:03}").write_bytes(seed)
        target.run(seed)
    bound_memory()
    atheris.Setup([sys.argv[0], f"-max_len={target.SIZE}", *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
