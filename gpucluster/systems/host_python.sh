#!/bin/sh
# Makes the link to this host's Python, by which all of gpucluster's programs and Ansible's modules run, and prints the
# path of that Python. The system's own python3 may be older than they need (Oracle Linux 8: 3.6). It stays as it is.
# usage: [--look] LINK OLDEST [SYSTEM=PACKAGE ...]
# --look: changes nothing. SYSTEM: ID and major version of /etc/os-release, with the package that has a newer Python.
set -u
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
look=''
if [ "$1" = --look ]; then
    look=yes
    shift
fi
link=$1 oldest=$2
shift 2

# The modules are those that a system may have in a package of their own.
usable() { # python
    [ -x "$1" ] && "$1" -I -c "import sys
if sys.version_info[:2] < (${oldest%%.*}, ${oldest#*.}): sys.exit(1)
import ctypes, json, zipfile" > /dev/null 2>&1
}

found=''
find_one() {
    for python in "$link" /usr/bin/python3 /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9] \
        /usr/local/bin/python3.[0-9] /usr/local/bin/python3.[0-9][0-9]; do
        if usable "$python"; then
            found=$python
            return
        fi
    done
    return 1
}

system() { # ID and major version
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "$ID-${VERSION_ID%%.*}")
}

package_for() { # system words...: its package
    for pair; do
        [ "${pair%%=*}" != "$(system)" ] || echo "${pair#*=}"
    done
}

install() { # package
    if command -v apt-get > /dev/null; then
        apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 install \
            --no-install-recommends "$1"
    else
        dnf -qy install "$1"
    fi
}

# At the first boot the repositories may not be in reach yet.
install_patiently() { # package
    for pause in 5 10 0; do
        words=$(install "$1" 2>&1 < /dev/null) && return
        sleep "$pause"
    done
}

# A link to the file itself: the system's alternatives can't turn it to an older one.
make_link() {
    target=$(readlink -f "$found")
    if [ "$(readlink "$link")" != "$target" ]; then
        mkdir -p "${link%/*}" && ln -sfn "$target" "$link.new" && mv -fT "$link.new" "$link"
    fi
}

words=''
if ! find_one; then
    package=$(package_for "$@")
    [ -n "$look" ] || [ -z "$package" ] || install_patiently "$package"
    if ! find_one; then
        echo "there is no Python $oldest or later on this host ($(system));" \
            "install one as /usr/bin/python3.N${package:+ (package $package)}, then run: gpucluster apply." \
            "$(echo "$words" | tail -n 2 | tr '\n' ' ')" >&2
        exit 1
    fi
fi
if [ -n "$look" ]; then
    echo "$found"
else
    make_link || exit 1
    echo "$link"
fi
