#!/bin/sh
# Makes sure that there is an HAProxy to run: installs it with the system's package manager, as root, or says
# what to do.
set -eu

if [ -n "${HAPROXY:-}" ]; then
    "$HAPROXY" -v >/dev/null || { echo "HAPROXY=$HAPROXY does not run" >&2; exit 1; }
    exit 0
fi
PATH=$PATH:/usr/sbin:/usr/local/sbin
command -v haproxy >/dev/null && exit 0

if command -v apt-get >/dev/null; then
    install="apt-get install -y --no-install-recommends haproxy"
elif command -v dnf >/dev/null; then
    install="dnf install -y haproxy"
elif command -v apk >/dev/null; then
    install="apk add haproxy"
elif command -v pacman >/dev/null; then
    install="pacman -S --noconfirm haproxy"
else
    echo "HAProxy (2.6 or later) is not installed, and there is no package manager known to this script." >&2
    echo "Install it and try again, or name its program: make HAPROXY=/path/to/haproxy ..." >&2
    exit 1
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "HAProxy is not installed, and installing it needs root. Run this, and try again:" >&2
    echo "    sudo $install" >&2
    exit 1
fi

echo "HAProxy is not installed. Installing it: $install"
case $install in
    apt-get*) export DEBIAN_FRONTEND=noninteractive; apt-get update -qq ;;
esac
$install >/dev/null
haproxy -v | head -n 1
