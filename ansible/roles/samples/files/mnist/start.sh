#!/bin/bash
# Runs in the container on each node: sets the list of workers for TensorFlow, and trains.
#
#   start.sh NAME=ADDRESS...     one per worker; the first is number 0
set -euo pipefail

port=${WORKER_PORT:-12345}
me=${SLURMD_NODENAME:?}

# Printed on standard output: {"cluster": {"worker": ["10.0.1.2:12345", ...]}, "task": {"type": "worker", "index": 0}}
tf_config() {
    local worker list='' rank='' count=0
    for worker in "$@"; do
        # Compares the whole name: node-1 is not node-10.
        [ "${worker%%=*}" != "$me" ] || rank=$count
        list+="${list:+, }\"${worker#*=}:$port\""
        count=$((count + 1))
    done
    [ -n "$rank" ] || {
        echo "$me is not among the workers: $*" >&2
        return 1
    }
    printf '{"cluster": {"worker": [%s]}, "task": {"type": "worker", "index": %d}}\n' "$list" "$rank"
}

TF_CONFIG=$(tf_config "$@")
export TF_CONFIG
echo "TF_CONFIG=$TF_CONFIG" >&2
exec python3 "${0%/*}/train.py" ${MNIST_DATA:+"--data=$MNIST_DATA"}
