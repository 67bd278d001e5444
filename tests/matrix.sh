#!/bin/sh
# The tests with HAProxy, once for each version in HAPROXY_VERSIONS, which are fetched into target/haproxy/. Stops at
# the first failure; a version that can't be fetched is one.
set -eu
cd "$(dirname "$0")/.."

summary=
for version in ${HAPROXY_VERSIONS:-2.6 2.8 3.0 3.2 3.4}; do
    echo
    echo "=== HAProxy $version"
    began=$(date +%s)
    tests/get-haproxy.sh "$version" "target/haproxy/$version"
    export HAPROXY="$PWD/target/haproxy/$version/haproxy"
    # "HAProxy version 2.6.12-1+deb12u3 2025/10/03 - ..."
    exact=$("$HAPROXY" -v | sed -n '1s/^HAProxy version \([^ ]*\).*/\1/p')
    echo "$exact in target/haproxy/$version"

    # What `make test` runs with the system's HAProxy, and what depends on its version little, is for the newest one.
    more=
    [ "$version" != 3.4 ] || more="--test examples --test policies"
    # shellcheck disable=SC2086 # several arguments, or none
    "${CARGO:-cargo}" test --locked --test end_to_end --test live --test ask_less $more
    make --no-print-directory vtest
    summary="$summary
    ok  HAProxy $exact ($(($(date +%s) - began)) s)"
done

echo
echo "=== passed with:$summary"
