"""Section `verify`: with what level `full` of `gpucluster verify` measures."""

from __future__ import annotations

from pydantic import Field

from gpucluster.spec.sections.fields import SpecPart

PROGRAM_PATTERN = r"^(/[A-Za-z0-9_.+@/-]+)?$"
CONTAINER_PATTERN = r"^[A-Za-z0-9_.:/@#+-]*$"
MPI_PATTERN = r"^[a-z0-9_]*$"


class Verify(SpecPart):
    """With what level `full` of `gpucluster verify` measures the nodes."""

    nccl_tests: str = Field(
        default="",
        pattern=PROGRAM_PATTERN,
        max_length=1024,
        description="Path of `all_reduce_perf` of nccl-tests on the nodes, or in `nccl_image`. Default: the one that "
        "is found there by its name, else the one that the sample job `nccl_tests` has built in the home of the first "
        "user of `users.people`.",
        examples=["/mnt/home/tools/nccl-tests/build/all_reduce_perf"],
    )
    nccl_image: str = Field(
        default="",
        pattern=CONTAINER_PATTERN,
        max_length=1024,
        description="Container image with NCCL and MPI in which it runs: a squashfs file that all nodes see, or an "
        "address as Pyxis takes it. Default: none, it runs on the node itself. With Kubernetes an image that nodes "
        "have or pull; without it NCCL is not measured there.",
        examples=["/mnt/home/.gpucluster/images/hpcx.sqsh"],
    )
    mpi: str = Field(
        default="",
        pattern=MPI_PATTERN,
        max_length=32,
        description="How its ranks find each other (`srun --mpi`). Default: Slurm's own default.",
        examples=["pmix"],
    )
