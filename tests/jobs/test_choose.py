"""What a user may give, and how it is refused: with what is wrong, and what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster import shapes
from gpucluster.controller.reactions import policy
from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job, Kind, Option
from gpucluster.jobs.render import render


def chosen(name: str, settings: dict[str, str] | None = None, *, shape: str = "", nodes: int = 2) -> Job:
    template = registry.template(name)
    by = registry.launcher(template)
    return choose.choose(template, by, settings or {}, nodes=nodes, shape=shapes.get(shape) if shape else None)


@pytest.mark.parametrize(
    ("template", "settings", "said"),
    [
        ("mpi_allreduce", {"ranks_per_nodes": "2"}, "Did you mean ranks_per_node"),
        ("mpi_allreduce", {"iterations": "0"}, "1 or more"),
        ("mpi_allreduce", {"iterations": "many"}, "a whole number"),
        ("mpi_allreduce", {"largest": "99999999999999"}, "or less"),
        ("mpi_allreduce", {"expect": "nan"}, "a number"),
        ("mpi_allreduce", {"expect": "-1"}, "0 or more"),
        ("mpi_allreduce", {"exclusive": "perhaps"}, "true or false"),
        ("mpi_allreduce", {"partition": "a b"}, "letters, digits"),
        ("mpi_allreduce", {"partition": "a\n#SBATCH --uid=0"}, "letters, digits"),
        ("mpi_allreduce", {"job_name": "../x"}, "letters, digits"),
        ("mpi_allreduce", {"time": "soon"}, "must fit"),
        ("mpi_allreduce", {"on_hang": "kill"}, "must fit"),
        ("mpi_allreduce", {"modules": "a\nb"}, "must fit"),
        ("pytorch_ddp", {"data": "a\0b"}, "no file can have"),
        ("pytorch_ddp", {"data": "\udcff"}, "no file can have"),
        ("pytorch_ddp", {"expect": "2"}, "1 or less"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_wrong(template: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        chosen(template, settings)
    assert said in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("shape", "nodes", "settings", "said"),
    [
        ("VM.Standard.E5.Flex", 1, {}, "has no GPU. Take a pool with GPUs (--pool, --shape)"),
        ("BM.HPC2.36", 2, {}, "has no GPU"),
        ("", 1, {}, "it is not known which GPUs there are"),
        ("BM.GPU3.8", 2, {}, "BM.GPU3.8 has no RDMA network"),
        ("BM.GPU4.8", 2, {"operation": "all_reduced"}, "must be one of all_reduce"),
    ],
)
def test_a_template_reports_why_it_cannot_run_on_a_shape(
    shape: str, nodes: int, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        chosen("nccl_tests", settings, shape=shape, nodes=nodes)
    assert said in str(refused.value)


def test_what_a_shape_lacks_can_be_chosen_on_purpose() -> None:
    assert chosen("nccl_tests", shape="BM.GPU3.8", nodes=1).ranks == 8
    assert chosen("nccl_tests", {"without_rdma": "true"}, shape="BM.GPU3.8", nodes=2).ranks == 16
    assert chosen("pytorch_ddp", {"ranks_per_node": "3"}, shape="VM.Standard.E5.Flex").ranks == 6
    assert chosen("pytorch_ddp", shape="BM.GPU4.8").ranks == 16
    with pytest.raises(InputError, match="has 8 GPUs, and not 9"):
        choose.choose(
            registry.template("nccl_tests"), registry.launcher(registry.template("nccl_tests")), {},
            nodes=1, shape=shapes.get("BM.GPU4.8"), gpus=9,
        )  # fmt: skip


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(InputError, match="Did you mean nccl_tests"):
        registry.template("nccl_test")
    with pytest.raises(InputError, match="Did you mean mpirun"):
        registry.launcher(registry.template("nccl_tests"), "mpi-run")
    with pytest.raises(InputError, match="can't start nccl_tests"):
        registry.launcher(registry.template("nccl_tests"), "torchrun")


@given(st.text())
def test_a_text_is_taken_as_it_is_or_refused(text: str) -> None:
    option = Option("data", "any", Kind.PATH)
    try:
        assert option.parse(text) == text
    except InputError:
        assert "\0" in text or any("\ud800" <= char <= "\udfff" for char in text)


@pytest.mark.parametrize("choice", list(policy.Choice))
def test_what_follows_a_hang_is_in_the_comment_as_the_controller_reads_it(choice: policy.Choice) -> None:
    rendered = render(chosen("pytorch_ddp", {"on_hang": choice.value}))
    (line,) = [line for line in rendered.files[rendered.script].text.splitlines() if "--comment" in line]
    comment = line.removeprefix("#SBATCH --comment=")
    job = policy.WatchedJob("7", "7", "RUNNING", "", "gpu", frozenset(), comment=comment)
    assert policy.choice_of(job, policy.ReactionSettings(policy.Choice.CANCEL)) == (choice, "")
