"""Jobs for PBS and LSF: what their qsub and bsub read, and what a job finds on its hosts.

The double of qsub takes and refuses what the real OpenPBS 23.06.06 does: all templates were submitted to it by hand,
and ran on two hosts as far as their programs were there. bsub's follows its documentation alone, without LSF.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job
from gpucluster.jobs.render import render
from tests.jobs.templates.test_rdma_perftest import job, programs
from tests.jobs.test_render import ALL

# `illegal attribute or resource value` is its answer to another one.
_WALLTIME = re.compile(r"\d+(:\d+){0,2}")
_CHUNK = {"ncpus", "mpiprocs", "ngpus", "mem", "model"}  # `model` is made up, as sites do


def qsub(script: str) -> dict[str, str]:
    """What qsub reads in a script: up to its first command.

    Raises:
        ValueError: it refuses the script.
    """
    read: dict[str, str] = {}
    for line in script.splitlines()[1:]:
        if not line.startswith("#"):
            break
        if not line.startswith("#PBS"):
            continue
        words = line.split()[1:]
        if len(words) != 2 or words[0] not in ("-S", "-N", "-l", "-q", "-A", "-P", "-j"):
            raise ValueError(f"usage: {line}")
        flag, value = words
        if flag == "-l":
            name, _, value = value.partition("=")
            flag = name
        read[flag] = value
    if not re.fullmatch(r"[A-Za-z0-9._+-]{1,230}", read["-N"]) or read["-j"] not in ("oe", "eo", "n"):
        raise ValueError(f"illegal -N or -j value: {read}")
    count, *chunk = read["select"].split(":")
    unknown = {each.partition("=")[0] for each in chunk} - _CHUNK
    if not count.isdecimal() or unknown:
        raise ValueError(f"Unknown resource: {unknown or count}")
    if not set(read["place"].split(":")) <= {"scatter", "excl", "exclhost", "pack", "free", "shared"}:
        raise ValueError(f"Invalid place: {read['place']}")
    if "walltime" in read and not _WALLTIME.fullmatch(read["walltime"]):
        raise ValueError("Illegal attribute or resource value Resource_List.walltime")
    return read


def bsub(script: str) -> dict[str, list[str]]:
    """What bsub reads in a script on its standard input.

    Raises:
        ValueError: it refuses the script.
    """
    read: dict[str, list[str]] = {}
    for line in script.splitlines():
        if not line.startswith("#BSUB"):
            continue
        flag, *values = shlex.split(line.removeprefix("#BSUB"))
        if flag not in ("-J", "-n", "-R", "-gpu", "-q", "-P", "-W", "-x", "-o") or len(values) != (flag != "-x"):
            raise ValueError(f"Bad argument: {line}")
        read.setdefault(flag, []).extend(values)
    if not read["-n"][0].isdecimal() or not re.fullmatch(r"\d+(:\d\d)?", read.get("-W", ["1"])[0]):
        raise ValueError(f"Bad -n or -W: {read}")
    return read


def test_qsub_refuses_what_the_real_one_does() -> None:
    good = "#!/bin/bash\n#PBS -N a\n#PBS -j oe\n#PBS -l select=1:ncpus=1\n#PBS -l place=scatter\n"
    assert qsub(good)
    for bad in (
        "#PBS -l walltime=1-0",
        "#PBS -l walltime=1:2:3:4",
        "#PBS -l select=1:foo=1",
        "#PBS -N a b",
        "#PBS -y a",
    ):
        with pytest.raises(ValueError, match=r"Illegal|Unknown|usage"):
            qsub(f"{good}{bad}\n")
    assert qsub(f"{good}true\n#PBS -N later\n")["-N"] == "a", "what comes behind a command is a comment"


@pytest.mark.parametrize("name", [name for name in ALL if re.search("-(pbs|lsf)-", name)])
def test_every_job_is_taken(name: str) -> None:
    of = ALL[name]
    rendered = render(of)
    text = rendered.files[rendered.script].text
    if of.launcher.name == "pbs":
        read = qsub(text)
        assert (rendered.submit, rendered.output) == ("qsub", f"{of.name}.o{{job}}")
        count, *chunk = read["select"].split(":")
        wanted = {"mpiprocs": str(of.per_node)} | ({"ngpus": str(of.gpus)} if of.gpus else {})
        assert (count, wanted.items() <= dict(each.split("=") for each in chunk).items()) == (str(of.nodes), True)
        assert read["place"] == ("scatter:exclhost" if of.values["exclusive"] else "scatter")
    else:
        asked = bsub(text)
        assert (rendered.submit, rendered.output) == ("bsub <", f"{of.name}-{{job}}.out")
        tile = re.fullmatch(r"span\[ptile=(\d+)\]", asked["-R"][0])
        assert tile
        assert int(asked["-n"][0]) == of.nodes * int(tile[1])
        assert asked["-o"] == [f"{of.name}-%J.out"]
        assert asked.get("-gpu", []) == ([f"num={of.gpus}:j_exclusive=yes"] if of.gpus else [])


def _run(folder: Path, of: Job, hosts: list[str]) -> subprocess.CompletedProcess[str]:
    """The job's script on its first host, begun in another folder than its own; mpirun prints its arguments."""
    rendered = render(of)
    place = folder / "job"
    place.mkdir()
    for file_name, file in rendered.files.items():
        (place / file_name).write_text(file.text)
    (folder / "hosts").write_text("".join(f"{host}\n" for host in hosts))
    say = 'printf "%s\\n" "${0##*/} $* in $PWD"'
    given = {
        "PBS_JOBID": "1234.server.example", "PBS_O_WORKDIR": str(place), "PBS_NODEFILE": str(folder / "hosts"),
        "LSB_JOBID": "1234", "LS_SUBCWD": str(place), "LSB_DJOB_HOSTFILE": str(folder / "hosts"),
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(place / rendered.script)], env={**programs(folder, mpirun=say, mpicc="true"), **given},
        cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", ["pbs", "lsf"])
