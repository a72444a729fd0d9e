#!/bin/bash
# Runs a command in another pod of the job, and ends with its status: kubernetes_ask.sh NODE WORD...
# The words are joined to one line for a shell, as ssh does it: mpirun takes this program in the place of ssh.
set -u
run=${GPUCLUSTER_RUN:?}
silent=${GPUCLUSTER_SILENT_S:-120}
read -ra nodes <<<"${GPUCLUSTER_NODES:?}"
node=$1
shift
for index in "${!nodes[@]}" none; do
    [ "$index" = none ] || [ "${nodes[$index]%%.*}" != "${node%%.*}" ] || break
done
[ "$index" != none ] || { echo "the job has no node $node" >&2; exit 64; }
[ "$index" != 0 ] || exec bash -c "$*"
base=$run/$index.$(date +%s%N).$$
printf '%s\n' "$*" >"$base.new"
trap 'touch "$base.stop"; exit 143' TERM INT HUP
mv "$base.new" "$base.do"
last='' heard=$SECONDS
until status=$(cat "$base.status" 2>/dev/null) && [ -n "$status" ]; do
    now=$(cat "$run/alive.$index" 2>/dev/null)
    if [ "$now" != "$last" ]; then
        last=$now heard=$SECONDS
    elif [ $((SECONDS - heard)) -ge "$silent" ]; then
        echo "the pod of $node has been silent for $silent s" >&2
        exit 69
    fi
    # The trap waits for a command to end.
    sleep 0.1
done
cat "$base.out"
exit "$status"
