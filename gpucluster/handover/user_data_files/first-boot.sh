#!/bin/sh
# cloud-init runs this once, at the end of the first boot.
# shellcheck source=/dev/null
. /etc/gpucluster/node.conf
# The cloud's security lists restrict access to a node; a firewall on it would block traffic between the hosts.
# shellcheck disable=SC2154 # from the data
if [ "$firewalld" = off ] && systemctl cat firewalld.service > /dev/null 2>&1; then
    systemctl disable --now firewalld.service || exit 1
fi
# Oracle Linux has its root file system on LVM, which cloud-init can't grow. With nothing to grow oci-growfs exits 1.
if [ -x /usr/libexec/oci-growfs ]; then
    /usr/libexec/oci-growfs -y || echo "oci-growfs ended with status $?"
fi
# What fails here is tried again by Ansible's first task, which says why.
# shellcheck disable=SC2086,SC2154 # words, from the data
/usr/local/sbin/gpucluster-python $python || echo "gpucluster-python ended with status $?"
