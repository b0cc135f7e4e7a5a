# Two commands for a newcomer: `make demo` and `make test`. `make setup` is what they share.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: setup demo test unit check format clean

setup: $(STAMP)

# The lock pins every package; pip is upgraded first because old ones resolve it slowly.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

demo: setup
	$(BIN)/k3ablate demo

test: setup
	$(BIN)/pytest

unit: setup
	$(BIN)/pytest -m "not slow"

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
