# Everything starts here: `make run` shows the Broker at work, `make test` shows that it works.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compiled modules are kept, whatever the environment says (images often say not to): else each
# worker and each process that a test starts compiles all of Knafka and of its tests again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check
# uv installs in a third of pip's time. Where it fails, as an index or a certificate may be set up
# for pip alone, pip installs the same files. Neither is quiet: their bars say what they wait for.
INSTALL = $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --require-hashes -r $(1) || \
	{ echo "uv could not install $(1): pip tries it"; $(PIP) install --require-hashes -r $(1); }
LOCK_ANY := $(BIN)/uv pip compile --quiet --universal --generate-hashes \
	--python-version 3.11 --no-strip-extras --custom-compile-command "make lock"
LOCK := $(LOCK_ANY) pyproject.toml

# A file of tests for each worker: a Kafka and a Spark session in each, as they are asked for.
SIDE_BY_SIDE = -n $(WORKERS) $(MOST) $(BY_FILE)
MORE_SIDE_BY_SIDE = -n $(MORE_WORKERS) $(MOST) $(BY_FILE)
MOST := --maxprocesses 4
BY_FILE := --dist loadfile --no-loadscope-reorder
WORKERS ?= logical
# What needs no Spark waits now and then, for a time or another process: one worker more than there
# are cores. (A Spark session costs more CPU than that saves.)
MORE_WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# The name of a run of the tests of processes, of which the gate makes two (build/tests/NAME.xml).
RUN ?= processes
# Tests of the cluster wait most of their time: more of them at once than there are cores.
CLUSTER_WORKERS ?= 3
ON_CLUSTER := tests/cluster tests/behaviour
RUN_TESTS := $(BIN)/python tools/run_tests.py
SHOWN_PACKAGES := --durations=50 --durations-min=1
CLUSTER := PYTHONPATH=tools $(PYTHON) -m testcluster
BUILD_IMAGES := $(BIN)/python tools/images/build.py
TAG ?= latest
# Hot paths of the functions' image, compiled (docs/decisions/0050-compiled.md): COMPILED=1.
COMPILED_OPTION = $(if $(COMPILED),--compiled)
# What is pure: no Kafka, no cluster, no Spark (marked slow).
PURE := tests/unit tests/property tests/behaviour
# Of the pure tests, those of the modules that `make compiled` compiles.
OF_COMPILED := tests/compiled $(wildcard $(patsubst %,tests/unit/test_%.py,attribute_limit batches \
	commit* congestion content_mode delivery drain* event filter* http_* ingest kafka_binding kafka_writer \
	large_attributes loops numbering offsets rate_limit receiver_* shard_* shared_*) \
	$(patsubst %,tests/property/test_%.py,at_most_once_* bindings_* drain_* filter_* ingest_* \
	offset_* shared_*))
# What `make test` leaves to `make test-integration`: real processes in failures and disturbances,
# what needs a program that Go compiles, and all of Spark but a slice.
INTEGRATION := (integration or chaos or go or spark) and not slice
# Of a property's examples (tests/support/examples.py); `make chaos` tries sixteen times as many.
EXAMPLES ?= 0.5
# Coverage doubles the CPU of a pure test: the gate measures it, or `make test COVERAGE=1`.
MEASURED = $(if $(CI)$(COVERAGE),--cov --cov-report=)
# Per cent of the lines and branches that are pure (pyproject.toml names the packages).
COVERED := 99

# Sizes of `make chaos`, and the tests that have some of them.
LARGER := KNAFKA_BURST=40000 KNAFKA_AWAY=5,30,60 KNAFKA_OUTAGES=20 KNAFKA_ABSENT=600 KNAFKA_KILLS=10 \
	KNAFKA_UPDATES=20 KNAFKA_TEST_COLD_STARTS=5 KNAFKA_SENSOR_MATRIX=full KNAFKA_RATE=100 KNAFKA_ROLLED=10
LARGER_TESTS := tests/chaos $(patsubst %,tests/cluster/test_%.py,changes components operator_absent \
	rolls scale_to_zero senders) $(patsubst %,tests/integration/test_%.py,dead_letter_pipeline dead_letters_on_s3)

.PHONY: help run jobs test test-fast compiled test-compiled test-integration test-cluster test-again tests-here tests-of-jobs tests-of-processes style lint types docs bench bench-backtest bench-jobs bench-replay chaos lock clean \
	collector s3-gateway java image image-push image-jobs cluster-build cluster-up cluster-images cluster-down cluster-purge

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

# PORT counts only if it is said to make: many environments have a PORT that means something else.
given = $(if $(findstring command line,$(origin $(1))),$(2) $($(1)))
RUN_OPTIONS = $(strip $(call given,PORT,--port) $(call given,KAFKA_PORT,--kafka-port) \
	$(call given,DATA,--data-dir))

run: $(VENV)/.local ## Start the quickstart and send it events (PORT=8080 KAFKA_PORT=9092 DATA=.knafka)
	$(BIN)/knafka up -f examples/quickstart --send examples/quickstart/events.ndjson $(RUN_OPTIONS)

jobs: $(VENV)/.jobs ## Install what the dead-letter jobs need besides: PySpark and a reader of tables (500 MB)

# Its tests hold the import contracts, too (tests/unit/test_import_contracts.py).
test: style ## Check style, types and imports, run what a commit needs, with Python alone (ten minutes)
	@$(MAKE) --no-print-directory -j2 types tests-here

test-fast: $(VENV)/.dev ## Run the pure tests: after each edit (a minute; a fifth of the properties' examples)
	KNAFKA_EXAMPLES=0.2 $(BIN)/python -m pytest $(PURE) -q -m "not slow and not kafka" \
		$(MORE_SIDE_BY_SIDE) $(ARGS)

compiled: build/compiled/functions/.compiled ## Build a wheel whose hot modules are compiled (a minute or two; needs gcc)

test-compiled: build/compiled/functions/.compiled ## Run the tests of the hot modules against the compiled ones
	KNAFKA_TEST_COMPILED=1 KNAFKA_EXAMPLES=0.2 PYTHONPATH=build/compiled/functions $(BIN)/python -m pytest -q \
		$(OF_COMPILED) -m "not kafka and not slow" $(MORE_SIDE_BY_SIDE) $(ARGS)

test-integration: $(VENV)/.dev ## Test failures and restarts of real processes, and all Spark jobs (half an hour; some need Go)
	@$(MAKE) --no-print-directory -j2 tests-of-jobs tests-of-processes

tests-of-jobs: $(VENV)/.dev
	$(RUN_TESTS) jobs -m "spark and not slice and not cluster" $(SIDE_BY_SIDE) $(SHOWN_PACKAGES) $(ARGS)

tests-of-processes: $(VENV)/.dev
	$(RUN_TESTS) $(RUN) -m "$(INTEGRATION) and not spark and not cluster" $(SIDE_BY_SIDE) $(SHOWN_PACKAGES) $(ARGS)

test-cluster: $(VENV)/.dev ## Run the tests on a real Kubernetes with Knative (40 minutes; root, Linux, Go)
	@failed=0; \
	KNAFKA_KEEP_CLUSTER=1 $(RUN_TESTS) cluster $(ON_CLUSTER) -m "cluster and not alone" \
		-n $(CLUSTER_WORKERS) $(BY_FILE) $(SHOWN_PACKAGES) $(ARGS) || failed=$$?; \
	$(RUN_TESTS) cluster-alone $(ON_CLUSTER) -m "cluster and alone" $(SHOWN_PACKAGES) $(ARGS) || failed=$$?; \
	exit $$failed

test-again: $(VENV)/.dev ## Run tests of real services ten times, under load, shuffled (ARGS="--runs 3")
	$(BIN)/python tools/repeat_tests.py $(ARGS)

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy

tests-here: $(VENV)/.dev
	KNAFKA_EXAMPLES=$(EXAMPLES) $(RUN_TESTS) here -m "not cluster and not ($(INTEGRATION))" -q $(MORE_SIDE_BY_SIDE) $(SHOWN_PACKAGES) $(MEASURED) $(ARGS)
	$(if $(MEASURED),$(BIN)/coverage report --skip-covered --show-missing --fail-under=$(COVERED))

docs: $(VENV)/.dev ## Write the generated pages of docs/ anew (conformance.md: tools/conformance_page.py)
	$(BIN)/python tools/import_picture.py

bench: $(VENV)/.dev ## Measure what an event costs, beside bare prototypes (45 minutes; needs Go)
	$(BIN)/python tools/bench/run.py $(ARGS)

bench-backtest: $(VENV)/.dev ## Backtest archived events beside the live reducer (ARGS="--events 10000000")
	PYTHONPATH=tools $(BIN)/python tools/bench/backtesting.py $(ARGS)

bench-jobs: $(VENV)/.dev ## Measure the dead-letter jobs on tables of 1, 5 and 50 million (an hour; 30 GB of disk)
	PYTHONPATH=tools:local:functions:spark_jobs $(BIN)/python tools/bench/jobs.py $(ARGS)

bench-replay: $(VENV)/.dev ## Replay a million events on the default heap, killed three times (ARGS="--events 100000")
	PYTHONPATH=tools:local:functions:spark_jobs $(BIN)/python tools/bench/replaying.py $(ARGS)

chaos: $(VENV)/.dev ## Disturb bursts; take Kafka and the operator away; what is too long for the gate (two hours; root, Linux)
	$(CLUSTER) eventing
	$(LARGER) $(BIN)/python -m pytest tests -m only_chaos -s $(ARGS)
	$(LARGER) $(BIN)/python -m pytest $(LARGER_TESTS) -m "not only_chaos" -s $(ARGS)
	KNAFKA_TEST_DIRECT=1 $(BIN)/python -m pytest tests/cluster/test_conformance_*.py \
		tests/cluster/test_channels.py tests/behaviour -m "cluster and not alone" $(ARGS)
	KNAFKA_EXAMPLES=8 $(BIN)/python -m pytest tests/property $(SIDE_BY_SIDE) $(ARGS)
	@$(MAKE) --no-print-directory tests-of-jobs
	@$(MAKE) --no-print-directory test-compiled

.PHONY: mutants
mutants: $(VENV)/.dev ## Change pure code bit by bit, and see which changes no test notices (75 minutes)
	PYTHONPATH=tools nice $(BIN)/python -m mutants $(ARGS)

# The wheel, and beside it what it holds, for whoever runs it from a folder: tests, images.
build/compiled/functions/.compiled: $(shell find functions/knafka -name '*.py') $(wildcard tools/compiled/*.py) pyproject.toml | $(VENV)/.dev
	rm -rf build/compiled/wheel build/compiled/functions
	KNAFKA_COMPILED=1 $(BIN)/python -m hatchling build -t wheel -d build/compiled/wheel
	$(BIN)/python -m zipfile -e build/compiled/wheel/*.whl build/compiled/functions
	@touch $@

collector: $(VENV)/.dev ## Compile the OTLP collector that a test of traces needs (a minute; needs Go)
	PYTHONPATH=tests $(BIN)/python -m support.otlp

s3-gateway: $(VENV)/.dev ## Compile the S3 that tests of tables in a bucket need (a minute; needs Go)
	PYTHONPATH=tests $(BIN)/python -m support.s3

java: build/java/bin/java ## Keep the classes of Kafka and Spark, so that tests start them faster (a minute)

build/java/bin/java: requirements/dev.lock $(wildcard local/knafka_local/kafka/*.sha256) | $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.quick_java $(JAVA_CLASSES)

image: | $(VENV)/bin/python ## Build the container images into build/images/ (TAG=latest; COMPILED=1)
	$(BUILD_IMAGES) --tag $(TAG) $(COMPILED_OPTION)

image-push: | $(VENV)/bin/python ## Build the images and push them: REGISTRY=registry.example.com/team
	$(BUILD_IMAGES) --tag $(TAG) $(COMPILED_OPTION) --push $(REGISTRY)

image-jobs: $(VENV)/.local ## Build the image of the dead-letter jobs alone, with Java and Spark (1 GB)
	$(BUILD_IMAGES) --tag $(TAG) --jobs $(if $(REGISTRY),--push $(REGISTRY))

cluster-build: ## Compile what the test cluster is made of (minutes the first time)
	$(CLUSTER) build

cluster-up: ## Start a real Kubernetes with Knative Serving for tests (root, Linux)
	$(CLUSTER) up

cluster-images: $(VENV)/.dev ## Build all images and push them into the test cluster
	PYTHONPATH=tools $(BIN)/python -m testcluster images $(TAG)

cluster-down: ## Stop the test cluster; `cluster-up` resumes it
	$(CLUSTER) down

cluster-purge: ## Stop the test cluster and forget what was in it
	$(CLUSTER) purge

lock: $(VENV)/.dev ## Write requirements/*.lock anew from pyproject.toml
	$(LOCK) --extra local --group build -o requirements/local.lock
	$(LOCK) --extra local --extra jobs --extra tables --group build -o requirements/jobs.lock
	$(LOCK) --extra jobs --extra tables -o requirements/spark_jobs.lock
	$(LOCK) --extra operator -o requirements/operator.lock
	$(LOCK) --extra functions --extra oidc --extra tracing -o requirements/functions.lock
	$(LOCK) --extra functions --extra oidc --extra tracing --extra aws -o requirements/functions-aws.lock
	$(LOCK) --extra functions --extra oidc --extra tracing-grpc -o requirements/functions-grpc.lock
	$(LOCK) --extra operator --extra aws -o requirements/operator-aws.lock
	$(LOCK) --extra local --extra jobs --extra tables --extra oidc --extra operator --extra tracing-grpc --group dev \
		-o requirements/dev.lock
	$(LOCK_ANY) --group uv --constraints requirements/dev.lock -o requirements/uv.lock

clean: ## Remove the virtual environment, caches and local data
	rm -rf $(VENV) build .knafka .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Knafka needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "error: Python's venv module is missing: install it (Debian: python3-venv)"; exit 1; }

# Where there is no uv for a machine, pip installs everything.
$(VENV)/.uv: requirements/uv.lock | $(VENV)/bin/python
	@$(PIP) install --quiet --only-binary :all: --require-hashes -r $< || true
	@touch $@

$(VENV)/.local: requirements/local.lock pyproject.toml | $(VENV)/.uv
	@echo "installing Knafka and what it needs to run (some 10 s)"
	@$(call INSTALL,requirements/local.lock)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.jobs: requirements/jobs.lock $(VENV)/.local
	@echo "installing PySpark and Delta (500 MB)"
	@$(call INSTALL,requirements/jobs.lock)
	@touch $@

$(VENV)/.dev: requirements/dev.lock pyproject.toml | $(VENV)/.uv
	@echo "installing Knafka and what its tests need, PySpark among it (a minute or two)"
	@$(call INSTALL,requirements/dev.lock)
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.local $(VENV)/.jobs
