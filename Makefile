# Everything a fresh machine needs: Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all test-python fuzz check docs bench bench-gpu bench-scale clean

setup: $(VENV)/.complete

# The library alone, without optional packages.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	@touch $@

# With all that tests, checks and benchmarks use.
$(VENV)/.complete: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,docs,dp,flower,hub,mat,tensorboard,mlflow,optuna,ray,transformers]'
	@touch $@

# The default settings: nothing is tuned on the demo's data.
demo: $(VENV)/.installed
	$(BIN)/steppe compare fedavg fedsam fedgmt takyr --set 'partition=lda(0.1)' --set model=mlp --seeds 3 --rounds 40 --jobs 2 --out runs/demo
	@$(BIN)/steppe analyze runs/demo/*/seed-0 -m landscape --samples 1000 > /dev/null
	$(BIN)/steppe report runs/demo -o runs/demo/report.html

# One process per core; a file's tests stay together (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder

test: setup
	$(PYTEST) -m "not slow"

# Fixed, so that a change does not fail because of a random seed.
TEST_SEED := 0
# Also every kill, every process, every README command, every compilation.
test-all: test
	@echo "the fuzzers' seed is $(TEST_SEED); others: make test-all TEST_SEED=1, or make fuzz"
	STEPPE_FUZZ_SEED=$(TEST_SEED) $(PYTEST) -m slow

# The tests under another Python, in an environment of its own (6 GB: PyPI's torch brings CUDA), with a record of
# the outcome in tools/results/pythons.json; without one, a version is not listed as supported:
# make test-python PYTHON=python3.13 TESTS="tests/api tests/core tests/parts"
OTHER = build/$(notdir $(PYTHON))
TESTS := tests
test-python:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet -c constraints.txt -e '.[dev,dp,flower,optuna,transformers]'
	$(OTHER)/bin/python tools/pythons.py $(TESTS)

# Try many wrong inputs: configurations, files and command lines; each must give a result or a clear error.
FUZZ_SEED := $(shell date +%s)
FUZZ_EXAMPLES := 5000
fuzz: setup
	@echo "seed $(FUZZ_SEED)"
	STEPPE_FUZZ_SEED=$(FUZZ_SEED) STEPPE_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) tests/fuzz

check: setup
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy

# The site, in site/: pages, reference and tutorials. A broken link or reference is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: setup
	$(BIN)/python -m benchmarks.cpu

bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu

bench-scale: setup
	$(BIN)/python -m benchmarks.scale

clean:
	rm -rf $(VENV) runs site .pytest_cache .ruff_cache .mypy_cache
