"""The launchers of Slurm, 22.05 to 26.05: srun, srun with containers (Pyxis), mpirun, torchrun."""

from __future__ import annotations

from gpucluster.controller.reactions.policy import Choice
from gpucluster.jobs.model import (
    OPEN_MPI,
    Job,
    JobScheduler,
    Kind,
    Launcher,
    Need,
    Option,
    Ranks,
    RankVariables,
    Requirement,
)

#: "minutes", "hours:minutes:seconds", "days-hours" and so on: sbatch --time.
_TIME = r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}"
_CHOICES = "|".join(choice.value for choice in Choice)

SLURM = JobScheduler(
    "slurm",
    "Slurm",
    "sbatch",
    ".sbatch",
    "{name}-{job}.out",
    (
        Option("job_name", "the job's name in the queue; default: the name of the template", Kind.NAME),
        Option("partition", "the partition; default: that of the pool, else Slurm's default", Kind.NAME),
        Option("account", "the account that pays", Kind.NAME),
        Option("qos", "the quality of service", Kind.NAME),
        Option("reservation", "the reservation", Kind.NAME),
        Option(
            "time", "the time limit, as sbatch reads it: minutes, or hours:minutes:seconds", Kind.TEXT, pattern=_TIME
        ),
        Option(
            "on_hang",
            "what follows if the cluster's watcher finds it hung: tell, requeue or cancel; default: the partition's",
            Kind.TEXT,
            pattern=_CHOICES,
        ),
        Option("exclusive", "take whole nodes", Kind.FLAG, default=True),
        Option("cpus_per_task", "CPUs of each rank; 0: not asked for", Kind.INTEGER, default=0, minimum=0),
        Option("modules", "environment modules to load, separated by spaces", Kind.TEXT, pattern=r"[^\n]*"),
    ),
    more_gpus="Take a partition of nodes with enough GPUs: --set partition=NAME",
    with_program=(
        "load an environment module that has it: --set modules=NAME, or take an image that has it{pyxis}: "
        "--launcher pyxis --set image=FILE"
    ),
)
_MPI = Option("mpi", "srun's plugin by which MPI ranks find each other: srun --mpi=list", Kind.NAME, default="pmix")
_VARIABLES = RankVariables("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")


def _image(job: Job) -> tuple[Requirement, ...]:
    how = "Import one with `gpucluster image import`, and name its file: --set image=FILE"
    return (Requirement(Need.IMAGE, job.text("image"), how, inside=False),)


def _mpirun(_job: Job) -> tuple[Requirement, ...]:
    how = "Install Open MPI on the nodes (Debian: openmpi-bin), or load its environment module: --set modules=NAME"
    return (Requirement(Need.PROGRAM, "mpirun", how),)


SRUN = Launcher("srun", "srun starts the ranks", SLURM, (Ranks.MPI, Ranks.ENVIRONMENT), _VARIABLES, options=(_MPI,))
PYXIS = Launcher(
    "pyxis",
    "srun starts the ranks in containers (Pyxis and Enroot)",
    SLURM,
    (Ranks.MPI, Ranks.ENVIRONMENT),
    _VARIABLES,
    options=(
        _MPI,
        Option(
            "image", "a squashfs file on the share, or an address such as registry.example#org/image:tag", Kind.TEXT
        ),
        Option("mounts", "more mounts for the container, as Pyxis reads them: SOURCE:TARGET[:FLAGS],...", Kind.TEXT),
    ),
    requirements=_image,
)
MPIRUN = Launcher(
    "mpirun",
    "Open MPI's mpirun starts the ranks, on the nodes that Slurm has given",
    SLURM,
    (Ranks.MPI, Ranks.ENVIRONMENT),
    OPEN_MPI,
    requirements=_mpirun,
)
TORCHRUN = Launcher(
    "torchrun",
    "srun starts torchrun on each node, which starts the ranks",
    SLURM,
    (Ranks.ENVIRONMENT,),
)
LAUNCHERS = (SRUN, PYXIS, MPIRUN, TORCHRUN)
