# make run: the quickstart, from nothing to a report. make check: lint, types and unit tests, in under two minutes.
# make test: the whole suite. make coverage: the same, with the lines that no test runs, which takes some 40 % more
# CPU time. make docs: the documentation site.
# make peers: our figures against HolisticTraceAnalysis, and the examples for other tools, which it installs into
# build/peers. make fuzz: many damaged profiles. make bench EXPORT=FILE: what a collect costs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SITE ?= local

# Where Python keeps no compiled modules, as in many containers, each command would compile hpcprof and pandas again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run check test coverage peers fuzz bench lint docs page clean

# Without an NVIDIA GPU, PyTorch's build for the CPU is enough: 0.2 GB to download instead of 3. The wheel that
# PyPI has brings CUDA. Python compiles what it imports, which is a small part.
TORCH_CPU := https://download.pytorch.org/whl/cpu
install = test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	index=$$(command -v nvidia-smi > /dev/null || \
	    { curl -sfm 5 -o /dev/null $(TORCH_CPU)/torch/ && echo --extra-index-url $(TORCH_CPU); }); \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $$index \
	    --constraint constraints.txt --editable '.[$(EXTRAS)]'

# What the quickstart runs, and nothing else.
$(VENV)/.workloads: EXTRAS := workloads
$(VENV)/.workloads: setup.cfg pyproject.toml constraints.txt
	$(install)
	touch $@

# Chakra's own parser reads what we export. What it requires besides, HolisticTraceAnalysis and more, is not needed.
$(VENV)/.installed: EXTRAS := workloads,transformers,jax,dask,darshan,events,mcp,otf2,serve,postgres,notebook,docs,dev
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(install)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps mlc-chakra==1.0.0
	touch $(VENV)/.workloads $@

run: $(VENV)/.workloads
	$(BIN)/hpcprof submit --site $(SITE) --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait
	$(BIN)/hpcprof collect
	$(BIN)/hpcprof report --html runs/report.html

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal tests/unit

# Four files of tests at a time, since many tests wait; those of one file share what they start. The file that
# takes longest comes first, so that none waits for it at the end.
test: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder \
	    tests/integration/test_schedulers.py tests

# What runs in processes of its own, as many commands do, is not counted.
coverage: $(VENV)/.installed
	$(MAKE) test PYTEST_ADDOPTS="--cov=hpcprof --cov-report=term-missing"

peers: $(VENV)/.installed
	HPCPROF_PEERS_DIR=$(CURDIR)/build/peers $(BIN)/python -m pytest -m peers tests/peers

fuzz: $(VENV)/.installed
	HPCPROF_FUZZ_EXAMPLES=5000 $(BIN)/python -m pytest --timeout 0 -o faulthandler_timeout=0 tests/fuzz

# EXPORT=FILE is an nsys export of some size. The figures of one run compare, those of two days do not.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/startup.py $(BIN)/python -c pass
	$(if $(EXPORT),$(BIN)/python benchmarks/collect.py $(EXPORT) $(if $(NSYS),--nsys $(NSYS)))

# What `check` does without the tests. The suite runs ShellCheck on rendered scripts.
lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

# The site lies in build/docs; a warning is an error.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html \
	    --doctree-dir build/doctrees docs build/docs

# What the lock file names, and nothing newer; dist/ is committed, so that users need no npm.
page:
	cd hpcprof/report/web && npm ci --ignore-scripts --no-audit --no-fund && npm run build

clean:
	rm -rf $(VENV) build dist *.egg-info
