#!/bin/bash
# MNIST with TensorFlow's MultiWorkerMirroredStrategy, one worker per node, any number of nodes. See README.md.
#
#   sbatch -N 2 submit.sh IMAGE
#
# IMAGE: a squashfs file, or an address such as registry.example#org/tensorflow:tag
#SBATCH --job-name=mnist
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=mnist-%j.out
set -euo pipefail

image=${1:-${IMAGE:-}}
here=${SLURM_SUBMIT_DIR:?this is a job: sbatch -N 2 submit.sh IMAGE}

fail() {
    echo "mnist: $*" >&2
    exit 1
}

data=${MNIST_DATA:-}
[ -n "$image" ] || fail "name an image: sbatch -N 2 submit.sh IMAGE"
[ -n "$data" ] || fail "name the data set: export MNIST_DATA=/mnt/home/YOU/mnist.npz; see README.md"
[ -r "$data" ] || fail "the data set $data can't be read"
[ -r "$here/train.py" ] || fail "train.py is not in $here; copy the whole folder, and submit from there"

# In Slurm's order. Workers connect by address, because not every network resolves the names of all nodes.
mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
declare -A address
while read -r name its_address; do
    address[$name]=$its_address
done < <(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format="%N %o")
# Jobs on the same node need different ports.
port=${WORKER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
workers=()
for name in "${names[@]}"; do
    workers+=("${address[$name]:-$name}:$port")
done
WORKERS=$(IFS=,; printf '%s' "${workers[*]}")
export WORKERS

# One .out and one .err file per node.
# shellcheck disable=SC2016  # in the container
srun --mpi=none --distribution=block --output="$here/%N.out" --error="$here/%N.err" --container-image="$image" \
    --container-mounts="$here:$here,$data:$data:ro" --container-workdir="$here" \
    bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec python3 train.py --data="$1"' train "$data"
echo "done; the results are in $(printf '%s.out ' "${names[@]}")"
