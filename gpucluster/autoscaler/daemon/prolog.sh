#!/bin/bash
# Slurm's PrologSlurmctld: ends when the job's elastic nodes are in service, when the job has lost them again, or when
# the autoscaler no longer writes markers.
#
# Slurm checks only every 30 seconds whether the nodes of a batch job have booted, but at once when this program ends
# (measured: 0.2 s instead of 15 s on average). So it may end at any time: the job then waits for Slurm's next check.
# The autoscaler keeps one empty file for each elastic node in service, and one for each job that was requeued or
# cancelled: Slurm waits for this program before it runs such a job again. It is a shell script because a thousand of
# them may wait at the same time.

up=${1:-/run/gpucluster-autoscaler/up}
limit=3600 # seconds; far beyond ResumeTimeout, after which Slurm requeues the job
job=$up/job-$SLURM_JOB_ID

[ -d "$up" ] || exit 0
exec 9<> <(:) # never has data: waiting for it starts no process
for node in $(/usr/bin/scontrol show hostnames "$SLURM_JOB_NODELIST" 2> /dev/null); do
    [[ $node =~ -e[1-9][0-9]*$ ]] || continue
    while [ ! -e "$up/$node" ] && [ ! -e "$job" ] && [ -d "$up" ] && ((SECONDS < limit)); do read -r -t 0.2 -u 9; done
done
exit 0
