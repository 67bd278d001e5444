# What a developer runs. `make help` lists it, and .ci/run runs most of it.

CARGO ?= cargo
# Where Cargo builds. Whatever is fetched or built besides is kept there, too.
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo demo-cluster test test-all vtest lint doc width spelling locks deny msrv \
	aarch64 aarch64-test aarch64-run asan memcheck loom shuttle lease-sim lease-explore store-script \
	store-faults bench-store cluster-faults cluster-splits fuzz fuzz-seeds soak bench bench-quick \
	bench-cluster bench-haproxy bench-in-process bench-peers bench-replay guard guard-haproxy \
	haproxy promtool strace valkey static reproduce packages image site release packages-test \
	image-test chart-test site-test page-test crates

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

# Without optimization, which takes much longer to build and shows the same.
demo: haproxy ## two agents on one table behind a real HAProxy, and two clients over their limit
	$(CARGO) build --locked -p gcra-spoa -p demo --bin gcra-spoa --example demo
	$(TARGET)/debug/examples/demo

demo-cluster: haproxy valkey ## three hosts that share a limit, and a store that is killed
	$(CARGO) build --locked -p gcra-spoa -p demo --bin gcra-spoa --example demo_cluster
	$(TARGET)/debug/examples/demo_cluster

# A program that cannot be installed is no reason to stop: the tests that need it are skipped, and
# the last line says so.
test: ## all tests with the installed HAProxy: 6 minutes from a fresh clone
	@tests/install-haproxy.sh || :
	@tests/get-haproxy.sh 3.4 $(TARGET)/haproxy/3.4 || :
	@tests/get-promtool.sh $(TARGET)/promtool || :
	@tests/get-valkey.sh $(TARGET)/valkey || :
	@tests/install.sh strace strace || :
	@tests/install.sh curl curl || :
	@tests/install.sh systemd-analyze systemd || :
	tests/run --workspace --locked

test-all: ## the tests with HAProxy, with each version in HAPROXY_VERSIONS: about 5 minutes
	tests/matrix.sh

vtest: haproxy ## the VTest files, in the manner of HAProxy's own tests
	$(CARGO) build --locked --bin gcra-spoa
	tests/vtest/run $(TARGET)/debug/gcra-spoa

lint: width spelling locks ## format, clippy, width of lines, spelling, lock files
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path benches/peers/rust/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

width: ## lines end before column 100
	tests/width

spelling: ## typos, with the words that typos.toml allows
	tests/spelling

# A crate that takes another dependency changes the lock files of all that are built with it.
locks: ## Cargo.lock of each workspace has what its manifests want
	for manifest in Cargo.toml benches/peers/rust/Cargo.toml; do \
		$(CARGO) update --workspace --locked --quiet --manifest-path $$manifest || exit 1; done

# With examples, dependencies have the features with which `make lint` has checked them.
doc: ## the API documentation, without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --lib --examples --no-deps \
		--document-private-items --locked

loom: ## every interleaving of table and leases in small models; steps left out are noticed
	RUSTFLAGS="--cfg gcra_model --cfg gcra_loom" CARGO_TARGET_DIR=$(TARGET)/loom \
		$(CARGO) test --profile model --locked -p gcra-table --lib model

shuttle: ## random interleavings in a larger model; GCRA_SHUTTLE_RUNS=1000000 for more
	RUSTFLAGS="--cfg gcra_model --cfg gcra_shuttle" CARGO_TARGET_DIR=$(TARGET)/shuttle \
		$(CARGO) test --profile model --locked -p gcra-table --lib model

lease-sim: ## 100,000 runs of many hosts and one store, by seed, and a table of figures
	GCRA_LEASE_SCALE=$${GCRA_LEASE_SCALE:-250} $(CARGO) test --release --locked -p gcra-lease \
		--lib simulate -- --include-ignored --nocapture --test-threads 1

lease-explore: ## every interleaving of hosts and store in models of millions of states
	$(CARGO) test --release --locked -p gcra-lease --lib explore \
		-- --include-ignored --nocapture --test-threads 1

store-script: valkey ## 100,000 random asks to each Valkey and Redis, compared with the model
	GCRA_STORE_SCALE=$${GCRA_STORE_SCALE:-100} $(CARGO) test --locked -p gcra-store \
		--test servers same_as_the_model -- --nocapture

store-faults: valkey ## hosts on real servers that fail, for SECONDS (600), and one exact bucket
	GCRA_STORE_SECONDS=$(SECONDS) $(CARGO) test --release --locked -p gcra-store \
		--test servers -- policed:: --include-ignored --nocapture

