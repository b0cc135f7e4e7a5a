# Two commands for a newcomer: `make demo` and `make test`. `make setup` is what they share.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BENCH := OPENBLAS_NUM_THREADS=1 GOMP_SPINCOUNT=10000 $(BIN)/pytest -o python_files='bench_*.py' -o pythonpath=tests/benchmarks

.PHONY: setup demo test unit bench bench-compile check format clean

setup: $(STAMP)

# The lock pins every package, setuptools for the build of this one included.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "k3ablate needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: setup
	$(BIN)/k3ablate demo

test: setup
	$(BIN)/pytest

unit: setup
	$(BIN)/pytest -m "not slow"

# Ratios, not times: minutes, on a machine that does nothing else.
bench: setup
	$(BENCH) tests/benchmarks --ignore=tests/benchmarks/bench_compile.py --benchmark-columns=median,iqr,rounds

# What `torch.compile` gives: twelve minutes, most of them compiling.
bench-compile: setup
	$(BENCH) tests/benchmarks/bench_compile.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs
