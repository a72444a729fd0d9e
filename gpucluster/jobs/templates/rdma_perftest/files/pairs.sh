#!/bin/bash
# On each node: measures the RDMA devices with the other node of its pair.
#
#   pairs.sh DEVICE,... NODE NODE [NODE NODE]...     the first node of a pair serves, the second measures
#
# A node that is in no pair has nothing to do. Many pairs measure at a time: each line begins with the pair that it is of.
set -u
devices=${1//,/ }
shift
me=${GPUCLUSTER_NODE:-${SLURMD_NODENAME:-$(uname -n)}}
while [ $# -ge 2 ]; do
    if [ "${me%%.*}" = "${1%%.*}" ] || [ "${me%%.*}" = "${2%%.*}" ]; then
        # shellcheck disable=SC2086  # the devices are words
        bash "${0%/*}/rdma.sh" "$1" $devices 2>&1 | while IFS= read -r line; do
            printf 'gpucluster: pair %s %s: %s\n' "$1" "$2" "$line"
        done
        # What could not be measured is reported in the output: the other pairs go on.
        exit 0
    fi
    shift 2
done
