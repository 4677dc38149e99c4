# Everything a fresh machine needs: Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test check bench bench-gpu bench-scale clean

setup: $(VENV)/.complete

# The library alone, for whoever wants to look.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	@touch $@

# With all that tests, checks and benchmarks use.
$(VENV)/.complete: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,dp,flower,mat,report,tensorboard,mlflow,optuna]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/steppe compare fedavg fedsam scaffold --set 'partition=lda(0.1)' --rounds 30 --out runs/demo

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks.cpu

bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu

bench-scale: setup
	$(BIN)/python -m benchmarks.scale

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache
