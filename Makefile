# make setup | demo | test | check | soak | bench | mutants | lock | clean
PYTHON ?=
BIN := .venv/bin
READY := .venv/.ready
FAKESNOW := .venv/fakesnow/.ready

.PHONY: setup demo test check lint soak bench mutants lock clean

setup: $(READY)

$(READY): pyproject.toml requirements/build.txt requirements/dev.txt tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh
	@touch $@

demo: setup
	@$(BIN)/strandline demo

# A stand-in for Snowflake, for the tests: it pins other versions of what we use.
$(FAKESNOW): $(READY) requirements/fakesnow.txt
	$(BIN)/python -m venv --clear .venv/fakesnow
	$(BIN)/uv pip install --quiet --python .venv/fakesnow/bin/python --require-hashes -r requirements/fakesnow.txt || \
		.venv/fakesnow/bin/python -m pip install --quiet --require-hashes -r requirements/fakesnow.txt
	@touch $@

# Two processes: each has its own servers and its own Spark. tests/conftest.py says in which order files go to them.
test: lint $(FAKESNOW)
	@tools/setup.sh browser
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: lint
	$(BIN)/python -m pytest tests/unit tests/property tests/cli

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Hours if need be: make soak MINUTES=240 EXAMPLES=100000
soak: setup
	STRANDLINE_EXAMPLES=$(EXAMPLES) STRANDLINE_STEPS=80 $(BIN)/python -m pytest --timeout 0 -k TestMachine tests/property
	STRANDLINE_SOAK=1 $(BIN)/python -m pytest --timeout 0 -k "soak or every_event" tests/integration/test_kills.py tests/integration/test_sync.py
	$(BIN)/python -m soak --minutes $(MINUTES)

MINUTES := 10
EXAMPLES := 3000

BENCHMARKS := against foundation memory server stage staging verify delta_source delta_state poll dashboard growth spark_start

bench: setup
	@tools/setup.sh mariadb
	for each in $(BENCHMARKS); do $(BIN)/python benchmarks/$$each.py || exit 1; done

mutants: setup
	$(BIN)/python tests/mutants/mutants.py

lock: setup
	$(BIN)/uv pip compile requirements/build.in --upgrade $(LOCK) --output-file requirements/build.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev --upgrade $(LOCK) --output-file requirements/dev.txt
	$(BIN)/uv pip compile requirements/fakesnow.in --upgrade $(LOCK) --output-file requirements/fakesnow.txt

LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
