# make run: distil, train, evaluate and inspect on embedded data. make test: linter, type checker, tests. Both set up the
# environment in .venv first: `run` installs what running needs, `test` also the tools of developers.
PYTHON ?= python3
BIN := .venv/bin
RUNNING := .venv/.running
STAMP := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup run test test-oldest bench-quick report docs clean

setup: $(STAMP)

$(RUNNING): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[demo]'
	touch $@

$(STAMP): $(RUNNING)
	$(INSTALL) -e '.[demo,dev,docs,onnx,sentence,serve]'
	touch $@

run: $(RUNNING)
	$(BIN)/ade run

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# The tests that use transformers, on its oldest supported release.
OLDEST := build/oldest
$(OLDEST): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ \
	    'transformers==5.0.0' 'huggingface_hub<2' 'tokenizers<0.23'
	touch $@

test-oldest: $(OLDEST)
	PYTHONPATH=$(OLDEST) $(BIN)/pytest -n 2 tests/integrations/test_hugging_face.py tests/test_model.py tests/test_tagger.py \
	    tests/training/test_problems.py tests/compression/test_quantizer.py tests/compression/test_folder.py

# The whole benchmark harness on a few hundred rows (folders as in `python -m benchmarks reproduce --help`).
DATA ?= ../shared/data
TEACHERS ?= teachers
bench-quick: $(STAMP)
	$(BIN)/python -m benchmarks reproduce --quick --data-dir $(DATA) --teachers-dir $(TEACHERS) --device cpu

# Tables and plots from benchmarks/results; every sentence under a table is checked against the records.
report: $(STAMP)
	$(INSTALL) -e '.[bench]'
	$(BIN)/python -m benchmarks report
	$(BIN)/python -m benchmarks report --check

# The documentation site, in build/site.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
