# Everything there is to do with this tree. `make` alone lists it. Needs python3 >= 3.11 (with venv), java >= 17 and make.

# What `make` says about a target is the text behind its double hash.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

# PYTHON=... chooses the interpreter of a new environment; VENV=... puts the environment elsewhere.
VENV ?= .venv
BIN := $(VENV)/bin
export VENV
# The current folder stays off sys.path: our `platform/` folder carries the name of a standard module.
export PYTHONSAFEPATH := 1

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Make or renew the environment in .venv from requirements.lock
	@setup/venv.sh

.PHONY: java
java:
	@setup/java.sh

.PHONY: demo
demo: java venv ## Start Headwater, run 336,776 real flights through it and show the result
	@$(BIN)/headwater demo

.PHONY: airflow
airflow: java venv ## Start Airflow with our DAGs on a small demo, for a look in the browser
	@$(BIN)/python -m tests.airflow.demo

.PHONY: test
test: java venv ## Everything: `make check`, all examples of properties, the tests that start brokers, Spark and other processes
	@$(MAKE) --no-print-directory check
	@setup/kcat.sh
	@$(BIN)/python setup/slow_tests.py

# Types take the longest: they run beside the rest, two at a time, each printed whole; a failure does not hide another.
.PHONY: check
check: venv ## Format, lint, types, contracts, doctests, fast tests (three minutes)
	@$(MAKE) --no-print-directory -k -j2 --output-sync=target check-types check-format check-lint check-contracts check-tests

.PHONY: check-types check-format check-lint check-contracts check-tests
check-types:
	@$(BIN)/python -m mypy
check-format:
	@$(BIN)/python -m ruff format --check
check-lint:
	@$(BIN)/python -m ruff check
check-contracts:
	@$(BIN)/lint-imports --no-logo
# Doctests and tests in one run, and in two processes: a second core stands idle when the types are done. The processes
# take tests from each other, because a minute of one folder is a second of another. Properties try few of their
# examples here; `make test` tries all.
check-tests:
	@HYPOTHESIS_FEW=1 $(BIN)/python -m pytest -q -n 2 --dist=worksteal -m "not slow" --doctest-modules \
		platform tests

.PHONY: format
format: venv ## Format the code and mend what ruff can mend
	@$(BIN)/python -m ruff format
	@$(BIN)/python -m ruff check --fix

.PHONY: bench
bench: java venv ## Side by side with Apache Kafka and its Spark connector (BENCH=--quick: a short run)
	@$(BIN)/python -m tests.bench $(BENCH)

.PHONY: kill
kill: java venv ## kill -9 of brokers and of pipelines, many rounds (ROUNDS=30, of archives 50; SEED=...)
	@KILL_ROUNDS=$(or $(ROUNDS),30) KILL_ARCHIVE_ROUNDS=$(or $(ROUNDS),50) KILL_SEED=$(SEED) $(BIN)/python -m pytest -m slow -s tests/end_to_end/kill

.PHONY: faults
faults: java venv ## kills, freezes and cut links of a real cluster (MINUTES=10, SEED=first)
	@$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

.PHONY: simulate
simulate: venv ## Simulated runs with faults, in virtual time, of one broker and of three (SEEDS=20, SEED=first, BROKERS="1 3")
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),20) --seed $(or $(SEED),1) --brokers $(or $(BROKERS),1 3)

.PHONY: plan-fuzz
plan-fuzz: java venv ## Random changes: what `pipeline plan` calls safe, compared and tried on Spark (PAIRS=300, SEED=...)
	@PLAN_FUZZ_PAIRS=$(or $(PAIRS),300) PLAN_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -m slow -s \
		tests/property/pipelines/test_state_changes.py tests/spark/pipelines/test_safe_changes.py

.PHONY: docs
docs: venv ## Write the reference pages that are made of tables in the code
	@$(BIN)/python -m headwater.logtier.config.reference docs/reference
	@$(BIN)/python -m headwater.pipelines.definition.reference docs/reference/pipeline_yaml.md

.PHONY: lock
lock: ## Renew requirements.lock (maintainers; needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv (https://docs.astral.sh/uv): install it first" >&2; exit 1; }
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--all-extras --group dev -o requirements.lock

.PHONY: clean
clean: ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
