# From a bare clone: `make demo` and `make test` set everything up in .venv, once.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: demo serve test test-slow check compat bench bench-cluster faults docs wheel format clean

$(READY): pyproject.toml setup.py constraints.txt $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up .venv, once: fetching packages and compiling the kernels takes some minutes"
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: $(READY)
	@$(BIN)/stratalog demo

serve: $(READY)
	@$(BIN)/stratalog serve

test: $(READY)
	@$(BIN)/python -m pytest -n 4 --durations=20 -o cache_dir=.pytest_cache/test

test-slow: $(READY)
	@$(BIN)/python -m pytest -m slow -n 4 --durations=20 -o cache_dir=.pytest_cache/test-slow

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.style.prose src

compat: $(READY)
	@$(BIN)/python -m tests.compat.fetch_kafka
	@$(BIN)/python -m tests.compat.fetch_debian
	@$(BIN)/python -m tests.compat.fetch_spark_kafka
	@status=0; \
	$(BIN)/python -m pytest -m compat -n 2 --durations=15 -o cache_dir=.pytest_cache/compat tests/compat || status=1; \
	$(BIN)/python -m pytest -m any_broker --kafka -n 2 -o cache_dir=.pytest_cache/any_broker tests/client || status=1; \
	exit $$status

bench: $(READY)
	@$(BIN)/python -m bench.storage
	@$(BIN)/python -m bench.broker
	@$(BIN)/python -m bench.cleaner
	@$(BIN)/python -m bench.client
	@$(BIN)/python -m bench.transactions
	@$(BIN)/python -m bench.spark

bench-cluster: $(READY)
	@$(BIN)/python -m tests.compat.fetch_kafka
	@$(BIN)/python -m bench.cluster

faults: $(READY)
	@$(BIN)/python -m bench.faults

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

wheel: $(READY)
	@$(BIN)/python -m build --no-isolation --outdir dist > build.log 2>&1 || { cat build.log; exit 1; }
	@rm build.log; ls -1 dist

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build src/*.egg-info
	find src -name '*.so' -delete -o -name '*.c' -path 'src/*' -delete
