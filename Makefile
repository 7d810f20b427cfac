# Every target sets up what it needs in .venv; nothing is installed outside this directory.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How many tests run at a time, besides those that mostly wait (tests/beside.py): three for two cores. JOBS=0 runs them here,
# for a debugger.
JOBS ?= 3

.PHONY: demo test check bench storm filesystems docs clean

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group test
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group check
	touch $@

demo: $(VENV)/.test
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(or $(ARGS),-m 'not long' $(HERE))
# What runs on this system alone.
HERE := --ignore=tests/platforms --ignore=tests/machines

.PHONY: long
# The tests that `make test` leaves out: whole enumerations, of which it runs a part (tests/long.py).
long: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m long $(HERE) $(ARGS)

.PHONY: windows
# What Python for Windows does under Wine: apt-get install --no-install-recommends wine wine64. make windows SECONDS=300 has a
# storm of kills for five minutes in all; with JOBS=0 ARGS="-s -k lose_no_increment", nothing but that.
windows: $(VENV)/.test
	$(if $(SECONDS),HOLDFAST_STORM_SECONDS=$(SECONDS)) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/platforms $(ARGS)

.PHONY: windows-suite bench-windows
# The unit and conformance suites in Python for Windows, under Wine, but for what tests/platforms/left_out.py names:
# ARGS="tests/unit/test_queue.py -v" for a part; HOLDFAST_TEST_WINDOWS=3.13 for another Python, with `windows`, too.
windows-suite: $(VENV)/.test
	$(BIN)/python tests/platforms/suite.py --jobs $(JOBS) $(ARGS)

# Locks on Windows beside filelock's and portalocker's, under Wine.
bench-windows: $(VENV)/.test
	$(BIN)/python tests/platforms/wine.py bench/windows.py $(ARGS)

.PHONY: kinds
# Locks of other programs, made by these (docs/kinds.md). Those that are missing are a failure here, and else skipped:
# apt-get install --no-install-recommends git vim-tiny vim liblockfile-bin dpkg emacs-nox borgbackup restic cargo
# libreoffice-writer-nogui firefox-esr passwd; npm 11; terraform or tofu. pnpm and uv are fetched.
kinds: $(VENV)/.test
	$(VENV)/kinds/bin/uv --version >/dev/null 2>&1 || { $(PYTHON) -m venv $(VENV)/kinds && $(VENV)/kinds/bin/python -m pip install --quiet uv; }
	PATH="$$PATH:$(CURDIR)/$(VENV)/kinds/bin" HOLDFAST_TEST_KINDS=all \
	    $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit/test_kinds.py tests/cli/test_kinds.py $(ARGS)

.PHONY: machines
# Several Linux kernels that share a directory over NFS (docs/howto/shared-storage.md): needs root. make machines SECONDS=60 has
# all filesystems, with kernels that are killed, and takes an hour; HOLDFAST_MACHINES_REPORT=FILE keeps what it measures.
# apt-get install --no-install-recommends user-mode-linux nfs-kernel-server kmod samba cifs-utils diod glusterfs-server glusterfs-client
machines: $(VENV)/.test
	$(if $(SECONDS),HOLDFAST_MACHINES_SECONDS=$(SECONDS)) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/machines $(ARGS)

.PHONY: failover
# Locks on a PostgreSQL cluster whose leader Patroni replaces (docs/howto/patroni.md). Ten minutes; Patroni is fetched. As root,
# the servers run as postgres, who has to reach this directory and FAILOVER_PYTHON. HOLDFAST_FAILOVER_REPORT=FILE keeps what it measures.
# apt-get install --no-install-recommends postgresql etcd-server python3-venv
FAILOVER_PYTHON ?= /usr/bin/python3
failover: $(VENV)/.test
	$(VENV)/patroni/bin/patroni --version >/dev/null 2>&1 || { $(FAILOVER_PYTHON) -m venv $(VENV)/patroni && \
	    $(VENV)/patroni/bin/python -m pip install --quiet 'patroni[etcd3]>=4.1' 'psycopg[binary]'; }
	HOLDFAST_TEST_PATRONI=$(CURDIR)/$(VENV)/patroni/bin \
	    $(BIN)/python -m pytest -n 2 --dist worksteal tests/engines/postgresql/test_patroni.py $(ARGS)

