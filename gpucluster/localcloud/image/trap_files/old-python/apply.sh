#!/bin/sh
# A trap of real images, for the root directory $1: /usr/bin/python3 is 3.6, as on Oracle Linux 8, where the system's own
# programs run with /usr/libexec/platform-python, and a newer Python lies beside it under its own name, if at all.
# No archive in reach has a Python 3.6, so its place has a double (python3.6) that refuses what 3.6 refuses.
set -eu
root=${1%/}
here=$(dirname "$(readlink -f "$0")")
real=$(basename "$(readlink "$root/usr/bin/python3")")
case $real in
    python3.6)
        echo "old-python: the trap is there already" >&2
        exit 1
        ;;
    python3.*) ;;
    *)
        echo "old-python: $root/usr/bin/python3 is not a link to a Python, as it is on Debian and Ubuntu" >&2
        exit 1
        ;;
esac
mkdir -p "$root/usr/libexec"
# A file and no link: it finds its library from where it lies, and works when the other one is not there.
cp -p "$root/usr/bin/$real" "$root/usr/libexec/platform-$real"
ln -sfn "platform-$real" "$root/usr/libexec/platform-python"
for folder in usr/bin usr/sbin usr/lib/cloud-init usr/libexec usr/local/bin usr/local/sbin usr/share/python3; do
    [ ! -d "$root/$folder" ] || find "$root/$folder" -type f -exec grep -lIE -m1 '^#! ?/usr/bin/python3( |$)' {} + || :
done | while read -r program; do
    sed -i '1s|/usr/bin/python3|/usr/libexec/platform-python|' "$program"
done
install -m 0755 "$here/python3.6" "$root/usr/bin/python3.6"
ln -sfn python3.6 "$root/usr/bin/python3"