bench-store: valkey ## what an ask costs the store, beside a script that counts each request
	$(CARGO) bench --locked -p gcra-store --bench cost

# GCRA_CLUSTER_SEED repeats what was chosen at random.
cluster-faults: haproxy valkey ## agents, HAProxys and stores that fail, for SECONDS (600), policed
	GCRA_CLUSTER_SECONDS=$(SECONDS) $(CARGO) test --release --locked --test cluster -- \
		faults:: --include-ignored --nocapture

# AGENT=/path is another program to try, SCENARIOS="random_cuts" what to try, SECONDS for that one.
cluster-splits: valkey ## machines as network namespaces, cut off from each other, policed; as root
	@tests/install.sh ip iproute2
	$(if $(AGENT),,$(CARGO) build --release --locked --bin gcra-spoa)
	SECONDS=$(SECONDS) tests/splits $(or $(AGENT),$(TARGET)/release/gcra-spoa) $(SCENARIOS)

# Everything from outside: frames, connections, table files, configurations, the admin port.
FUZZ_SECONDS ?= 60
# FUZZ_TARGETS="table logs" runs only these.
fuzz: ## each fuzz target for FUZZ_SECONDS (60); needs nightly
	fuzz/run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

fuzz-seeds: ## writes the inputs that fuzzing begins with, from the tests' byte vectors
	$(CARGO) run --locked -p fuzz --example seeds

asan: ## the table's tests with AddressSanitizer; needs nightly
	tests/asan

memcheck: ## the module for HAProxy's Lua, in Lua 5.3 and 5.4, in Valgrind
	tests/memcheck

msrv: ## each crate with the oldest compiler that its Cargo.toml names
	tests/msrv

aarch64: ## checks that the workspace compiles for 64-bit ARM
	tests/aarch64

aarch64-test: ## the workspace's tests for 64-bit ARM, linked with musl, in qemu: about 30 minutes
	@tests/install-haproxy.sh || :
	@tests/get-valkey.sh $(TARGET)/valkey || :
	tests/aarch64 test

aarch64-run: haproxy ## the static program of `make static` for 64-bit ARM in qemu: about 20 s
	tests/aarch64 run

# Not a part of .ci/run: installing cargo-deny alone takes 4 minutes of CPU time.
deny: ## licenses and sources of the dependencies, and versions that are there twice
	@$(CARGO) deny --version >/dev/null 2>&1 || \
		{ echo "cargo-deny is not installed; run: cargo install cargo-deny --locked" >&2; exit 1; }
	$(CARGO) deny --offline --locked check licenses bans sources

# GCRA_STRESS_SEED and GCRA_ORACLE_SEED repeat what was chosen at random.
SECONDS ?= 600
soak: ## processes on one table, killed, stopped and resized, for SECONDS (600), and the oracle
	GCRA_STRESS_SECONDS=$(SECONDS) $(CARGO) test --release --locked --test stress -- --nocapture
	GCRA_ORACLE_SECONDS=$(SECONDS) $(CARGO) test --release --locked --test daemon -- oracle:: \
		--nocapture
	GCRA_SHUTTLE_RUNS=1000000 $(MAKE) shuttle

BENCH = $(CARGO) bench --locked -p benches
bench: ## all benchmarks but bench-haproxy; rewrites two tables of docs/BENCHMARKS.md
	$(BENCH) --bench table -- --write
	$(BENCH) --bench reload -- --write
	$(BENCH) --bench agent
	$(BENCH) --bench fairness
	$(BENCH) --bench full_table
	$(BENCH) --bench stats
	$(MAKE) bench-peers

# The agents that ours is compared with are only compiled.
bench-quick: haproxy valkey ## each bench for some seconds: that it works, not what it says
	@tests/install.sh wrk wrk
	$(CARGO) test --locked --workspace --bench '*' -- --quick
	benches/replay.sh --quick
	$(CARGO) check --locked --manifest-path benches/peers/rust/Cargo.toml \
		--target-dir $(TARGET)/peers

bench-cluster: valkey ## leases beside a script call per request; with CLUSTER_ARGS
	$(BENCH) --bench cluster -- $(CLUSTER_ARGS)

bench-replay: ## replay of a log beside awk and GoAccess, as whole programs
	benches/replay.sh

bench-peers: ## the agent beside published ones; with PEERS_ARGS
	benches/peers/build
	$(BENCH) --bench peers -- $(PEERS_ARGS)

