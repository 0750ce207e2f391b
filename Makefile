# Everything a fresh clone needs: Python 3.11+, make and the Python registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Each worker takes half of the files, so that what a file's tests share is built once, then helps the other.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What `make quick` runs: sampler vectors, resuming, likelihoods, statistics, the sandbox, the command line, the schema.
UNIT := tests/unit/dare_bench
QUICK := tests/parity tests/cli/test_cli_eval.py tests/cli/test_read_verbs.py $(UNIT)/test_public_api.py \
	$(addprefix $(UNIT)/engine/test_, evaluate.py journal.py kill.py queue.py scope.py) \
	$(addprefix $(UNIT)/analysis/test_, intervals.py paired_tests.py pairing.py) $(UNIT)/diffusion/test_likelihood.py \
	$(addprefix $(UNIT)/runs/test_, reader.py schema.py) $(UNIT)/sandbox/test_run.py \
	tests/unit/model_adapters/sampling/test_parts.py

.PHONY: venv demo test quick regress check approve keywords docs bench gpu clean

venv: $(VENV)/.installed

# Plain venv and pip with pinned versions. A half-made environment has no mark and is made again.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); dare-bench needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about three minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-script-location -c constraints.txt -e '.[eval,train,cluster,dev]'
	@touch $@

demo: venv
	@$(BIN)/python scripts/demo.py

test: venv
	@$(PYTEST)

# Under a minute on two cores: no browser, no Ray, no FSDP, no OpenCompass.
quick: venv
	@$(PYTEST) -m 'not slow' $(QUICK)

# The bundled checkpoints, evaluated again and held against leaderboards/baselines.
regress: venv
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/baselines.py --output-path regress

check: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(PYTEST)

# The pictures of pages that tests/browser/test_pictures.py compares with, after a change that is wanted.
approve: venv
	@rm -rf tests/browser/pictures
	@DARE_RENEW_PICTURES=1 $(BIN)/python -m pytest -q tests/browser/test_pictures.py

# The types of Python's keywords, after a change of settings, of a family or of a method.
keywords: venv
	@$(BIN)/python scripts/make_keywords.py

# The documentation as a site with search, in build/docs, with the demo's board in it where `make demo` was run (BOARD_URL:
# the address that it will have). A dead link or anchor is an error. It needs only zensical.
DEMO := demo/runs demo/tiny-llada-base-sft/runs --board demo
docs: venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt zensical
	@test ! -f demo/site/index.html || $(BIN)/dare-bench leaderboard build $(DEMO) -o build/board --docs ../index.html --url "$(BOARD_URL)"
	@$(BIN)/python scripts/docs_site.py $(if $(wildcard demo/site/index.html),--board build/board)

bench: venv
	@$(BIN)/python scripts/bench/sampler.py
	@$(BIN)/python scripts/bench/cached.py
	@$(BIN)/python scripts/bench/update.py

# Without venv: it runs by the Python that has PyTorch for the GPU.
gpu:
	@$(PYTHON) scripts/gpu.py --output gpu

clean:
	rm -rf $(VENV) build dist demo regress gpu .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
