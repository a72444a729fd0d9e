#!/bin/bash
# Slurm's PrologSlurmctld: ends when the job's elastic nodes are in service, when the job has lost them again, or when
# nobody can say so any more.
#
# Slurm looks only every 30 seconds whether the nodes of a batch job have booted, but at once when this program ends
# (measured: 0.2 s instead of 15 s on average). It may therefore end at any time: the job then waits for that look.
# The autoscaler keeps one empty file for each elastic node that is in service, and one for each job that was requeued
# or cancelled: Slurm waits for this program before it runs such a job again. A shell, because a thousand may wait.

up=${1:-/run/gpucluster-autoscaler/up}
limit=3600 # seconds; far beyond ResumeTimeout, after which Slurm takes the job back
job=$up/job-$SLURM_JOB_ID

[ -d "$up" ] || exit 0
exec 9<> <(:) # never says anything: waiting for it costs no process
for node in $(/usr/bin/scontrol show hostnames "$SLURM_JOB_NODELIST" 2> /dev/null); do
    [[ $node =~ -e[1-9][0-9]*$ ]] || continue
    while [ ! -e "$up/$node" ] && [ ! -e "$job" ] && [ -d "$up" ] && ((SECONDS < limit)); do read -r -t 0.2 -u 9; done
done
exit 0
