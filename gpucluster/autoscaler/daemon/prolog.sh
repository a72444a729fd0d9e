#!/bin/bash
# Slurm's PrologSlurmctld: ends when the job's elastic nodes are in service, when the job has lost them again, or when
# the autoscaler no longer writes markers.
#
# Slurm checks only every 30 seconds whether the nodes of a batch job have booted, but at once when this program ends
# (measured: 0.2 s instead of 15 s on average). So it may end at any time: the job then waits for Slurm's next check.
# The autoscaler keeps one empty file for each elastic node in service, and one for each job that was requeued or
# cancelled: Slurm waits for this program before it runs such a job again. A thousand of them may wait at the same time,
# so it is a shell script, starts no other program, and looks only twice a second (0.1 ms of processor time each).

up=${1:-/run/gpucluster-autoscaler/up}
limit=3600 # seconds; far beyond ResumeTimeout, after which Slurm requeues the job
job=$up/job-$SLURM_JOB_ID

await() {
    while [[ ! -e $up/$1 && ! -e $job && -d $up ]] && ((SECONDS < limit)); do read -r -t 0.5 -u 9; done
}

[[ -d $up ]] || exit 0
exec 9<> <(:) # never has data
# A list of nodes is names with commas, and a name may end with numbers in brackets: a-1,b-e[1-3,7]. Names of elastic
# nodes end with -e and a number.
list=$SLURM_JOB_NODELIST
while [[ $list =~ ^,?([^][,]+)(\[([0-9,-]+)\])?(.*)$ ]]; do
    name=${BASH_REMATCH[1]} numbers=${BASH_REMATCH[3]//,/ } list=${BASH_REMATCH[4]}
    if [[ -z $numbers && $name =~ -e[1-9][0-9]*$ ]]; then
        await "$name"
    elif [[ $name == *-e ]]; then
        for range in $numbers; do
            for ((number = 10#${range%-*}; number <= 10#${range#*-}; number++)); do await "$name$number"; done
        done
    fi
done
exit 0
