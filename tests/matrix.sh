#!/bin/sh
# The tests with HAProxy, once for each version in HAPROXY_VERSIONS, which are fetched into
# haproxy/ in Cargo's target directory. Stops at the first version that fails or cannot be fetched.
# HAProxys in HAPROXY_ALIKE have the engine and the Lua of one that has all tests: for them the
# shipped files are enough.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}/haproxy"
fetched=$(cd "${CARGO_TARGET_DIR:-target}/haproxy" && pwd)

summary=
for version in ${HAPROXY_VERSIONS:-2.6 2.8 3.0 3.2 3.4}; do
    echo
    echo "=== HAProxy $version"
    began=$(date +%s)
    tests/get-haproxy.sh "$version" "$fetched/$version"
    export HAPROXY="$fetched/$version/haproxy"
    # "HAProxy version 2.6.12-1+deb12u3 2025/10/03 - ..."
    exact=$("$HAPROXY" -v | sed -n '1s/^HAProxy version \([^ ]*\).*/\1/p')
    echo "$exact in $fetched/$version"

    # These depend little on the version: the newest is enough beside `make test`, which runs them
    # with the installed one.
    more=
    [ "$version" != 3.4 ] || more="examples:: policies::"
    tests="settle:: live:: haproxy_undecided:: real_haproxy" inproc="--test inproc"
    case " ${HAPROXY_ALIKE:-} " in *" $version "*) tests= inproc= ;; esac
    # With --workspace, features are those of `make test`, so nothing is built again.
    # shellcheck disable=SC2086 # several arguments, or none
    tests/run --workspace --locked --test daemon -- end_to_end:: $tests $more
    # shellcheck disable=SC2086
    tests/run --workspace --locked --test border $inproc
    tests/vtest/run "${CARGO_TARGET_DIR:-target}/debug/gcra-spoa"
    summary="$summary
    ok  HAProxy $exact ($(($(date +%s) - began)) s)"
done

echo
echo "=== passed with:$summary"
