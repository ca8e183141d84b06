# Every target does its own set-up: a virtual environment in .venv, pinned by constraints.txt, and Java for Spark.
SHELL := /bin/bash
PY := .venv/bin/python
TANDEMMQ := .venv/bin/tandemmq
# With SPEEDUPS=1 the tests, and the servers that they start, use the kernel that `make speedups` tests.
KERNEL := $(CURDIR)/build/speedups
PYTEST = $(if $(SPEEDUPS),TANDEMMQ_TEST_SPEEDUPS=1 PYTHONPATH=$(KERNEL)) $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
ARGS ?=
# Without compiled files each process that a test starts would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: console coverage-core consumer-types boards docs image packaging package changelog coverage setup-maintain help demo test test-long test-all interop metrics grpc client-both client-soak lint types contracts check crash power sim elected proxied raft plants fuzz soak failover strangers spark costs bench growth bench-quick bench-kafka bench-grpc bench-client setup-demo setup-dev clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup-demo:
	@scripts/setup venv spark,console
	@scripts/setup java

setup-dev:
	@scripts/setup venv spark,delta,iceberg,dev
	@scripts/setup java

demo: setup-demo ## Run the main job: 336,776 flights through master, slave and Spark into a table (ARGS="--chaos --keep")
	@$(TANDEMMQ) demo $(ARGS)

test: JOBS ?= 3
test: setup-dev $(if $(SPEEDUPS),kernel) ## Run the tests of every part, in JOBS=3 processes (ARGS="tests/unit -k name" for some, JOBS=0 in this one; SPEEDUPS=1: with the optional kernel)
	@$(PYTEST) $(if $(ARGS),$(ARGS),-m "not interop and not grpc and not console and not long")

test-long: JOBS ?= 3
test-long: setup-dev $(if $(SPEEDUPS),kernel) ## Run the rest: processes that are killed for minutes, all of the Spark pipelines
	@$(PYTEST) -m "long and not interop and not grpc and not console"

test-all: test test-long ## Both

interop: setup-dev ## Run RocketMQ's Java clients, tools, brokers of two lines against ours (needs a JDK and Maven; ARGS="-k Retry" for some)
	@scripts/setup jdk
	@TANDEMMQ_REQUIRE_INTEROP=1 $(PY) -m pytest -m interop tests/interop $(ARGS)

metrics: setup-dev ## Compare the metrics of our broker and of a Java 5.5 broker after the same load (needs a JDK and Maven; about a minute)
	@scripts/setup jdk
	@PYTHONPATH=tests:tests/interop $(PY) tests/interop/metrics_beside.py

grpc: setup-dev ## Run the official gRPC clients in five languages through our proxy, before our broker and Java's (needs Go, Node, Rust, a JDK and Maven; ARGS=--chaos kills proxies and masters under gRPC load instead, and needs none of these)
	@$(if $(findstring --chaos,$(ARGS)),,scripts/setup jdk)
	@$(if $(findstring --chaos,$(ARGS)),PYTHONPATH=tests $(PY) tests/faults/grpc_chaos.py,TANDEMMQ_REQUIRE_INTEROP=1 $(PY) -m pytest -m grpc tests/interop) $(ARGS)

console: ## Drive every page and action of the console in Chromium, before our cluster and Java's (needs Chromium, a JDK and Maven; ARGS="-k topics" for some)
	@scripts/setup venv spark,delta,iceberg,dev,browser
	@scripts/setup jdk
	@scripts/setup chromium
	@TANDEMMQ_REQUIRE_CONSOLE=1 $(PY) -m pytest -m console tests/console $(ARGS)

.PHONY: networks
networks: setup-dev ## Run clients in Java, Go, Python, Spark and gRPC in three networks of this machine, before servers with IPv6 only (needs root, Go, a JDK and Maven; ARGS="--only stay")
	@scripts/setup jdk
	@PYTHONPATH=tests:tests/interop $(PY) tests/interop/network_proof.py $(ARGS)

.PHONY: frameworks
frameworks: setup-dev ## Run the cases of FastStream, kombu, Celery and Taskiq, with their own tests and lost masters; ends with FRAMEWORKS OK (25 minutes)
	@scripts/setup sources kombu celery taskiq
	@scripts/setup redis
	@TANDEMMQ_FRAMEWORK_SOURCES=build PYTHONPATH=tests $(PY) tests/frameworks/prove_frameworks.py $(ARGS)

client-both: setup-dev ## Run every case of the Python client against our servers and RocketMQ's (needs a JDK and Maven)
	@scripts/setup jdk
	@TANDEMMQ_REQUIRE_INTEROP=1 TANDEMMQ_CLIENT_BOTH=1 $(PY) -m pytest -m interop tests/interop/test_interop_client.py tests/interop/test_interop_client_*.py $(ARGS)

client-soak: MESSAGES ?= 10000000
client-soak: setup-dev ## Put 10 million messages through a push consumer whose connections break; what grew, what is left (MESSAGES=n, ARGS=--threads)
	@PYTHONPATH=tests $(PY) tests/faults/client_soak.py --messages $(MESSAGES) $(ARGS)

lint: setup-dev ## Check style and formatting
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: setup-dev ## Check types (mypy --strict)
	@$(PY) -m mypy

contracts: setup-dev ## Check who may import whom
	@.venv/bin/lint-imports

crash: SEEDS ?= 1000
crash: setup-dev ## Crash a simulated store in 1000 random lives and check what is left (SEEDS=n, ARGS="--seed 7 --trace")
	@$(PY) -m sim.crash --seeds $(SEEDS) $(ARGS)

power: CUTS ?= 100
power: setup-dev ## Take the power from real brokers under load 100 times in each flush mode (CUTS=n; needs a C compiler)
	@TANDEMMQ_POWER_CUTS=$(CUTS) $(PY) -m pytest -s tests/crash/test_power_cuts.py $(ARGS)

sim: SEEDS ?= 1000
sim: setup-dev ## Plant ten bugs of elections, then run 1000 simulated clusters and 100 with gRPC proxies (SEEDS=n, ARGS="--seed 7 --trace" runs that alone)
	@$(if $(ARGS),,$(PY) -m sim.plants --elections)
	@$(PY) -m sim.cluster.run --seeds $(SEEDS) $(ARGS)
	@$(if $(ARGS),,$(PY) -m sim.proxied.run --seeds $$(( ($(SEEDS) + 9) / 10 )))

elected: SEEDS ?= 500
elected: setup-dev ## Run 500 simulated clusters whose brokers are elected through crashes and partitions (SEEDS=n, ARGS="--seed 7 --trace")
	@$(PY) -m sim.elected.run --seeds $(SEEDS) $(ARGS)

proxied: SEEDS ?= 500
proxied: setup-dev ## Run 500 simulated clusters with gRPC proxies and their clients (SEEDS=n, ARGS="--seed 7 --trace")
	@$(PY) -m sim.proxied.run --seeds $(SEEDS) $(ARGS)

raft: SEEDS ?= 2000
raft: setup-dev ## Run 2000 simulated Raft groups through crashes and partitions (SEEDS=n, ARGS="--seed 7 --trace")
	@$(PY) -m sim.raft.run --seeds $(SEEDS) $(ARGS)

plants: setup-dev ## Plant bugs of one line, one at a time, and have the proofs find each (half an hour or more; ARGS="--only text")
	@$(PY) -m sim.plants $(ARGS)

soak: MINUTES ?= 10
soak: setup-dev ## Run a master and a slave through random faults for 10 minutes and compare what was promised (MINUTES=n, ARGS="--seed 7")
	@PYTHONPATH=tests $(PY) tests/faults/soak.py --minutes $(MINUTES) $(ARGS)

failover: ROUNDS ?= 60
failover: SEED ?= 1
failover: MINUTES ?= 30
failover: setup-dev ## Replace the master of three brokers through 60 faults under load; what was lost, for how long (ROUNDS=n SEED=n MINUTES=n ARGS=--spark or --java)
	@$(if $(findstring --java,$(ARGS)),scripts/setup jdk)
	@PYTHONPATH=tests $(PY) tests/faults/failover.py --rounds $(ROUNDS) --seed $(SEED) --minutes $(MINUTES) $(ARGS)

strangers: setup-dev ## Attack an elected group with access control in eleven ways while a producer sends (three minutes; ARGS="--only word")
	@PYTHONPATH=tests $(PY) tests/faults/strangers.py $(ARGS)

spark: KILLS ?= 20
spark: ROWS ?= 1000000
spark: SEED ?= 1
spark: AUDIT_ROWS ?= 0
spark: setup-dev ## Kill the pipelines 20 times under load, count what arrived, audit it, plant faults (needs a JDK and Maven; KILLS=n ROWS=n SEED=n AUDIT_ROWS=n)
	@scripts/setup s3
	@scripts/setup jdk
	@TANDEMMQ_REQUIRE_S3=1 $(PY) -m pytest tests/unit/spark tests/spark
	@$(PY) -m pytest -m interop tests/spark
	@$(PY) -m pytest -s tests/spark_proof/prove_two_workers.py
	@PYTHONPATH=tests $(PY) tests/spark_proof/prove_spark.py --kills $(KILLS) --rows $(ROWS) --seed $(SEED) --audit-rows $(AUDIT_ROWS) $(ARGS)

fuzz: FRAMES ?= 1000000
fuzz: setup-dev ## Send a million mutated frames to a name server, a broker, its HA port and a gRPC proxy (FRAMES=n, ARGS="--seed 7")
	@$(PY) -m sim.fuzz.run --frames $(FRAMES) $(ARGS)

.PHONY: kernel speedups
kernel: setup-dev
	@rm -rf $(KERNEL) packaging/speedups/build
	@CFLAGS=-Werror $(PY) -m pip install --quiet --no-deps --target $(KERNEL) ./packaging/speedups

speedups: SEEDS ?= 400
speedups: kernel ## Build the optional kernel in build/speedups, test it against its twins, again with sanitizers (SEEDS=n; needs gcc)
	@rm -rf build/speedups-checked && mkdir -p build/speedups-checked
	@gcc -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -shared -fPIC -DSPEEDUPS_VERSION='"checked"' -I"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))')" -o build/speedups-checked/tandemmq_speedups.so packaging/speedups/tandemmq_speedups.c
	@TANDEMMQ_TWIN_SEEDS=$(SEEDS) PYTHONPATH=$(KERNEL) $(PY) -m pytest -n 0 tests/property/test_speedups_twins.py tests/property/test_send_blocks.py tests/property/test_slave_runs.py tests/unit/runtime/test_speedups.py $(ARGS)
	@TANDEMMQ_TWIN_SEEDS=$(SEEDS) PYTHONPATH=build/speedups-checked PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" $(PY) -m pytest -n 0 -k "not memory" tests/property/test_speedups_twins.py tests/property/test_slave_runs.py $(ARGS)
	@echo "SPEEDUPS OK"

costs: setup-dev ## Count the steps a broker takes per message, beside what it took before (seconds, on any machine; ARGS="--where pull")
	@$(PY) -m costs $(ARGS)

check: lint types contracts costs test ## Lint, types, contracts, costs and tests

bench: ROUNDS ?= 3
bench: CASES ?=
bench: JAVA ?= 5.5.0
bench: kernel ## Measure ours and Java RocketMQ in turns, then Kafka and NATS, write docs/benchmarks.md (an hour on a quiet machine; ROUNDS=n; JAVA=version; CASES=text prints some)
	@scripts/setup jdk
	@PYTHONPATH=$(KERNEL) $(PY) -m bench java --java-version $(JAVA) --rounds $(ROUNDS) $(if $(CASES),--case "$(CASES)",--out docs) $(ARGS)

bench-grpc: setup-dev ## Measure our gRPC proxy and Java RocketMQ's in turns, before one broker (needs a JDK and Maven; about 10 minutes; ARGS="--java-broker")
	@scripts/setup jdk
	@$(PY) -m bench grpc $(ARGS)

bench-client: ROUNDS ?= 3
bench-client: setup-dev ## Measure our Python client, RocketMQ's Java client, aiokafka and nats.py in turns, write docs/client/speed.md (needs a JDK, Maven and nats-server; 15 minutes; ROUNDS=n)
	@scripts/setup jdk
	@scripts/setup peers
	@$(PY) -m bench client --rounds $(ROUNDS) $(or $(ARGS),--out docs)

growth: setup-dev ## Measure what an operation costs as there is more of everything, write docs/costs.md (ARGS="--only topics" prints some)
	@$(PY) -m growth $(or $(ARGS),--out docs)

bench-quick: setup-demo ## Print messages per second, latency and processor time per message (under 2 minutes)
	@$(TANDEMMQ) bench $(ARGS)

bench-kafka: setup-demo ## Read the same messages with Spark from Kafka and from TandemMQ and compare (needs Maven; about 5 minutes)
	@$(PY) -m bench kafka $(ARGS)

setup-maintain:
	@scripts/setup venv spark,delta,iceberg,dev,maintain

package: setup-maintain ## Build the wheels and source distributions, of the optional kernel too, check them, and try the wheels in environments of their own
	@rm -rf dist build/try && $(PY) -m build --outdir dist . && $(PY) -m twine check --strict dist/*
	@python3 -m venv build/try && build/try/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	@build/try/bin/tandemmq --version && rm -rf build/try
	@$(PY) -m build --wheel --outdir dist/client packaging/client && python3 -m venv build/try
	@build/try/bin/python -m pip install --quiet -c constraints.txt dist/client/*.whl
	@build/try/bin/python -c 'import tandemmq.client as client; [getattr(client, name) for name in client.__all__]' && rm -rf build/try
	@CFLAGS=-Werror $(PY) -m build --outdir dist/speedups packaging/speedups && $(PY) -m twine check --strict dist/speedups/*
	@$(PY) -m venv build/try && build/try/bin/python -m pip install --quiet -c constraints.txt "$$(ls dist/*.whl)[speedups]" dist/speedups/*.whl
	@export TANDEMMQ_STORE=build/try/cluster; build/try/bin/tandemmq up --minimal --port-base auto --detach; build/try/bin/tandemmq doctor | grep 'tandemmq-speedups at .* is used'; used=$$?; build/try/bin/tandemmq down; exit $$used
	@rm -rf build/try

consumer-types: ## Check an application's types against the wheel of `make package`: mypy --strict and pyright, in an environment of its own
	@ls dist/*.whl >/dev/null 2>&1 || $(MAKE) package
	@rm -rf build/consumer && mkdir -p build && cp -r tests/consumer_types build/consumer && python3 -m venv build/consumer/.venv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 build/consumer/.venv/bin/python -m pip install --quiet -c constraints.txt "$$(ls dist/*.whl)[spark]" -r tests/consumer_types/requirements.txt
	@cd build/consumer && .venv/bin/mypy --strict --config-file= *.py && .venv/bin/pyright --pythonpath .venv/bin/python

changelog: setup-maintain ## Show what the changes in changes/ would add to CHANGELOG.md
	@$(PY) -m towncrier build --draft --version next

coverage: setup-maintain ## Run the unit, property and scenario tests and print how much of the package they execute
	@$(PY) -m pytest -n 2 --dist loadfile --cov --cov-report=term --cov-report=html:build/coverage -m "not interop and not grpc and not console and not long and not spark" tests/unit tests/property tests/scenario $(ARGS)

boards: setup-dev ## Draw the Grafana board from a cluster under load that a real Prometheus scrapes; ends with BOARDS OK (needs Debian's prometheus; 3 minutes)
	@$(PY) -m boards $(ARGS)

image: ## Build the container image without a daemon, and run a cluster in it; ends with IMAGE OK (needs Debian and root; 5 minutes at first)
	@scripts/image

packaging: ## Check the files in packaging/: the Dockerfile, the Kubernetes manifests, the YAML, the confinement of the systemd units
	@scripts/setup linters
	@.venv-linters/bin/hadolint packaging/Dockerfile
	@for file in packaging/kubernetes*.yaml; do .venv-linters/bin/kubernetes-validate --strict --quiet $$file || exit 1; done
	@.venv-linters/bin/yamllint --strict packaging
	@for unit in packaging/*.service; do systemd-analyze security --offline=true --threshold=20 --no-pager $$unit | tail -n 1; test $${PIPESTATUS[0]} = 0 || exit 1; done

docs: ## Build the site of the documents and the API in build/site; a broken link or reference fails
	@scripts/setup venv docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site/index.html"

coverage-core: setup-maintain ## Run the unit tests of the pure parts; fails when they execute less than 95 % of their lines and branches
	@$(PY) -m pytest -q --cov=tandemmq.protocol --cov=tandemmq.consensus.core --cov=tandemmq.replication.core --cov-report=term --cov-fail-under=95 tests/unit/protocol tests/unit/consensus tests/unit/replication $(ARGS)

clean: ## Remove the virtual environments and caches
	rm -rf .venv .venv-s3 .venv-linters .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
