#!/bin/bash
# Inside of the container: where all_reduce_perf is, on standard output; built first where there is none.
set -euo pipefail

source=${NCCL_TESTS_DIR:-$PWD/nccl-tests}
built=$source/build/all_reduce_perf

if [ -x "$built" ]; then
    echo "$built"
    exit
fi
if [ -z "${NCCL_TESTS_DIR:-}" ] && command -v all_reduce_perf; then
    exit
fi
exec 3>&1 >&2
if [ ! -f "$source/Makefile" ]; then
    if [ -z "${NCCL_TESTS_URL:-}" ]; then
        echo "the image has no all_reduce_perf, and the sources of nccl-tests are not in $source: put them there, or pass" \
            "the address for git: export NCCL_TESTS_URL=https://..."
        exit 1
    fi
    git clone --depth=1 -- "$NCCL_TESTS_URL" "$source"
fi
mpicc=$(command -v mpicc) || {
    echo "the image has no MPI to build with (mpicc); without it every rank would measure itself alone"
    exit 1
}
mpicc=$(readlink -f "$mpicc")
make --directory="$source" --jobs="$(nproc)" MPI=1 MPI_HOME="${MPI_HOME:-${mpicc%/bin/*}}" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
[ -x "$built" ]
echo "$built" >&3
