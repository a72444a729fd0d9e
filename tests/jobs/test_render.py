"""Scripts of all templates, for all launchers, on all kinds of hardware."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import shapes
from gpucluster.jobs import choose, registry
from gpucluster.jobs.launchers.kubernetes import KUBERNETES
from gpucluster.jobs.model import Job, Rendered
from gpucluster.jobs.render import render
from tests.documents import parse_all

#: GPUs and RDMA, GPUs alone, RDMA alone, neither.
PLACES = (("BM.GPU4.8", 1), ("BM.GPU4.8", 16), ("BM.GPU3.8", 1), ("BM.HPC2.36", 16), ("VM.Standard.E5.Flex", 2))
#: With so many nodes, also with everything that can be set.
_SET_WITH = 16
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def jobs() -> Iterator[tuple[str, Job]]:
    """Each template, launcher and shape, one node and many, with the defaults and with everything that can be set."""
    for template in registry.templates():
        for name, (shape, nodes) in itertools.product(template.launchers, PLACES):
            by = registry.launchers()[name]
            least = {"image": "registry.example/work:1"} if by.scheduler is KUBERNETES else {}
            for settings in (least, _all_set(by.name)) if nodes == _SET_WITH else (least,):
                known = {option.name for option in choose.options(template, by)}
                job = choose.describe(
                    template, by, {key: value for key, value in settings.items() if key in known},
                    nodes=nodes, shape=shapes.get(shape),
                )  # fmt: skip
                if not choose.refusal(job):
                    yield f"{template.name}-{name}-{shape}-{nodes}-{'set' if len(settings) > 1 else 'default'}", job


def _all_set(launcher: str) -> dict[str, str]:
    others = {
        "sge": {"time": "26:00:00", "queue": "short.q", "slots": "96", "resources": "gpu=8"},
        "pbs": {"time": "26:00:00", "queue": "gpu", "cpus": "64", "resources": "mem=200gb:model=a100"},
        "lsf": {"time": "26:00", "queue": "gpu", "slots": "64", "resources": "rusage[mem=200GB] select[type==any]"},
    }.get(launcher, {})
    if registry.launchers()[launcher].scheduler is KUBERNETES:
        others = {"time": "60", "image": "registry.example/a:1", "network_interface": "net1", "uid": "7"}
    return {
        "partition": "gpu", "account": "a", "qos": "high", "reservation": "r", "time": "1-02:00:00",
        "exclusive": "false", "cpus_per_task": "4", "modules": "compiler/gcc/7 mpi", "job_name": f"x-{launcher}",
        "image": "/images/a b.sqsh", "mounts": "/a:/b", "data": "/data", "program": "/p", "weights": "/w",
        "checkpoint": "/c/d", "expect": "1", "debug": "INFO", "algorithm": "ring", "without_rdma": "true",
        "on_hang": "requeue",
        **others,
    }  # fmt: skip


ALL = dict(jobs())


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Rendered]]:
    folder = tmp_path_factory.mktemp("scripts")
    found = {}
    for name, job in ALL.items():
        rendered = render(job)
        file = folder / f"{name}.sh"
        file.write_text(_script(rendered))
        found[name] = (file, rendered)
    return found


def _script(rendered: Rendered) -> str:
    text = rendered.files[rendered.script].text
    # With Kubernetes it is a text in an object.
    launcher = rendered.job.launcher
    return str(parse_all(text)[0]["data"][launcher.script]) if launcher.wrap else text


@pytest.mark.slow
def test_shells_accept_all_scripts(scripts: dict[str, tuple[Path, Rendered]]) -> None:
    files = [str(file) for file, _rendered in scripts.values()]
    # Each bash reads one script; its output is about all that are wrong.
    wrong = [file for file in files if subprocess.run(["bash", "-n", file], check=False).returncode]
    assert wrong == []
    # Scripts that differ in their numbers and names alone are the same to it.
    different = {
        re.sub(r"\d+|(?m:^#SBATCH.*|^printf 'gpucluster job.*)", "", Path(file).read_text()): file for file in files
    }
    assert len(different) > len(ALL) // 3
    # Some hundred scripts: minutes of processor time where others work, too.
    done = subprocess.run(
        [str(SHELLCHECK), "--shell=bash", *different.values()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[:4000]


def test_a_script_names_only_what_its_own_launchers_take(scripts: dict[str, tuple[Path, Rendered]]) -> None:
    """Advice in a script is for who has that scheduler."""
    for name, (file, rendered) in scripts.items():
        job = rendered.job
        title = job.launcher.scheduler.title
        others = [each for each in registry.launchers().values() if each.scheduler == job.launcher.scheduler]
        known = {option.name for each in others for option in choose.options(job.template, each)}
        text = file.read_text()
        advised = set(re.findall(r"--set (\w+)=", text))
        assert advised <= known, f"{name}: {title} has no {advised - known}"
        assert set(re.findall(r"--launcher ([\w-]+)", text)) <= {each.name for each in others}, name


_EMPTY = re.compile(r"\b(\w+)=\(\)")
#: What bash 4.3 and later have (its file CHANGES): references to names, `wait -n`, quoting by `@Q`, elements by `-v`.
_YOUNG = re.compile(
    r"\b(?:local|declare|typeset) -[a-zA-Z]*n\b|\bwait -n\b|\$\{[^}]*@[QEPA]\}|\bmapfile -d\b|inherit_errexit"
)


def test_scripts_run_with_bash_4_2(scripts: dict[str, tuple[Path, Rendered]]) -> None:
    """Its `set -u` takes an array without elements for an unset variable; bash 4.4 does not."""
    for name, (file, rendered) in scripts.items():
        if rendered.job.launcher.wrap:
            continue  # it runs in an image, with a bash of this decade
        text = file.read_text()
        for array in set(_EMPTY.findall(text)):
            whole = f'"${{{array}[@]}}"'
            guarded = f"${{{array}[@]+{whole}}}"
            assert whole not in text.replace(guarded, ""), f"{name}: {array} may be empty: write {guarded}"
        assert not _YOUNG.search(text), name


def test_shells_accept_the_payload(tmp_path: Path) -> None:
    found = []
    for template in registry.templates():
        files = render(choose.describe(template, registry.launcher(template), {}, nodes=2, shape=None)).files
        for payload in template.payload:
            found.append(tmp_path / f"{template.name}-{payload.name}")
            found[-1].write_text(files[payload.name].text)
    shell = [str(file) for file in found if file.suffix == ".sh"]
    done = subprocess.run([str(SHELLCHECK), *shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for file in found:
        if file.suffix == ".py":
            compile(file.read_text(), str(file), "exec", dont_inherit=True)


def test_what_sbatch_reads_is_in_front_of_the_first_command(scripts: dict[str, tuple[Path, Rendered]]) -> None:
    for name, (file, rendered) in scripts.items():
        if rendered.submit != "sbatch":
            continue
        lines = file.read_text().splitlines()
        first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
        directives = [line for line in lines[:first] if line.startswith("#SBATCH ")]
        assert not [line for line in lines[first:] if line.startswith("#SBATCH")], name
        job = rendered.job
        assert f"#SBATCH --nodes={job.nodes}" in directives
        assert f"#SBATCH --ntasks-per-node={job.per_node}" in directives
        assert "#SBATCH --output=%x-%j.out" in directives
        assert rendered.output == f"{job.name}-{{job}}.out"
        assert (f"#SBATCH --gpus-per-node={job.gpus}" in directives) == bool(job.gpus)
        assert ("--gpu-bind" in file.read_text()) <= bool(job.gpus)
        # A word of sbatch has no space: it would read only its beginning.
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[\w.:%+=-]+)?", line) for line in directives), directives


def test_no_setting_of_the_network_is_written_again(scripts: dict[str, tuple[Path, Rendered]]) -> None:
    for script, rendered in scripts.values():
        texts = [script.read_text(), *(file.text for name, file in rendered.files.items() if name != rendered.script)]
        for text in texts:
            assert not re.search(r"(NCCL_(IB|SOCKET|NET|CROSS)_|UCX_)\w+=", text)


def test_the_same_job_is_the_same_bytes_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    job = next(iter(ALL.values()))
    before = render(job)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    assert render(job) == before
