#!/bin/sh
# Makes sure that there is a varnishtest to run VTest files with: installs the package varnish with the system's
# package manager, as root, or says what to do. Varnish itself is not used.
set -eu

command -v varnishtest >/dev/null && exit 0

if command -v apt-get >/dev/null; then
    install="apt-get install -y --no-install-recommends varnish"
elif command -v dnf >/dev/null; then
    install="dnf install -y varnish"
else
    echo "varnishtest is not installed, and there is no package manager known to this script." >&2
    echo "Install Varnish 7, which has it, and try again." >&2
    exit 1
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "varnishtest is not installed, and installing it needs root. Run this, and try again:" >&2
    echo "    sudo $install" >&2
    exit 1
fi

echo "varnishtest is not installed. Installing it: $install"
case $install in
    apt-get*) export DEBIAN_FRONTEND=noninteractive; apt-get update -qq ;;
esac
$install >/dev/null
command -v varnishtest >/dev/null || { echo "The package varnish has no varnishtest here." >&2; exit 1; }
