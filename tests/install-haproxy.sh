#!/bin/sh
# Makes sure that there is an HAProxy (2.6 or later) to run: the one that HAPROXY names, or the
# system's.
set -eu

if [ -n "${HAPROXY:-}" ]; then
    "$HAPROXY" -v >/dev/null || { echo "HAPROXY=$HAPROXY does not run" >&2; exit 1; }
    exit 0
fi
exec "$(dirname "$0")/install.sh" haproxy haproxy
