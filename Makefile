# Everything from a fresh clone: `make demo` and `make test`. Both set up .venv/ themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-far lint docs bench pictures clean

demo: .venv/torch.installed
	$(BIN)/memexport demo --force

test: lint
	$(BIN)/python -m pytest -n auto --dist loadgroup --ignore tests/far

# Against what is too large for every run: Spark (needs a Java), Ray, and the Slurm and MPI that the system has.
test-far: .venv/far.installed
	$(BIN)/python -m pytest tests/far

lint: .venv/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	for released in tests/data/schemas/*; do $(BIN)/buf breaking --against $$released || exit 1; done
	$(BIN)/python tools/gen_protos.py --check
	$(BIN)/python tools/readme_tables.py --check

# The site, into site/; a warning is an error. `.venv/bin/mkdocs serve` shows it while you write.
docs: .venv/dev.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Each prints its own table; run them on a quiet machine.
bench: .venv/dev.installed
	for bench in capture ranks oom exact compat archive exporters perfetto_load summary memory startup fake snapshot kineto merge otlp plot; do \
	  echo "== $$bench"; $(BIN)/python tools/bench/$$bench.py || exit 1; done

# The pictures of the README and the docs, taken in the real Perfetto UI and browser (needs Chromium).
pictures: .venv/dev.installed
	$(BIN)/python tools/pictures.py

# torch is installed first and by its pin: left to a dependency, pip would take whatever is newest.
.venv/torch.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[torch]'
	touch $@

.venv/dev.installed: .venv/torch.installed
	$(PIP) --editable '.[torch,dev]'
	touch $@

.venv/far.installed: .venv/dev.installed
	$(PIP) --editable '.[torch,dev,far]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
