#!/bin/sh
# Makes sure that there are a nightly compiler and cargo-fuzz: says how to get the first, and
# installs the second.
set -eu

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "Fuzzing needs a nightly compiler; run: rustup toolchain install nightly" >&2
    exit 1
fi
cargo fuzz --version >/dev/null 2>&1 && exit 0

# It only starts compilers, so it need not be optimized.
echo "cargo-fuzz is not installed. Installing it: cargo install cargo-fuzz --locked --debug"
if ! cargo install cargo-fuzz --locked --debug --quiet; then
    echo "cargo-fuzz could not be installed. Fuzzing needs it, and installing it a network." >&2
    exit 1
fi
