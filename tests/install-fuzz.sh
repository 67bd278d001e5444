#!/bin/sh
# Makes sure that there is cargo-fuzz and a nightly compiler for it: installs the one, and says how to get the other.
set -eu

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "Fuzzing needs a nightly compiler: run 'rustup toolchain install nightly', and try again." >&2
    exit 1
fi
cargo fuzz --version >/dev/null 2>&1 && exit 0

echo "cargo-fuzz is not installed. Installing it: cargo install cargo-fuzz --locked"
if ! cargo install cargo-fuzz --locked --quiet; then
    echo "Fuzzing needs cargo-fuzz: run 'cargo install cargo-fuzz --locked' where there is a network, and try again." >&2
    exit 1
fi
