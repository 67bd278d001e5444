# The two commands of the README, and the longer checks.

CARGO ?= cargo

.PHONY: demo test test-all vtest lint doc loom shuttle fuzz fuzz-seeds soak bench bench-haproxy bench-peers guard haproxy promtool

# Two agents on one table behind a real HAProxy, and clients at three times their limit.
demo: haproxy
	$(CARGO) build --release --locked --bin gcra-spoa --example demo
	target/release/examples/demo

# Everything quick: units, properties, the table between processes, system calls, and real HAProxy end to end.
test: haproxy promtool
	@tests/install.sh strace strace
	$(CARGO) test --workspace --locked

# HAProxy end to end with each of HAPROXY_VERSIONS ("2.6 2.8 3.0 3.2 3.4"), fetched into target/haproxy/.
test-all:
	tests/matrix.sh

# The VTest files, in the manner of HAProxy's own tests.
vtest: haproxy
	$(CARGO) build --locked --bin gcra-spoa
	tests/vtest/run $${CARGO_TARGET_DIR:-target}/debug/gcra-spoa

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) fmt --manifest-path benches/peers/rust/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

# Every interleaving of the table's steps in small models, and that each step taken away is missed.
loom:
	RUSTFLAGS="--cfg gcra_model --cfg gcra_loom" CARGO_TARGET_DIR=target/loom \
		$(CARGO) test --release --locked -p gcra-table --lib model

# Random interleavings in a larger model. GCRA_SHUTTLE_RUNS=1000000 for more of them.
shuttle:
	RUSTFLAGS="--cfg gcra_model --cfg gcra_shuttle" CARGO_TARGET_DIR=target/shuttle \
		$(CARGO) test --release --locked -p gcra-table --lib model

# Anything from outside (frames, connections, table files, configurations, the admin port): each target for FUZZ_SECONDS. Needs a
# nightly compiler.
FUZZ_SECONDS ?= 60
fuzz:
	@tests/install-fuzz.sh
	fuzz/run $(FUZZ_SECONDS)

# Writes the byte vectors of the codec's tests, and a configuration, as the inputs that fuzzing begins with.
fuzz-seeds:
	CARGO_TARGET_DIR=target/fuzz $(CARGO) run --manifest-path fuzz/Cargo.toml --locked --example seeds

# Processes on one table, killed, stopped and resized for so long, and every answer held against a model for as long. GCRA_STRESS_SEED
# and GCRA_ORACLE_SEED repeat what was chosen.
SECONDS ?= 600
soak:
	GCRA_STRESS_SECONDS=$(SECONDS) $(CARGO) test --release --locked --test stress -- --nocapture
	GCRA_ORACLE_SECONDS=$(SECONDS) $(CARGO) test --release --locked --test oracle -- --nocapture
	GCRA_SHUTTLE_RUNS=1000000 $(MAKE) shuttle

# Nanoseconds a decision beside other limiters, CPU a NOTIFY of the real agent, how long a connection waits beside floods, what a
# table too small does, and other agents.
bench:
	$(CARGO) bench --locked --bench table -- --write
	$(CARGO) bench --locked --bench agent
	$(CARGO) bench --locked --bench fairness -- --write
	$(CARGO) bench --locked --bench full_table
	$(CARGO) bench --locked --bench stats
	$(MAKE) bench-peers

# The agent beside published ones, which are built into target/peers/. PEERS_ARGS=--quick for a short look that writes nothing.
PEERS_ARGS ?= --write
bench-peers:
	benches/peers/build
	$(CARGO) bench --locked --bench peers -- $(PEERS_ARGS)

# What limiting costs through real HAProxys, with wrk: HAPROXY_VERSIONS are fetched, GCRA_GO_PEER=/path is another agent to compare with.
# BENCH_ARGS=--quick for a short look that writes nothing.
BENCH_ARGS ?= --write
bench-haproxy:
	for version in $${HAPROXY_VERSIONS:-2.6 2.8 3.0 3.2}; do tests/get-haproxy.sh $$version target/haproxy/$$version || exit 1; done
	$(CARGO) bench --locked --bench haproxy -- $(BENCH_ARGS)

# Instructions a NOTIFY, counted by Valgrind, against their bounds. `make guard GUARD=--write` puts them into docs/BENCHMARKS.md.
guard:
	@tests/install.sh valgrind valgrind
	$(CARGO) bench --locked --bench guard -- $(GUARD)

haproxy:
	@tests/install-haproxy.sh

promtool:
	@tests/get-promtool.sh target/promtool
