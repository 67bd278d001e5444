#!/bin/sh
# Makes sure that there is cargo-fuzz and a nightly compiler for it: installs the one, and says how to get the other.
set -eu

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "Fuzzing needs a nightly compiler. Run this, and try again: rustup toolchain install nightly" >&2
    exit 1
fi
cargo fuzz --version >/dev/null 2>&1 && exit 0

echo "cargo-fuzz is not installed. Installing it: cargo install cargo-fuzz --locked"
if ! cargo install cargo-fuzz --locked --quiet; then
    echo "Fuzzing needs cargo-fuzz. Run this where there is a network, and try again: cargo install cargo-fuzz --locked" >&2
    exit 1
fi