def test_ranks_are_started_on_the_hosts_that_the_job_has_got(tmp_path: Path, launcher: str) -> None:
    hosts = ["n2", "n2", "n1", "n1"]
    done = _run(tmp_path, job("mpi_allreduce", launcher, nodes=2, ranks_per_node="2"), hosts)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "mpi_allreduce-1234 " in line]
    assert line.startswith("mpirun -np 4 --host n2:2,n1:2 --map-by ppr:2:node ")
    assert line.endswith(f" in {tmp_path}/job")


@pytest.mark.parametrize(
    ("launcher", "says"), [("pbs", "place chunks on hosts of their own"), ("lsf", "ask for all slots of a host")]
)
def test_fewer_hosts_than_asked_for_end_the_job(tmp_path: Path, launcher: str, says: str) -> None:
    done = _run(tmp_path, job("mpi_allreduce", launcher, nodes=2), ["n1", "n1"])
    assert done.returncode == 66
    assert "gave 1 of 2 hosts: " in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("launcher", ["pbs", "lsf"])
def test_outside_of_a_job_it_reports_how_to_submit_it(tmp_path: Path, launcher: str) -> None:
    rendered = render(job("mpi_allreduce", launcher))
    file = tmp_path / rendered.script
    file.write_text(rendered.files[rendered.script].text)
    done = subprocess.run(
        ["bash", str(file)], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"{rendered.submit} {rendered.script}" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "setting"),
    [
        ("pbs", "queue=x\n#PBS -o /etc/passwd"), ("pbs", "resources=mem=1gb -o x"), ("pbs", "resources=mem"),
        ("pbs", "time=1-0"), ("pbs", "account=a b"), ("lsf", 'resources=x" -o "y'), ("lsf", "resources=a\nb"),
        ("lsf", "resources=$(id)"), ("lsf", "time=1:2:3"), ("lsf", "project=a;b"), ("lsf", "job_name=a[1-9]"),
    ],
)  # fmt: skip
def test_what_they_read_has_no_special_characters(launcher: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    template = registry.template("mpi_allreduce")
    with pytest.raises(InputError):
        choose.describe(template, registry.launcher(template, launcher), {name: value}, nodes=2, shape=None)
