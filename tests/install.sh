#!/bin/sh
# install.sh PROGRAM PACKAGES: makes sure that there is a program to test with. As root it installs
# the packages with the system's package manager; otherwise it says what to do.
set -eu
program=$1
package=$2

PATH=$PATH:/usr/sbin:/usr/local/sbin
command -v "$program" >/dev/null && exit 0

if command -v apt-get >/dev/null; then
    install="apt-get install -y --no-install-recommends $package"
elif command -v dnf >/dev/null; then
    install="dnf install -y $package"
elif command -v apk >/dev/null; then
    install="apk add $package"
elif command -v pacman >/dev/null; then
    install="pacman -S --noconfirm $package"
else
    echo "$program is not installed, and this script does not know the package manager here." >&2
    echo "Install $package, and try again." >&2
    exit 1
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "$program is not installed, and installing it needs root. Run this, and try again:" >&2
    echo "    sudo $install" >&2
    exit 1
fi

echo "$program is not installed. Installing it: $install"
case $install in
apt-get*)
    export DEBIAN_FRONTEND=noninteractive
    apt=$(dirname "$0")/apt
    "$apt" update -qq
    # shellcheck disable=SC2086 # each package is a word
    "$apt" install -y --no-install-recommends $package >/dev/null
    ;;
*) $install >/dev/null ;;
esac
command -v "$program" >/dev/null && exit 0
echo "$program is still missing after $package was installed." >&2
exit 1
