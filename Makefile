# Every target makes what it needs: on a new machine, Python 3.11 or later with pip, and make.

VENV := .venv
# The newest of these that runs and can make environments, those of pyenv included;
# `make PYTHON=/path/to/python3.12 test` chooses another.
PYTHONS := 3.13 3.12 3.11
# TensorFlow has no wheel for the first of these; what does without it runs there.
PYTHONS_OF_JAX := 3.14 $(PYTHONS)
ifeq ($(MAKECMDGOALS),jax)
VENV := .venv-jax
PYTHONS := $(PYTHONS_OF_JAX)
endif
PYTHON ?= $(shell for version in $(PYTHONS); do \
	for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python python3; do \
	$$python -c "import ensurepip, sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" \
	>/dev/null 2>&1 && echo $$python && exit; done; done)
# Two processes: each holds TensorFlow and JAX. tests/conftest.py orders the files.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
# What `make affected` compares with: a commit or a folder.
SINCE ?=
# The number of the day since 1970, of which `make part` runs a seventh.
DAY ?= $(shell expr $$(date +%s) / 86400)
SELECTED_ARGS ?=
MATRIX_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?=
MUTANTS_ARGS ?=

# These ask for the plain `tensorflow`, which would overwrite the files of `tensorflow-cpu`.
BESIDE_CPU := tf_keras tensorflow-serving-api
BESIDE_CPU_BENCH := keras-hub

BIN := $(VENV)/bin
READY := $(VENV)/.installed-

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help python demo docs dist quick affected test test-all part measure device jax check bench matrix canary fuzz mutants optimizers format clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

python:  ## Print the Python that environments are made with
	@test -n "$(PYTHON)" && echo $(PYTHON)

demo: $(READY)demo  ## Train in JAX, save without TensorFlow, load in TensorFlow
	$(BIN)/python examples/digits.py

quick: $(READY)test  ## What notices most in 75 seconds: every public verb in every mode
	$(BIN)/ruff check --quiet .
	$(BIN)/python -m tests.selecting quick $(SELECTED_ARGS)

affected: $(READY)test  ## What can see the changes since the main branch, or SINCE=, in three minutes
	$(BIN)/python -m tests.selecting affected --since "$(SINCE)" $(SELECTED_ARGS)

test: $(READY)test  ## Every test of 0.15 s and less, and a heavy one of each kind: about eight minutes
	$(BIN)/python -m tests.selecting test $(SELECTED_ARGS)

test-all: $(READY)test  ## Every test; PYTEST_ARGS="-k name" narrows them
	$(BIN)/python -m tests $(PYTEST_ARGS)

part: $(READY)test  ## A seventh of what `make test` leaves out, that of the day
	$(BIN)/python -m tests.selecting part $(DAY) $(SELECTED_ARGS)

measure: $(READY)test  ## Run every test, and record how long it takes and what it executes
	$(BIN)/python -m tests.selecting measure $(PYTEST_ARGS)

device: $(READY)test  ## What is for an accelerator, on the one that JAX finds
	$(BIN)/python -m tests.device $(SELECTED_ARGS)

jax: $(READY)test-jax  ## The tests that need no TensorFlow, with the newest Python, in .venv-jax
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/golden tests/savedmodel tests/xla_call_module
	XLA_FLAGS=--xla_force_host_platform_device_count=2 $(BIN)/python -m tests.golden.reading

check: $(READY)test  ## Format, lint, types and the rules of the house
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/policy
	@$(BIN)/python -m tests.policy.house_rules
	@$(BIN)/python -m tests.selecting moved

# Material says at each build that it is succeeded from 2027 on; that is for who chooses its version.
docs: $(READY)docs  ## Build the site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(READY)test  ## Build the source distribution, and of it the wheel, into dist
	$(BIN)/python -m tests.distribution dist

bench: $(READY)test  ## Run the benchmarks
	@$(MAKE) --no-print-directory $(READY)bench || echo 'Some models of other libraries cannot be installed here.'
	$(BIN)/python -m tests.benchmarks $(BENCH_ARGS)

matrix: $(READY)test  ## Run against older TensorFlow versions
	$(BIN)/python -m tests.matrix $(MATRIX_ARGS)

canary: $(READY)test  ## Try the newest pre-releases of JAX, TensorFlow and Keras
	$(BIN)/python -m tests.matrix.canary

fuzz: $(READY)test  ## Random programs and damaged files for ten minutes; FUZZ_ARGS="programs --seconds 60"
	@$(MAKE) --no-print-directory $(READY)fuzz || echo 'atheris cannot be installed here.'
	$(BIN)/python -m tests.fuzzing $(FUZZ_ARGS)

mutants: $(READY)test  ## Which faults on purpose the tests notice; MUTANTS_ARGS="lifting --seconds 60"
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

optimizers: $(READY)test  ## Run the table's ONNX models with and without each of ONNX Runtime's optimizers
	$(BIN)/python -m tests.operations.optimizers $(OPTIMIZERS_ARGS)

format: $(READY)test  ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environments and every cache
	rm -rf $(VENV) .venv-jax .fuzz .jax_cache .matrix .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or later is needed; name one with: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra. The constraints reach the build environment too, by PIP_CONSTRAINT.
$(READY)%: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo 'Installing into $(VENV), once; this takes a few minutes.'
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install -qq --disable-pip-version-check \
		--editable '.[$*]' --constraint constraints.txt
	@test '$*' != test || PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install -qq \
		--disable-pip-version-check --no-deps $(BESIDE_CPU) --constraint constraints.txt
	@test '$*' != bench || PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install -qq \
		--disable-pip-version-check --no-deps $(BESIDE_CPU_BENCH) --constraint constraints.txt
	@touch $@