$(VENV)/.coverage: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group coverage
	touch $@

.PHONY: coverage coverage-report
# What the tests reach of each module, over all processes that they start (docs/testing.md): twice as long as the tests alone.
# ARGS for a part of them. The data is where other users may write, as some tests are another user.
coverage: $(VENV)/.coverage
	data=$$(mktemp -d) && chmod 1777 $$data && trap "rm -rf $$data" EXIT && export COVERAGE_FILE=$$data/measured && \
	    { $(BIN)/python -m coverage run --include '$(CURDIR)/src/*' -m pytest -n $(JOBS) --dist worksteal $(or $(ARGS),$(HERE)); tests=$$?; \
	    mkdir -p dist/coverage && $(BIN)/python -m coverage combine --quiet --data-file=dist/coverage/measured $$data && \
	    $(BIN)/python tests/reach/report.py dist/coverage/measured $(if $(ARGS),--part) && exit $$tests; }

# The last measurement once more, against what unreached.toml says now. Nothing in src/ may have changed since.
coverage-report: $(VENV)/.coverage
	$(BIN)/python tests/reach/report.py dist/coverage/measured

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/packaging/typed
	$(BIN)/pyright

# A current pip: the start scripts that older ones write import `re`, which costs as much as half the bare interpreter.
bench: $(VENV)/.test
	$(BIN)/python -m venv --upgrade-deps $(VENV)/bench
	$(VENV)/bench/bin/python -m pip install --quiet . -r bench/peers.txt
	$(VENV)/bench/bin/python bench/run.py $(ARGS)

.PHONY: bench-report bench-docs
# The run whose numbers the documentation shows: all of it, on a quiet machine. bench-docs puts them there.
bench-report:
	$(MAKE) bench ARGS="--json docs/benchmarks.json --html dist/benchmarks.html $(ARGS)"

# Measures nothing: renews docs/benchmarks.md, docs/benchmarks.svg and the README from the numbers of that run.
bench-docs: $(VENV)/.test
	$(BIN)/python bench/run.py --from docs/benchmarks.json --docs --html dist/benchmarks.html

.PHONY: comparison
# The table of the README: each cell is tried out with the libraries themselves.
comparison: $(VENV)/.test
	$(BIN)/python -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip install --quiet . -r bench/peers.txt
	$(VENV)/bench/bin/python bench/comparison.py README.md

.PHONY: bench-engines
# PostgreSQL and etcd, started by the benchmark itself: apt-get install postgresql etcd-server
bench-engines: $(VENV)/.test
	$(BIN)/python -m venv $(VENV)/bench-engines
	$(VENV)/bench-engines/bin/python -m pip install --quiet '.[postgresql,etcd]' -r bench/peers-engines.txt
	$(VENV)/bench-engines/bin/python bench/engines.py $(ARGS)

# Contenders of every kind, killed, stopped and forked, for each protocol: make storm SECONDS=600 is ten minutes in all.
storm: $(VENV)/.test
	HOLDFAST_STORM_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/process/test_storm.py $(ARGS)

.PHONY: interrupts
# Each call interrupted before each of its bytecodes, once and twice: make interrupts SECONDS=60 is a minute for each of 20 runs.
interrupts: $(VENV)/.test
	HOLDFAST_TEST_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s tests/process/test_every_bytecode.py $(ARGS)

.PHONY: attack
# Another user swaps all it can beside root's contenders, clean --yes, reap and doctor (docs/security.md): needs root.
attack: $(VENV)/.test
	HOLDFAST_ATTACK_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/process/test_attack.py $(ARGS)

.PHONY: crowd
# A thousand waiters of one lock on etcd, in one process and in fifty, twice in a row beside busy loops: make crowd CROWD=1000.
CROWD ?= 1000
crowd: $(VENV)/.test
	HOLDFAST_TEST_CROWD=$(CROWD) $(BIN)/python -m pytest -s tests/engines/etcd/test_etcd_crowd.py -k "a_crowd or reads_no_more" $(ARGS)

