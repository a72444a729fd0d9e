#!/bin/bash
# Where a program of nccl-tests is, on standard output; built first where there is none. Runs where the ranks will run.
#
#   build.sh OPERATION SOURCES
#
# SOURCES: a folder with the sources of nccl-tests. NCCL_TESTS_URL is an address for git, from which they may come.
set -euo pipefail

program=${1}_perf
source=$2
built=$source/build/$program

if [ -x "$built" ]; then
    echo "$built"
    exit
fi
if command -v "$program"; then
    exit
fi
exec 3>&1 >&2
if [ ! -f "$source/Makefile" ]; then
    if [ -z "${NCCL_TESTS_URL:-}" ]; then
        echo "there is no $program, and the sources of nccl-tests are not in $source. Put them there," \
            "or pass the address for git: export NCCL_TESTS_URL=https://... before you submit"
        exit 1
    fi
    git clone --depth=1 -- "$NCCL_TESTS_URL" "$source"
fi
mpicc=$(command -v mpicc) || {
    echo "there is no MPI to build nccl-tests with (mpicc); without it every rank would measure itself alone"
    exit 1
}
mpicc=$(readlink -f "$mpicc")
make --directory="$source" --jobs="$(nproc)" MPI=1 MPI_HOME="${MPI_HOME:-${mpicc%/bin/*}}" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
[ -x "$built" ]
echo "$built" >&3
