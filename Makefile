# SPDX-License-Identifier: Apache-2.0

# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each first prepares what is missing (.ci/workspace.py says what), then runs.

PYTHON ?= python3
# DEMO='--acts kill' runs a part of it; see lerobot-serve demo --help
DEMO ?=
# TEST_JOBS=0 runs the tests one after the other, with their output in order
# BENCH='round_trip --rounds 100' measures one; BENCH=--help tells more
BENCH ?=
TEST_JOBS ?= auto
ON_ALL_CORES = -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
WORKSPACE = @$(PYTHON) .ci/workspace.py
export ROS TORCH

.PHONY: help demo test slow release unit lint golden bench docs shell clean

help:
	@echo "make demo    run the simulated rollout: robots, a kill, a promotion, a rollback"
	@echo "make test    lint and the tests, but the slow ones"
	@echo "make slow    the slow ones: whole demos, installations, long simulations"
	@echo "make release what takes minutes: learning loops, sites in trouble, simulated canaries"
	@echo "make unit    the tests that need no ROS (seconds)"
	@echo "make lint    ruff and mypy"
	@echo "make golden  rewrite what must not change unnoticed: test/golden/"
	@echo "make bench   measure, into out/bench/"
	@echo "make docs    write the generated pages of docs/, and build the site: out/site/index.html"
	@echo "make shell   a shell in which ROS 2 and both packages are found"
	@echo "make clean   remove what was built and installed"
	@echo
	@echo "ROS=kilted   another distribution than jazzy, when none is sourced"
	@echo "TEST_JOBS=0  tests one after the other; default: two more at once than there are cores"
	@echo "TORCH=none   no torch (a robot needs none); TORCH=cuda for a GPU"

demo:
	$(WORKSPACE) lerobot-serve demo $(DEMO)

test: lint
	$(WORKSPACE) python -m pytest test -m "not (slow or alone or release)" $(ON_ALL_CORES)

slow:
	$(WORKSPACE) python -m pytest test -m slow $(ON_ALL_CORES)
	$(WORKSPACE) python -m pytest test -m alone -n 2

release:
	$(WORKSPACE) python -m pytest test -m release

unit:
	$(WORKSPACE) python -m pytest test/unit -m "not (slow or alone or release)" $(ON_ALL_CORES)

lint:
	$(WORKSPACE) sh -c "ruff check . && ruff format --check . && mypy"

golden:
	$(WORKSPACE) sh -c 'cd test && python -m support.contract.golden --write'
	$(WORKSPACE) python -m pytest test -m golden --write-golden

bench:
	$(WORKSPACE) python -m benchmarks $(BENCH)

docs:
	$(WORKSPACE) lerobot-serve docs --write
	@$(PYTHON) .ci/site.py

shell:
	$(WORKSPACE) sh .ci/shell.sh

clean:
	rm -rf .workspace out
