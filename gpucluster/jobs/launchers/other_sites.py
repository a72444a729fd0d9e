"""Batch systems of other sites: Grid Engine (seed 004), OpenPBS and PBS Professional, and IBM Spectrum LSF. Open MPI's
mpirun starts the ranks, on the hosts that the job has got; environment modules bring it.

Facts:

- Grid Engine 8.1.9, qsub(1), sge_pe(5) and queue_conf(5). A job has a parallel environment, and its hosts are the lines
  of the file $PE_HOSTFILE, which begin with the name of a host and its number of slots.
- OpenPBS 23, qsub(1B) and pbs_resources(7B). A job is a number of chunks, here one for each host; its hosts are the
  lines of the file $PBS_NODEFILE, one for each MPI process. It begins in the home directory. The name of its output
  file is fixed: that of the job, `.o`, and the number in front of the first dot of $PBS_JOBID.
- LSF 10.1, the pages of bsub and of a job's variables. bsub reads the lines of a script that begin with #BSUB on its
  standard input only. GPUs are counted for each host. The hosts of a job are the lines of the file $LSB_DJOB_HOSTFILE,
  one for each slot. A report of LSF stands in the output file, before or behind what the job has printed.
"""

from __future__ import annotations

from dataclasses import replace

from gpucluster.jobs.model import OPEN_MPI, Job, JobScheduler, Kind, Launcher, Need, Option, Ranks, Requirement

_JOB_NAME = Option("job_name", "the job's name in the queue; default: the name of the template", Kind.NAME)
_MODULES = Option("modules", "environment modules to load, separated by spaces", Kind.TEXT, pattern=r"[^\n]*")
_PROJECT = Option("project", "the project that pays (-P)", Kind.NAME)
_WITH_PROGRAM = "load an environment module that has it: --set modules=NAME"

SGE = JobScheduler(
    "sge",
    "Grid Engine (SGE)",
    "qsub",
    ".sge",
    "{name}-{job}.out",
    (
        # A name that begins with a digit is refused.
        replace(_JOB_NAME, pattern=r"[A-Za-z][A-Za-z0-9._-]*"),
        Option(
            "queue",
            "the queue (-q); default: Grid Engine's choice",
            Kind.TEXT,
            pattern=r"[A-Za-z0-9._@*][A-Za-z0-9._@*-]*",
        ),
        Option("pe", "the parallel environment (-pe): qconf -spl lists them", Kind.NAME, default="mpi"),
        Option(
            "slots",
            "slots of all hosts together; whole hosts, if that are all of their slots. 0: one for each rank",
            Kind.INTEGER,
            default=0,
            minimum=0,
        ),
        Option(
            "resources", "what is asked for (-l), such as gpu=2", Kind.TEXT, pattern=r"[A-Za-z0-9._*][A-Za-z0-9._=,*-]*"
        ),
        _PROJECT,
        Option(
            "time",
            "the time limit (h_rt): seconds, or hours:minutes:seconds",
            Kind.TEXT,
            pattern=r"\d+|\d+:\d{1,2}:\d{1,2}",
        ),
        _MODULES,
    ),
    more_gpus="Take a queue of hosts with enough GPUs, or ask for them: --set queue=NAME, --set resources=gpu=NUMBER",
    with_program=_WITH_PROGRAM,
)

PBS = JobScheduler(
    "pbs",
    "OpenPBS and PBS Professional",
    "qsub",
    ".pbs",
    "{name}.o{job}",
    (
        _JOB_NAME,
        Option("queue", "the queue (-q); default: the server's", Kind.NAME),
        Option("account", "the account that pays (-A)", Kind.NAME),
        Option("project", "the project (-P)", Kind.NAME),
        Option(
            "time",
            "the time limit (walltime): seconds, or hours:minutes:seconds",
            Kind.TEXT,
            pattern=r"\d+(:\d{1,2}){0,2}",
        ),
        Option("cpus", "processors of each host (ncpus); 0: one for each rank", Kind.INTEGER, default=0, minimum=0),
        Option(
            "resources",
            "what each host has to have beside that, such as mem=200gb:model=a100",
            Kind.TEXT,
            pattern=r"[A-Za-z0-9._]+=[A-Za-z0-9._-]+(:[A-Za-z0-9._]+=[A-Za-z0-9._-]+)*",
        ),
        Option("exclusive", "take whole hosts (place=exclhost)", Kind.FLAG, default=True),
        _MODULES,
    ),
    more_gpus="Take a queue of hosts with enough GPUs (ngpus): --set queue=NAME, or --set resources=NAME=VALUE",
    with_program=_WITH_PROGRAM,
)

LSF = JobScheduler(
    "lsf",
    "IBM Spectrum LSF",
    "bsub <",
    ".lsf",
    "{name}-{job}.out",
    (
        _JOB_NAME,
        Option("queue", "the queue (-q); default: that of the cluster", Kind.NAME),
        _PROJECT,
        Option("time", "the time limit (-W): minutes, or hours:minutes", Kind.TEXT, pattern=r"\d+(:\d{1,2})?"),
        Option("slots", "slots of each host (span[ptile]); 0: one for each rank", Kind.INTEGER, default=0, minimum=0),
        Option(
            "resources",
            "what is asked for beside that (-R), such as rusage[mem=200GB]",
            Kind.TEXT,
            pattern=r"[A-Za-z0-9._=<>!&|()\[\],:* -]*",
        ),
        Option("exclusive", "take whole hosts (-x)", Kind.FLAG, default=True),
        _MODULES,
    ),
    more_gpus="Take a queue of hosts with enough GPUs: --set queue=NAME",
    with_program=_WITH_PROGRAM,
)


def _mpirun(_job: Job) -> tuple[Requirement, ...]:
    how = "Load the environment module of Open MPI: --set modules=NAME (module avail lists them)"
    return (Requirement(Need.PROGRAM, "mpirun", how, inside=False),)


LAUNCHERS = tuple(
    Launcher(
        scheduler.name,
        f"Open MPI's mpirun starts the ranks, on the hosts that {short} has given",
        scheduler,
        (Ranks.MPI, Ranks.ENVIRONMENT),
        OPEN_MPI,
        requirements=_mpirun,
        piece=piece,
    )
    # Grid Engine is at home on systems with the Open MPI of their time.
    for scheduler, short, piece in ((SGE, "Grid Engine", ""), (PBS, "PBS", "mpirun"), (LSF, "LSF", "mpirun"))
)
