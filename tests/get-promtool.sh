#!/bin/sh
# get-promtool.sh DIR: makes sure that there is a promtool, which reads metrics as Prometheus does:
# the one that PROMTOOL names, the system's, or DIR/promtool.
#
# DIR/promtool is taken out of Debian's package. The package is not installed, because that would
# start a Prometheus. Root is not needed.
set -eu
dir=$1

if [ -n "${PROMTOOL:-}" ]; then
    "$PROMTOOL" --version >/dev/null 2>&1 && exit 0
    echo "PROMTOOL=$PROMTOOL does not run" >&2
    exit 1
fi
command -v promtool >/dev/null && exit 0
"$dir/promtool" --version >/dev/null 2>&1 && exit 0
command -v apt-get >/dev/null || exec "$(dirname "$0")/install.sh" promtool prometheus

echo "promtool is not installed. Taking it out of Debian's package prometheus into $dir"
# As root, apt downloads as the user _apt, who may have no access to DIR.
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$download"
if [ "$(id -u)" -eq 0 ]; then
    "$(dirname "$0")/apt" update -qq
    chown _apt "$download" 2>/dev/null || :
fi
(cd "$download" && apt-get -qq download prometheus) || {
    echo "It could not be downloaded. Install promtool, or name one with PROMTOOL=/path." >&2
    exit 1
}
dpkg-deb -x "$download"/prometheus_*.deb "$download/root"
mkdir -p "$dir"
cp "$download/root/usr/bin/promtool" "$dir/promtool"
"$dir/promtool" --version >/dev/null 2>&1 && exit 0
echo "$dir/promtool does not run here." >&2
exit 1
