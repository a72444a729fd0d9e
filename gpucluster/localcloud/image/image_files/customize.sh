#!/bin/sh
# Turns a Debian root directory ($1) into the base image of the local cloud. Runs outside of it, after the packages.
set -eu
root=$1
files=$(dirname "$(readlink -f "$0")")
entries() { grep -v '^#' "$files/$1"; }

# Our own mount.nfs: a share of the local cloud is a directory of the machine below, and not every kernel has NFS.
# The diversion keeps it in place when nfs-common is upgraded; umount.nfs and mount.nfs4 are links to it.
chroot "$root" dpkg-divert --quiet --local --rename --divert /usr/sbin/mount.nfs.distrib --add /usr/sbin/mount.nfs

# The modes of the checkout depend on its umask, so they are set here.
(cd "$files/rootfs" && find . -type f) | while read -r file; do
    case $file in ./usr/bin/* | ./usr/sbin/* | ./usr/local/sbin/*) mode=0755 ;; *) mode=0644 ;; esac
    install -D -o 0 -g 0 -m "$mode" "$files/rootfs/$file" "$root/$file"
done
rm -f "$root/etc/cloud/cloud.cfg.d/05_logging.cfg"

mkdir -p "$root/etc/systemd/system-preset" "$root/etc/systemd/system-generators"
preset=$root/etc/systemd/system-preset/10-roles.preset
entries disabled-units.txt | sed 's/^/disable /' > "$preset"
entries disabled-units.txt | while read -r unit; do
    systemctl --root="$root" disable --quiet "$unit" 2> /dev/null || true # fails for a unit that is not there
    left=$(find "$root/etc/systemd/system" -path '*.wants/*' -name "$unit")
    if [ -n "$left" ]; then
        echo "customize.sh: $unit is still enabled by $left" >&2
        exit 1
    fi
done
entries masked-units.txt | while read -r unit; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
entries masked-generators.txt | while read -r name; do ln -sf /dev/null "$root/etc/systemd/system-generators/$name"; done
systemctl --root="$root" enable --quiet keep-kernel-settings.service own-hostname.service shared-mounts.service
systemctl --root="$root" set-default --quiet multi-user.target

# What must differ between instances is made at their first boot, or by a role (the munge key).
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/munge/munge.key" "$root/etc/hosts" "$root/var/lib/dbus/machine-id" \
    "$root/var/lib/systemd/random-seed"
# Empty, not absent: systemd then makes an id without taking the boot for the first one, which would apply all presets.
: > "$root/etc/machine-id"
echo localhost > "$root/etc/hostname"
printf '# <source> <mount point> <type> <options> <dump> <pass>\n' > "$root/etc/fstab"
chmod 0644 "$root/etc/machine-id" "$root/etc/hostname" "$root/etc/fstab"

mkdir -p "$root/var/lib/cloud/seed/nocloud"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
    "$root"/var/log/*.log "$root"/var/log/apt "$root"/usr/share/doc/*/changelog*
