# `make run` and `make test` are the two commands of the README; the others serve daily work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .cache/bench
FAST_TESTS := tests/unit tests/property tests/integration tests/contract tests/conformance tests/architecture load_watcher trimaran_client

.PHONY: run venv test test-fast lint format e2e bench prove test-lowest test-pythons lock clean help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

run: $(STAMP) ## build the environment, start the service on what this machine has, and show one line to try
	@echo "in a second terminal: $(BIN)/trimaran score --pod docs/examples/pod.yaml --watcher http://$$(echo "$${LOAD_WATCHER_BIND:-127.0.0.1:2020}" | sed -E 's/^(0\.0\.0\.0|\[::\])?:/127.0.0.1:/')"
	@$(BIN)/load-watcher

venv: $(STAMP) ## build .venv with everything for development

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

test: lint ## everything this machine can run, a real control plane included where Go is present
	$(BIN)/python -m pytest $(FAST_TESTS) tests/e2e

test-fast: $(STAMP) ## the quick loop, under a minute
	$(BIN)/python -m pytest -m "not slow" $(FAST_TESTS)

lint: $(STAMP) ## style, types, import contracts
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

e2e: $(STAMP) ## only the tests against the real control plane
	$(BIN)/python -m pytest tests/e2e

bench: $(STAMP) ## measure everything, some 35 minutes (wants wrk, Prometheus): tables and JSON in .cache/bench; docs/performance.md has the last
	@mkdir -p $(BENCH)
	$(BIN)/python -m tests.benchmarks.bench_service --output $(BENCH)/service.json
	$(BIN)/python -m tests.benchmarks.bench_scoring --output $(BENCH)/scoring.json
	$(BIN)/python -m tests.benchmarks.bench_extender --output $(BENCH)/extender.json
	$(BIN)/python -m tests.benchmarks.bench_pod_watch --pods 20000 --output $(BENCH)/pod-watch.json
	$(BIN)/python -m tests.benchmarks.bench_burst --busy-loops 0 2 --output $(BENCH)/burst.json
	$(BIN)/python -m tests.benchmarks.bench_history
	$(BIN)/python -m tests.benchmarks.quality

prove: $(STAMP) ## the long form of the proofs: more examples, longer soaks
	TRIMARAN_PROVE=1 $(BIN)/python -m pytest --timeout 1800 $(FAST_TESTS)

test-lowest: ## the quick tests with the lowest allowed versions of the direct dependencies
	$(PYTHON) -m venv .cache/lowest
	.cache/lowest/bin/pip install --quiet --upgrade "pip>=25.1" uv
	.cache/lowest/bin/uv pip install --quiet --python .cache/lowest/bin/python --resolution lowest-direct --editable ".[all]" --group dev
	.cache/lowest/bin/python -m pytest -m "not slow" $(FAST_TESTS)

test-pythons: ## the quick tests on every supported Python that is on the PATH
	@for version in 3.11 3.12 3.13; do \
	  python$$version --version >/dev/null 2>&1 || { echo "python$$version: not here"; continue; }; \
	  python$$version -m venv .cache/py$$version && .cache/py$$version/bin/pip install --quiet --upgrade "pip>=25.1" && \
	  .cache/py$$version/bin/pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev && \
	  .cache/py$$version/bin/python -m pytest -m "not slow" $(FAST_TESTS) || exit 1; \
	done

lock: ## write constraints.txt anew from the newest versions that fit
	$(PYTHON) -m venv .cache/lock
	.cache/lock/bin/pip install --quiet --upgrade "pip>=25.1"
	.cache/lock/bin/pip install --quiet --editable ".[all]" --group dev
	.cache/lock/bin/pip freeze --exclude-editable --exclude pip > constraints.txt

clean: ## remove the environment and caches in the folder
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