.PHONY: flaky
# The tests again and again, in random order, beside busy loops (docs/testing.md). SEED=N for the order of a round again.
TIMES ?= 20
LOAD ?= 4
STALLS ?= 0
flaky: $(VENV)/.test
	$(BIN)/python tests/flaky.py --times $(TIMES) --jobs $(JOBS) --load $(LOAD) --stalls $(STALLS) $(if $(SEED),--seed $(SEED)) -- $(or $(ARGS),$(HERE))

.PHONY: variants
# The suite once more with portable Python only, and without each ability (tests/README.md): VARIANTS="generic flock" for some.
VARIANTS ?= generic posix unnamed unnamed,link proc flock events
variants: $(VENV)/.test
	@for variant in $(VARIANTS); do echo "== $$variant"; \
	    case $$variant in generic|posix) set -- HOLDFAST_OS=$$variant;; *) set -- HOLDFAST_WITHOUT=$$variant;; esac; \
	    env "$$@" $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(or $(ARGS),$(PARTS)) || failed="$$failed $$variant"; done; \
	    test -z "$$failed" || { echo "failed:$$failed"; exit 1; }
PARTS := tests/unit tests/process tests/cli tests/conformance tests/sim

.PHONY: posix
# What macOS and the BSDs have, on Linux: all tests, then a minute's storm (docs/platforms.md). Twenty minutes.
posix: $(VENV)/.test
	HOLDFAST_OS=posix $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(or $(ARGS),--ignore=tests/platforms)
	HOLDFAST_OS=posix HOLDFAST_STORM_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest -q -s tests/process/test_storm.py

.PHONY: sim
# The engine in a simulated kernel, in as many interleavings as there is time for: make sim SECONDS=600.
sim: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m sim --seconds $(or $(SECONDS),60) --jobs $(shell nproc)

.PHONY: model
# The models of the lock file and of the queue, all runs of each, and their mutants (docs/simulation.md): apt-get install spin gcc
model:
	$(PYTHON) model/check.py $(if $(ARGS),--only $(ARGS))

# The tests of the engine on each filesystem: needs root, and minutes for each. PLACES="xfs btrfs" for some. On FUSE, which
# has neither unnamed files nor events, most tests of the suites mean nothing; there it is a longer run of the short ones.
PLACES ?= tmpfs ext4 xfs btrfs overlay upper bind fuse
filesystems: $(VENV)/.test
	@for place in $(PLACES); do echo "== $$place"; \
	    case $$place in fuse) words="tests/process/on_filesystem.py 60 0";; \
	    *) words="-m pytest -q -n $(JOBS) --dist worksteal tests/process tests/unit $(ARGS)";; esac; \
	    $(BIN)/python tests/process/filesystem.py $$place $(abspath $(BIN))/python $$words \
	        || [ $$? -eq 77 ] || failed="$$failed $$place"; done; \
	    test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

# The pages are plain Markdown; this makes a site of them, and follows every link in it. The tests of pages are in tests/docs.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/_site/check.py site
	@echo "the site: $(CURDIR)/site/index.html"

.PHONY: prose
# How the pages read: limits for sentences and words (docs/_site/words.toml), and proselint. ARGS=--figures: a row for each page.
prose: $(VENV)/.test
	$(BIN)/python docs/_site/prose.py $(ARGS)

.PHONY: house
# docs/house.svg: the rooms of the house, and who imports whom, from the source.
house: $(VENV)/.test
	$(BIN)/python docs/_site/house.py docs/house.svg

.PHONY: man completions
# From what --help is made of: dist/man/*.1, and dist/completions for bash, zsh and fish.
man: $(VENV)/.test
	$(BIN)/python docs/_site/manual.py dist/man

completions: $(VENV)/.test
	mkdir -p dist/completions
	$(BIN)/holdfast completion bash > dist/completions/holdfast
	$(BIN)/holdfast completion zsh > dist/completions/_holdfast
	$(BIN)/holdfast completion fish > dist/completions/holdfast.fish

clean:
	rm -rf $(VENV) dist build site
