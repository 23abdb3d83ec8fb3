# Two commands: `make demo` and `make test`. Everything is installed into .venv; an existing .venv keeps its torch.
PYTHON ?= python3
TORCH ?= torch==2.13.0
REPORTS ?= reports
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
.DELETE_ON_ERROR:
.PHONY: demo test lint bench device-check readme clean

demo: $(VENV)/.installed
	$(BIN)/amp-probe run
	mkdir -p $(REPORTS)
	$(BIN)/amp-probe report --html -o $(REPORTS)/index.html
	@echo "the report: $(REPORTS)/index.html"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2
	$(MAKE) lint

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	for file in bench/*.py; do $(BIN)/python $$file || exit; done

# The quick and the core suite on every device of this machine; the surveys are left under $(REPORTS)/surveys.
device-check: $(VENV)/.installed
	AMP_PROBE="$(BIN)/amp-probe" REPORTS="$(REPORTS)" tools/device-check.sh

readme: $(VENV)/.installed-dev
	for file in README.md docs/cli.md; do $(BIN)/python tools/readme.py $$file || exit; done

# torch comes first and is then held by a constraint, so that nothing that follows replaces it.
$(VENV)/torch.txt:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.10; name another: make PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "error: $(PYTHON) cannot make environments; on Debian: apt install python3-venv" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(BIN)/python -c 'from importlib.metadata import version; version("torch")' 2>/dev/null || $(PIP) install $(TORCH)
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $@

$(VENV)/.installed: $(VENV)/torch.txt pyproject.toml
	$(PIP) install --constraint $(VENV)/torch.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/torch.txt pyproject.toml
	$(PIP) install --constraint $(VENV)/torch.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# How near this machine's right cells come to the limits they are judged by: the tables of docs/numerics.md.
.PHONY: calibrate
calibrate: $(VENV)/.installed
	$(BIN)/python tools/calibrate.py
