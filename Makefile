# The two commands of the README, and the longer checks.

CARGO ?= cargo

.PHONY: demo test lint doc loom shuttle bench haproxy

# Two agents on one table behind a real HAProxy, and clients at three times their limit.
demo: haproxy
	$(CARGO) build --release --locked --bin gcra-spoa --example demo
	target/release/examples/demo

# Everything quick: units, properties, the table between processes, and real HAProxy end to end.
test: haproxy
	$(CARGO) test --workspace --locked

lint:
	$(CARGO) fmt --all --check
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

# Nanoseconds a decision, and CPU a NOTIFY of the real agent.
bench:
	$(CARGO) bench --locked --bench table
	$(CARGO) bench --locked --bench agent

haproxy:
	@tests/install-haproxy.sh
