# Everything runs in .venv; nothing outside it is touched but the model cache (~/.cache/slipstream).
PYTHON ?= python3
# On a machine without a GPU a CPU build of torch saves gigabytes:
#   make setup PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_FLAGS ?=
BIN := .venv/bin
READY := .venv/.ready
SOURCES := protos kernels target_service draft_service gateway slipstream training benchmarks
# npm's buf, if it is installed here or on the path.
BUF := $(shell PATH="node_modules/.bin:$$PATH" command -v buf)
# Hundreds of processes import the same files: what one compiled the others read.
unexport PYTHONDONTWRITEBYTECODE
# One thread a test process, and none that spins while it waits.
export OMP_WAIT_POLICY := passive
export KMP_BLOCKTIME := 0

GPU_TESTS := tests/target_service/gpu tests/kernels/gpu
# Triton keeps what it compiled where everything else is that was built.
export TRITON_CACHE_DIR := $(CURDIR)/build/triton

.PHONY: setup native demo drafter test test-kernels test-interpreted test-compiled test-slow test-sanitized gpu-check soak check protos bench bench-kernels bench-quality clean

setup: native

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -e '.[dev]'
	touch $@

# Without a compiler everything runs on the reference kernels, more slowly.
native: $(READY)
	$(BIN)/python -m kernels.native || echo "The reference kernels will be used."

demo: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/slipstream demo

# A drafter as the shipped one from nothing: record the embedded model, train on what it said,
# judge the result on what was held out. Each step goes on where it was interrupted.
WORK := build/drafter
DATA_TOKENS ?= 2000000
TRAIN_TOKENS ?= 9700000
drafter: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/slipstream record $(WORK)/recording --tokens $(DATA_TOKENS)
	$(BIN)/slipstream train $(WORK)/recording --out $(WORK)/training --tokens $(TRAIN_TOKENS) --steps 4
	$(BIN)/slipstream evaluate $(WORK)/recording --drafter $(WORK)/training/drafter --out $(WORK)/report
	$(BIN)/slipstream ship $(WORK)/training $(WORK)/report drafters/smollm2-135m-eagle3

# Units share nothing: each core has a process of them, file by file in the order they are named:
# what takes long begins early, and no core waits for another's last file. Services have the machine
# to themselves.
UNITS := OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n auto --maxprocesses 8 \
  --dist loadfile --no-loadscope-reorder
LONG_UNITS := $(patsubst %,tests/%,training benchmarks gateway target_service)
test: setup check
	$(BIN)/slipstream fetch smollm2-135m
	$(UNITS) --durations 15 $(LONG_UNITS) tests --ignore tests/end_to_end $(GPU_TESTS:%=--ignore=%)
	$(BIN)/pytest -m "not slow" --durations 15 tests/end_to_end
	$(MAKE) test-kernels

# What is for GPUs, without one: run by Triton's interpreter, and compiled for every chip, which
# are processes apart. Each half has all cores, as units have: one of them takes twice as long.
test-kernels:
	$(MAKE) test-interpreted
	$(MAKE) test-compiled

test-interpreted: setup
	TRITON_INTERPRET=1 $(UNITS) $(GPU_TESTS)

# Tests that compile share what Triton keeps, not fixtures: whoever is idle takes the next.
test-compiled: setup
	$(UNITS:loadfile=worksteal) $(GPU_TESTS)

# On a machine with a GPU. Nothing is installed: benchmarks/gpu_check says what it needs. The embedded
# model is checked itself where it was fetched, and one of its sizes is made up where it was not.
EMBEDDED := $(or $(SLIPSTREAM_CACHE),$(HOME)/.cache/slipstream)/models/smollm2-135m
gpu-check:
	mkdir -p build
	$(PYTHON) -m benchmarks.gpu_check --json build/gpu-check.json $(if $(wildcard $(EMBEDDED)/manifest.json),--embedded $(EMBEDDED))

test-slow: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/pytest -m slow

# Thirty-two sessions of all kinds for ten minutes.
soak: setup
	$(BIN)/slipstream fetch smollm2-135m
	SLIPSTREAM_SOAK_S=600 $(BIN)/pytest -s tests/end_to_end/test_soak.py

# The native kernels, built so that a wrong memory access or an undefined operation ends the test.
test-sanitized: setup
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(BIN)/python -m pytest --sanitized tests/kernels --ignore tests/kernels/gpu -k "native or amx or avx"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
ifeq ($(BUF),)
	@echo "buf is not there (npm install @bufbuild/buf): protos are not linted"
else
	$(BUF) lint
	$(BUF) format -d --exit-code
	$(BUF) breaking --against protos/v1.binpb
endif

protos: setup
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	  protos/*.proto

# Half an hour on two cores. BENCH_LOAD="--load NAME" says which drafters.
RESULTS := build/bench
BENCH_LOAD ?=
bench: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/python -m benchmarks.round_overhead
	$(BIN)/python -m benchmarks.cancel
	$(BIN)/slipstream bench compare $(BENCH_LOAD) --fixed 1x1x2 --fixed 3x1x4 --fixed 5x1x6 --json $(RESULTS)/compare.json
	$(BIN)/slipstream bench sweep $(BENCH_LOAD) --json $(RESULTS)/sweep.json
	$(BIN)/slipstream bench load $(BENCH_LOAD) --json $(RESULTS)/load.json
	$(BIN)/slipstream bench trace $(BENCH_LOAD) -p "Name five rivers." --json $(RESULTS)/trace.json

bench-kernels: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/python -m benchmarks.kernels --weights bf16 --ops
	$(BIN)/python -m benchmarks.kernels --weights int8 --ops
	$(BIN)/python -m benchmarks.kernels --weights int4

bench-quality: setup
	$(BIN)/slipstream fetch smollm2-135m
	$(BIN)/python -m benchmarks.quality --text tests/data/prose.txt

clean:
	rm -rf .venv build kernels/native/build *.egg-info .mypy_cache .ruff_cache .pytest_cache
