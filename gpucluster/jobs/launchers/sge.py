"""Grid Engine with environment modules (seed 004): Open MPI's mpirun starts the ranks.

Facts: qsub(1), sge_pe(5) and queue_conf(5) of Grid Engine 8.1.9. A job has a parallel environment, and its hosts are
the lines of the file $PE_HOSTFILE, which begin with the name of a host and its number of slots.
"""

from __future__ import annotations

from gpucluster.jobs.model import OPEN_MPI, Job, Kind, Launcher, Need, Option, Ranks, Requirement, Scheduler

#: "hours:minutes:seconds" or seconds: h_rt.
_TIME = r"\d+|\d+:\d{1,2}:\d{1,2}"
#: A name that begins with a digit is refused.
_JOB_NAME = r"[A-Za-z][A-Za-z0-9._-]*"

SGE = Scheduler(
    "sge",
    "Grid Engine (SGE)",
    "qsub",
    ".sge",
    "{name}-{job}.out",
    (
        Option(
            "job_name", "the job's name in the queue; default: the name of the template", Kind.NAME, pattern=_JOB_NAME
        ),
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
        Option("project", "the project that pays (-P)", Kind.NAME),
        Option("time", "the time limit (h_rt): seconds, or hours:minutes:seconds", Kind.TEXT, pattern=_TIME),
        Option("modules", "environment modules to load, separated by spaces", Kind.TEXT, pattern=r"[^\n]*"),
    ),
    more_gpus="Take a queue of hosts with enough GPUs, or ask for them: --set queue=NAME, --set resources=gpu=NUMBER",
    with_program="load an environment module that has it: --set modules=NAME",
)


def _mpirun(_job: Job) -> tuple[Requirement, ...]:
    how = "Load the environment module of Open MPI: --set modules=NAME (module avail lists them)"
    return (Requirement(Need.PROGRAM, "mpirun", how, inside=False),)


LAUNCHERS = (
    Launcher(
        "sge",
        "Open MPI's mpirun starts the ranks, on the hosts that Grid Engine has given",
        SGE,
        (Ranks.MPI, Ranks.ENVIRONMENT),
        OPEN_MPI,
        requirements=_mpirun,
    ),
)
