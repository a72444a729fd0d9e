#!/bin/bash
# How fast GPUs of several nodes exchange data: all_reduce of nccl-tests, one rank for each GPU. See README.md.
#
#   sbatch -N 2 all_reduce.sh IMAGE
#
# IMAGE: a squashfs file, or an address such as registry.example#org/image:tag
#SBATCH --job-name=nccl_tests
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=nccl_tests-%j.out
set -euo pipefail

image=${1:-${IMAGE:-}}
arguments=${NCCL_TESTS_ARGUMENTS:--b 10G -e 10G -f 2}
# Images of 2022 and before know only the older protocol by which ranks find each other: MPI_TYPE=pmi2
mpi=${MPI_TYPE:-pmix}
here=${SLURM_SUBMIT_DIR:?this is a job: sbatch -N 2 all_reduce.sh IMAGE}
gpus=${SLURM_GPUS_ON_NODE:?the number of GPUs of a node is missing: sbatch --gpus-per-node=4 ...}
ranks=$((SLURM_JOB_NUM_NODES * gpus))

fail() {
    echo "nccl_tests: $*" >&2
    exit 1
}

algorithm() {
    case ${NCCL_ALGO,,} in ring) echo ring ;; *) echo default ;; esac
}

[ -n "$image" ] || fail "name an image: sbatch -N 2 all_reduce.sh IMAGE"
[ -r "$here/build.sh" ] || fail "build.sh is not in $here; copy the whole folder, and submit from there"

# MPI only starts the ranks, and NCCL is what is measured: plain TCP works with every shape.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1} OMPI_MCA_coll_hcoll_enable=${OMPI_MCA_coll_hcoll_enable:-0}
# NCCL's own settings are in /etc/nccl.conf of the node, made for its shape; Enroot mounts it into every container.
# What is exported here or before sbatch overrides it.

container=(--container-image="$image" --container-mounts="$here:$here" --container-workdir="$here")

# Once, on the first node, for all nodes: the folder is on the share.
sources=${NCCL_TESTS_DIR:-$here/nccl-tests}
program=$(srun --nodes=1 --ntasks=1 --mpi=none "${container[@]}" "$here/build.sh" all_reduce "$sources") \
    || fail "there is no all_reduce_perf, and it could not be built; see README.md"

echo "$ranks ranks on $SLURM_JOB_NUM_NODES nodes: $program $arguments"
result=$here/nccl_tests-$SLURM_JOB_ID.result
# shellcheck disable=SC2086  # the arguments are words
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$ranks" --ntasks-per-node="$gpus" --gpu-bind=none --mpi="$mpi" \
    "${container[@]}" "$program" $arguments -g 1 | tee "$result"
# Good ends with 0, bad with 2, and 3 is what can't be judged: no figure is published for the shape. EXPECT_BUSBW is one.
shape=${SHAPE:-$(sed -n 's/^# shape: //p' /etc/nccl.conf 2>/dev/null || true)}
gpucluster-agent nccl judge "$result" --nodes="$SLURM_JOB_NUM_NODES" --gpus="$gpus" --shape="$shape" \
    ${EXPECT_BUSBW:+--expect="$EXPECT_BUSBW"} ${NCCL_ALGO:+--algorithm="$(algorithm)"}
