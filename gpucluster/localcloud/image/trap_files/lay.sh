#!/bin/sh
# Lays traps into the image that this script runs in: lay.sh <trap>... Its folder is mounted there beside it.
set -eu
here=$(dirname "$(readlink -f "$0")")
export DEBIAN_FRONTEND=noninteractive

lay_files() { # trap
    [ -d "$here/$1/rootfs" ] || return 0
    (cd "$here/$1/rootfs" && find . -type f) | while read -r file; do
        case $file in ./usr/sbin/* | ./usr/libexec/*) mode=0755 ;; *) mode=0644 ;; esac
        install -D -o 0 -g 0 -m "$mode" "$here/$1/rootfs/$file" "/$file"
    done
}

for trap in "$@"; do
    # Before the packages, which then keep their configuration, and after them: some write it when they are installed.
    lay_files "$trap"
    if [ -d "/var/lib/localcloud/packages/$trap" ]; then
        # From these files alone, without an index; it removes what a package conflicts with.
        apt-get -qq -y --no-install-recommends -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 \
            install "/var/lib/localcloud/packages/$trap"/*.deb
        lay_files "$trap"
    fi
    if [ -f "$here/$trap/setup.sh" ]; then sh -eu "$here/$trap/setup.sh"; fi
    echo "$trap" >> /etc/localcloud-traps
done
# apt removes what a package conflicts with: such a trap needs another suite.
for program in cloud-init sshd; do
    command -v "$program" > /dev/null || { echo "lay.sh: a trap has removed $program" >&2; exit 1; }
done
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/*.log
