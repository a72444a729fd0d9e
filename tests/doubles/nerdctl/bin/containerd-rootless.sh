#!/bin/sh
# A double of upstream's script: it starts the real rootlesskit, and in its namespaces the real containerd.
set -eu
[ -w "$HOME" ] || { echo "HOME needs to be set and writable"; exit 1; }
: "${XDG_CONFIG_HOME:=$HOME/.config}"
if [ -z "${_INSIDE:-}" ]; then
    export _INSIDE=1
    # As upstream's: rootlesskit before 2.0, which Debian 12 has, knows no network namespace beside its own.
    detach=''
    if rootlesskit --help | grep -q -e --detach-netns; then detach=--detach-netns; fi
    # shellcheck disable=SC2086
    exec rootlesskit --state-dir="$XDG_RUNTIME_DIR/containerd-rootless" --net="$CONTAINERD_ROOTLESS_ROOTLESSKIT_NET" \
        --mtu="$CONTAINERD_ROOTLESS_ROOTLESSKIT_MTU" --slirp4netns-sandbox=auto --slirp4netns-seccomp=auto \
        --disable-host-loopback --port-driver=builtin --copy-up=/etc --copy-up=/run --copy-up=/var/lib \
        --propagation=rslave $detach $CONTAINERD_ROOTLESS_ROOTLESSKIT_FLAGS "$0" "$@"
fi
rm -f /run/containerd /var/lib/containerd /etc/containerd
mkdir -p "$XDG_RUNTIME_DIR/containerd" /run/containerd "$XDG_DATA_HOME/containerd" /var/lib/containerd
mount --bind "$XDG_RUNTIME_DIR/containerd" /run/containerd
mount --bind "$XDG_DATA_HOME/containerd" /var/lib/containerd
mkdir -p "$XDG_CONFIG_HOME/containerd" /etc/containerd
mount --bind "$XDG_CONFIG_HOME/containerd" /etc/containerd
exec containerd "$@"