# GCRA_GO_PEER=/path is another agent to compare with.
BENCH_ARGS ?= --write
bench-haproxy: ## what limiting costs HAProxy, with wrk; BENCH_ARGS= writes nothing
	for version in $${HAPROXY_VERSIONS:-2.6 3.0 3.2 3.4}; do \
		tests/get-haproxy.sh $$version $(TARGET)/haproxy/$$version || exit 1; done
	$(BENCH) --bench haproxy -- $(BENCH_ARGS)

bench-in-process: ## HAProxy that decides itself, with wrk; BENCH_ARGS= writes nothing
	@tests/install.sh wrk wrk
	for version in $${HAPROXY_VERSIONS:-2.6 3.0 3.2 3.4}; do \
		tests/get-haproxy.sh $$version $(TARGET)/haproxy/$$version || exit 1; done
	$(CARGO) build --locked --release -p gcra-lua -p gcra-spoa
	$(CARGO) test --locked -p benches --bench in_process_time -- $(BENCH_ARGS)

guard: valkey ## instructions per NOTIFY against their bounds; GUARD=--write writes the page
	@tests/install.sh valgrind valgrind
	CARGO_INCREMENTAL=0 $(CARGO) bench --locked --profile guard -p guard -- $(GUARD)

# HAPROXY_VERSIONS="2.6 3.4" counts with these.
guard-haproxy: ## HAProxy's instructions per request against their bounds; GUARD=--write, too
	@tests/install.sh valgrind valgrind
	for version in $${HAPROXY_VERSIONS:-2.6 3.0 3.2 3.4}; do \
		tests/get-haproxy.sh $$version $(TARGET)/haproxy/$$version || exit 1; done
	$(CARGO) build --locked --release -p gcra-lua
	$(CARGO) test --locked -p benches --bench guard_haproxy -- $(GUARD)
	$(CARGO) test --locked -p benches --bench in_process -- $(GUARD)

haproxy: ## installs an HAProxy to test with, if there is none
	@tests/install-haproxy.sh

promtool: ## fetches promtool, if there is none
	@tests/get-promtool.sh $(TARGET)/promtool

valkey: ## fetches Valkey and Redis servers to test a store with
	@tests/get-valkey.sh $(TARGET)/valkey

strace: ## installs strace, if there is none
	@tests/install.sh strace strace

# The static programs that packages, image and tests are made of.
DIST ?= $(TARGET)/dist

static: ## the static programs for x86-64 and 64-bit ARM, with man pages, into target/dist
	deploy/release/static x86_64
	deploy/release/static aarch64

# In an empty folder: Cargo takes what it has of a package with the same name and version.
CARGO_REGISTRY := $(or $(CARGO_HOME),$(HOME)/.cargo)/registry

crates: ## what cargo publish would publish, and that it builds from that alone
	rm -rf $(TARGET)/crates $(CARGO_REGISTRY)/src/-*/gcra-* $(CARGO_REGISTRY)/src/-*/spop-*
	$(CARGO) publish --dry-run --locked --allow-dirty --target-dir $(TARGET)/crates \
		-p spop-codec -p spop-agent -p gcra-lease -p gcra-table -p gcra-store -p haproxy-log

reproduce: ## builds the static programs of what is committed twice, and compares the bytes
	deploy/release/reproduce x86_64
	deploy/release/reproduce aarch64

packages: ## .deb and .rpm of the programs in DIST (target/dist), into target/packages
	deploy/packages/build $(DIST) $(TARGET)/packages

image: ## the container image of the programs in DIST, into target/image
	deploy/container/build $(DIST) $(TARGET)/image

site: ## the documentation site, in the target folder: site/html/index.html
	site/build

release: ## all files of the release VERSION, or of what is there, into target/dist/release
	deploy/release/release $(or $(VERSION),--snapshot)

packages-test: haproxy ## installs, upgrades and removes the packages in a Debian root
	tests/packages/run $(DIST)

image-test: haproxy ## builds the image twice, compares, reads it, and runs it behind HAProxy
	tests/container/run $(DIST)

chart-test: haproxy ## the Helm chart and the examples for Kubernetes, with the program in DIST
	tests/kubernetes/run $(DIST)

site-test: haproxy ## builds the site, checks it, and runs its quick starts with DIST
	tests/site/run $(DIST)

page-test: ## the live page in Chromium, with axe-core: about a minute; pictures in target/page
	$(CARGO) build --locked --bin gcra-spoa
	tests/page/run $(TARGET)/debug/gcra-spoa $(TARGET)/page
