# make run: distil, train, evaluate and inspect on embedded data. make test: linter, type checker, tests. Both set up the
# environment in .venv first: `run` installs what running needs, `test` also the tools of developers.
PYTHON ?= python3
BIN := .venv/bin
RUNNING := .venv/.running
STAMP := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup run map test test-oldest test-oldest-torch release-check audit report docs clean

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

# Three workers also on two cores: some tests wait for processes that they start. A file goes to one worker, so that what
# its tests share is made once; tests/conftest.py puts the files that take longest first.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# The map of the files in CONTRIBUTING.md, from the first lines of the files.
map: $(STAMP)
	$(BIN)/python -m tests.test_architecture

# The oldest supported releases (.ci/oldest.py) of what training needs, laid over this environment: all but torch, whose old builds
# for CPUs few indexes have. tests/test_install.py takes those of what prediction needs, where .ci/run says so.
OLDEST := build/oldest
$(OLDEST): $(STAMP) .ci/oldest.py
	mkdir -p build
	$(BIN)/python .ci/oldest.py train onnx | grep -v '^torch==' > build/oldest-train.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $@ \
	    -r build/oldest-train.txt 'huggingface_hub<2' 'fsspec==2024.6.1' 'dill==0.3.8' 'multiprocess==0.70.16'
	touch $@

OLDEST_TESTS := tests/integrations/test_hugging_face.py tests/test_model.py tests/test_tagger.py \
    tests/training/test_problems.py tests/compression/test_quantizer.py tests/compression/test_checkpoint.py
test-oldest: $(OLDEST)
	PYTHONPATH=$(OLDEST) $(BIN)/pytest -n 2 --dist loadfile $(OLDEST_TESTS)

# The same with the oldest torch, in an environment of its own: several GB.
test-oldest-torch: $(STAMP)
	$(PYTHON) -m venv build/oldest-torch
	$(BIN)/python .ci/oldest.py train onnx demo > build/oldest-torch.txt
	build/oldest-torch/bin/python -m pip install --quiet --disable-pip-version-check -r build/oldest-torch.txt \
	    pytest pytest-xdist hypothesis httpx
	PYTHONPATH=. build/oldest-torch/bin/python -m pytest -n 2 --dist loadfile $(OLDEST_TESTS)

# The files of a release, built and checked; and known vulnerabilities of the pinned dependencies (asks the network).
RELEASE := build/release
$(RELEASE):
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6' 'pip-audit>=2.7'

release-check: $(RELEASE)
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist
	$(RELEASE)/bin/twine check --strict dist/*

audit: $(RELEASE)
	$(RELEASE)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

# Tables and plots from benchmarks/results.
report: $(STAMP)
	$(INSTALL) -e '.[bench]'
	$(BIN)/python -m benchmarks report
	$(BIN)/python -m benchmarks report --check

# The documentation site, in build/site.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
