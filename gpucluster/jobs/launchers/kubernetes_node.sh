#!/bin/bash
# What each pod of a job runs: the first one the script, the others what the script asks for, until it ends.
#
# Pods exchange files below ~/gpucluster-jobs/JOB/.pods. Each of the others begins with a word of its own, and
# works only in a run whose first pod has answered with that word: a folder may be left of an earlier job of this name.
# Folders are listed and files are opened, and not only looked at: then an NFS client asks the server.
set -u
silent=${GPUCLUSTER_SILENT_S:-120}
read -ra nodes <<<"${GPUCLUSTER_NODES:?}"
here=${HOME:?}/gpucluster-jobs/${GPUCLUSTER_JOB:?}
mail=$here/.pods
index=${GPUCLUSTER_INDEX:-${JOB_COMPLETION_INDEX:-}}
if [ -z "$index" ]; then
    for index in "${!nodes[@]}" none; do
        [ "$index" = none ] || [ "${nodes[$index]%%.*}" != "${GPUCLUSTER_POD:?}" ] || break
    done
    [ "$index" != none ] || { echo "pod $GPUCLUSTER_POD is none of $GPUCLUSTER_NODES" >&2; exit 64; }
fi
export GPUCLUSTER_INDEX=$index GPUCLUSTER_NODE=${nodes[$index]}
# An image does not know the users of the directory, and programs that ask for the name of their user fail there: PyTorch's
# compiler names its cache so.
user=$(id -un 2>/dev/null) || user=$(id -u)
export USER=${USER:-$user} LOGNAME=${LOGNAME:-$user}
mkdir -p "$mail" || exit 73

# A file appears whole or not at all.
put() { printf '%s\n' "$2" >"$1.new" && mv "$1.new" "$1"; }
# Shows the others that this pod lives.
begin_beat() {
    while sleep 2; do put "$run/alive.$index" "$SECONDS"; done >/dev/null 2>&1 &
    # shellcheck disable=SC2064  # that of now
    trap "kill $! 2>/dev/null" EXIT
}

if [ "$index" = 0 ]; then
    cp -f "${GPUCLUSTER_FILES:-/gpucluster-job}"/* "$here"/ || exit 73
    run=$(mktemp -d "$mail/run.XXXXXX") || exit 73
    begin_beat
    put "$mail/current" "$run"
    said=0
    while :; do
        missing=0
        for number in "${!nodes[@]}"; do
            [ "$number" != 0 ] || continue
            word=$(cat "$mail/hello.$number" 2>/dev/null)
            if [ -z "$word" ] || [ "$(cat "$run/here.$number" 2>/dev/null)" != "$word" ]; then
                missing=$((missing + 1))
                [ -z "$word" ] || [ "$(cat "$run/member.$number" 2>/dev/null)" = "$word" ] || put "$run/member.$number" "$word"
            fi
        done
        [ "$missing" != 0 ] || break
        if [ $((SECONDS - said)) -ge 30 ]; then
            said=$SECONDS
            echo "waiting for $missing of ${#nodes[@]} pods" >&2
        fi
        sleep 0.2
    done
    export GPUCLUSTER_RUN=$run
    bash "$here/job.sh" 2>&1 | tee "$here/$GPUCLUSTER_JOB.out"
    status=${PIPESTATUS[0]}
    put "$run/end" "$status"
    exit "$status"
fi

word=$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')
put "$mail/hello.$index" "$word"
until run=$(cat "$mail/current" 2>/dev/null) && [ -n "$run" ] && [ "$(cat "$run/member.$index" 2>/dev/null)" = "$word" ]; do
    sleep 0.2
done
begin_beat
put "$run/here.$index" "$word"
last='' heard=$SECONDS
while [ ! -s "$run/end" ]; do
    for asked in $(cd "$run" && find . -name "$index.*.do" -o -name "$index.*.stop"); do
        asked=$run/${asked#./}
        base=${asked%.*}
        case $asked in
            *.do)
                mv "$asked" "$base.doing"
                # A group of its own, so that all of it can be ended.
                (
                    setsid bash "$base.doing" >"$base.out" 2>&1 </dev/null &
                    put "$base.pid" $!
                    wait $!
                    put "$base.status" $?
                ) &
                ;;
            *)
                rm -f "$asked"
                read -r group <"$base.pid" && kill -- "-$group" 2>/dev/null
                ;;
        esac
    done
    now=$(cat "$run/alive.0" 2>/dev/null)
    if [ "$now" != "$last" ]; then
        last=$now heard=$SECONDS
    elif [ $((SECONDS - heard)) -ge "$silent" ]; then
        echo "the first pod of the job has been silent for $silent s" >&2
        exit 69
    fi
    sleep 0.1
done
# What no process waits for any more.
find "$run" -name "$index.*.pid" | while read -r file; do
    [ -e "${file%.pid}.status" ] || { read -r group <"$file" && kill -- "-$group" 2>/dev/null; }
done
exit 0
