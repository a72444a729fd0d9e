# shellcheck shell=sh
real=$(readlink -f /usr/bin/python3)
# A file and no link: it finds its library from where it lies, and works when the other one is not there.
cp -p "$real" "/usr/libexec/platform-${real##*/}"
ln -s "platform-${real##*/}" /usr/libexec/platform-python
for folder in /usr/bin /usr/sbin /usr/lib/cloud-init /usr/libexec /usr/local/bin /usr/local/sbin /usr/share/python3; do
    [ ! -d "$folder" ] || find "$folder" -type f -exec grep -lIE -m1 '^#! ?/usr/bin/python3( |$)' {} + || :
done | while read -r program; do
    sed -i '1s|/usr/bin/python3|/usr/libexec/platform-python|' "$program"
done
ln -s ../libexec/python3.6 /usr/bin/python3.6
ln -sfn python3.6 /usr/bin/python3
