#!/bin/sh
# cloud-init runs this once, at the end of the first boot.
# shellcheck source=/dev/null
. /etc/gpucluster/node.conf
# Oracle Linux would write the host name and /etc/hosts at each boot as the cloud has them, not as the cluster.
if [ -f /etc/oci-hostname.conf ]; then
    sed -i '/^PRESERVE_HOSTINFO=/d' /etc/oci-hostname.conf && echo PRESERVE_HOSTINFO=2 >> /etc/oci-hostname.conf || exit 1
fi
# Oracle Linux has its root file system on LVM, which cloud-init can't grow. With nothing to grow oci-growfs exits 1.
if [ -x /usr/libexec/oci-growfs ]; then
    /usr/libexec/oci-growfs -y || echo "oci-growfs ended with status $?"
fi
# What fails here is tried again by Ansible's first task, which reports why.
# shellcheck disable=SC2086,SC2154 # words, from the data
/usr/local/sbin/gpucluster-python $python || echo "gpucluster-python ended with status $?"
