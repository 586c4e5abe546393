# A fresh machine needs Python 3.11+, make and gcc; everything else is set up here.
#   make run     judge one implementation, benchmark it, log it, write the report   (IMPL=triton,cpu TRACE=file.csv)
#   make test    lint, types and every test of the repository
#   make kill-table  every wrong implementation under every law, written to SPEC-KILLS.md (OTHERS=3: sooner)
#   make aot         compile every variant of our Triton kernels for every chip, to kernels/AOT.md   (ONLY='head dim 128')
#   make nightly     what is too long for every day: searches, fuzz, audit   (-k: go on after a failure)
#   make searches    more draws of the budget, the readers and the laws; a soak of 15 minutes; half an hour
#   make fuzz    every reader of files, guided by the branches that a file reaches   (FUZZ_SECONDS=600)
#   make audit   known vulnerabilities of what constraints.txt installs, and its licences; asks a service
#   make mutation    change our allocators and the torch kernel one operator at a time; hours (MUTANTS=20: a sample of each)
#   make env         an environment of its own for what can't share ours: NAME=vllm   (impls/envs/*.txt)
#   make matrix      every implementation that is available here under all laws, to reports/published   (ONLY=vllm,cpu)
#   make gpu     laws, sanitizer and sweep on a CUDA device, to reports/published   (GPU_IMPLS="triton flashinfer" DRY=1)
#   make flash-attn-4, make flashinfer   compile what these adapters ask for, without a GPU; minutes
#   make compare     every allocator and kernel that runs here, in turns, to reports/published   (COMPARE='--only=kernels')
#   make tune    measure which tiles this CUDA device prefers, to tuned.toml        (TUNE='--model=llama-3-8b')

PYTHON ?= python3
IMPL ?= triton,cpu
TRACE ?= $(wildcard ../shared/traces/AzureLLMInferenceTrace_conv.csv)
OTHER_TRITON ?= 3.6.0
LAW_IMPLS := reference,torch,triton,cpu,paged,paged-python,contiguous-max,textbook

BIN := .venv/bin
INSTALLED := .venv/installed

# The tests' tensors are tiny; with two processes torch's threads would only wait for each other.
test laws kill-table searches: export OMP_NUM_THREADS = 1

.PHONY: run test lint laws aot kill-table nightly searches fuzz audit mutation env flash-attn-4 flashinfer gpu compare tune clean

run: $(INSTALLED)
	$(BIN)/kvproof run --impl=$(IMPL) $(if $(TRACE),--trace=$(TRACE))

test: lint
	$(BIN)/pytest -n 2 --benchmark-skip
	$(MAKE) laws

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

laws: $(INSTALLED)
	$(BIN)/pytest -n 2 suites/ --impl=$(LAW_IMPLS) --tier=smoke

kill-table: $(INSTALLED)
	$(BIN)/python -m selftest.killtable $(if $(OTHERS),--others=$(OTHERS))

aot: AOT = $(BIN)/python -m kvproof_kernels.aot $(if $(ONLY),--only='$(ONLY)') --table kernels/aot.csv \
	--peers kernels/aot-peers.csv --report kernels/AOT.md
aot: $(INSTALLED) .venv/triton-$(OTHER_TRITON)
	$(AOT)
	PYTHONPATH=.venv/triton-$(OTHER_TRITON) $(AOT)

# A compiler beside the one that is installed, in a folder that comes first when it is asked for.
.venv/triton-%: | $(INSTALLED)
	$(BIN)/pip install --quiet --no-deps --target $@ triton==$*

nightly: searches fuzz audit

searches: export KVPROOF_NIGHTLY = 1
searches: $(INSTALLED)
	$(BIN)/pytest -n 2 --timeout=3600 suites/selftest/nightly -rP

# The tool is asked for here alone. What it found interesting stays in .hypothesis/fuzz, and the next run goes on from there.
FUZZ_SECONDS ?= 600
fuzz: $(INSTALLED)
	$(BIN)/pip install --quiet 'atheris==3.0.0'
	OMP_NUM_THREADS=1 $(BIN)/python -m selftest.nightly.guided_fuzz .hypothesis/fuzz \
	  -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=60 -rss_limit_mb=4096

# Strict: a package of which the service knows nothing was not audited, and that is a failure.
audit: $(INSTALLED)
	$(BIN)/python -m selftest.nightly.licences
	$(BIN)/pip install --quiet 'pip-audit>=2.7,<3'
	mkdir -p .hypothesis && $(BIN)/pip freeze --exclude-editable > .hypothesis/packages.txt
	timeout 300 $(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner=off -r .hypothesis/packages.txt

# The tool is asked for here alone: nothing else needs it, or what it brings along.
mutation: $(INSTALLED)
	$(BIN)/pip install --quiet 'cosmic-ray==8.7.0'
	nice $(BIN)/python -m selftest.nightly.mutation $(if $(MUTANTS),--sample=$(MUTANTS))

# The file names every package with its version, what they need included: nothing is left to be resolved.
env:
	@test -f 'impls/envs/$(NAME).txt' || { echo "make env NAME=..., one of: $(basename $(notdir $(wildcard impls/envs/*.txt)))"; exit 2; }
	$(PYTHON) -m venv .venvs/$(NAME)
	.venvs/$(NAME)/bin/pip install --quiet --no-compile --no-deps -r impls/envs/$(NAME).txt
	.venvs/$(NAME)/bin/pip install --quiet --no-compile --no-deps -e .

# Machine code for real chips from other people's compilers, each in its own environment: minutes, and no part of `make test`.
flash-attn-4: | .venvs/flash-attn-4
	.venvs/$@/bin/python -m selftest.nightly.compile_flash_attention_4 sm_90
	.venvs/$@/bin/python -m selftest.nightly.compile_flash_attention_4 sm_100

flashinfer: | .venvs/flashinfer
	.venvs/$@/bin/python -m selftest.nightly.compile_flashinfer

.venvs/%:
	$(MAKE) env NAME=$*

matrix: $(INSTALLED)
	$(BIN)/python -m kvproof_suites.matrix $(if $(ONLY),--impl='$(ONLY)')

# Laws, compute-sanitizer and sweep, each in a process of its own: what fails hides nothing. DRY=1 shows the commands.
# All that was written for a GPU takes part, and what is not installed is told as not run (GPU_IMPLS="triton flashinfer").
# Where time is short: ONLY=laws, ONLY=check or ONLY=sweep, and RUN=results/... to go on with what a run has left.
gpu: $(INSTALLED)
	$(BIN)/python -m kvproof_suites.gpu $(if $(GPU_IMPLS),--impl='$(GPU_IMPLS)') $(if $(TRACE),--trace=$(TRACE)) $(if $(ONLY),--only='$(ONLY)') \
	  $(if $(RUN),--results=$(RUN)) $(if $(DRY),--dry-run)

# Other people's libraries take part from the environments that were made for them (make env); who is missing is listed.
# Half an hour on a quiet machine: COMPARE='--context-len=256 --rounds=3 --requests=20' is a try.
compare: $(INSTALLED)
	$(BIN)/python -m kvproof_suites.bench.compare $(COMPARE)

# Tiles that this GPU prefers, into kernels/kvproof_kernels/tuned.toml, which launches look up.
tune: $(INSTALLED)
	$(BIN)/python -m kvproof_kernels.tune $(TUNE)

# Compiling every module of every package would take half the time of the installation, and few of them are imported.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	|| { echo "kvproof needs Python 3.11 or newer, and $(PYTHON) is not; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -e '.[dev]' -c constraints.txt
	@touch $@

clean:
	rm -rf .venv .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks dist results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
