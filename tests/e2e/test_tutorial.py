"""The tutorial of the first cluster: every command of its page, in its order, in a terminal.

The folder has the files of this checkout. Two things differ from what a reader does: the addresses are free ones, and
`make` finds everything installed, because the tests' own environment is what it would install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.ssh.sockets import Sockets
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, ROOT, Site, containers, networks, worked_example
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

PAGE = ROOT / "docs" / "tutorial" / "first-cluster.md"
_NAME = "demo"
_INSTALLED = ("system-packages", ".venv/run.stamp")


def steps(page: Path) -> dict[int, list[str]]:
    """The commands of each numbered step: the lines that are indented as code."""
    found: dict[int, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if number := re.match(r"(\d+)\. ", line):
            found[int(number[1])] = []
        elif found and line.startswith(" " * 7):
            found[max(found)].append(line.strip())
    return found


class Reader:
    """Types the commands of the page.

    Args:
        commands: those of each step that are still to be typed.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.commands = steps(PAGE)
        self.login = ""
        programs = site.folder / "programs"
        programs.mkdir()
        make = programs / "make"
        make.write_text(
            f'#!/bin/sh\nexec {shutil.which("make")} {" ".join(f"-o {name}" for name in _INSTALLED)} "$@"\n'
        )
        make.chmod(0o755)
        self._env = {**site.env, "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "xterm"}

    def types(self, step: int, *, answer: str = "", status: int = 0) -> str:
        """Type the next command of a step in a terminal of 120 columns. Returns what it shows.

        Args:
            answer: typed when it asks. `status`: with which it has to end.
        """
        command = self.commands[step].pop(0)
        argv = ["script", "--quiet", "--return", "--command", f"stty cols 120; {command}", os.devnull]
        done = subprocess.run(
            argv, cwd=self.site.folder, env=self._env, input=f"{answer}\n", stdout=subprocess.PIPE, text=True,
            timeout=PATIENCE_TO_BUILD_S, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{command}: {done.stdout[-3000:]}"
        return done.stdout

    def types_on_the_cluster(self, step: int, count: int) -> str:
        """Type the next commands of a step into one login. Returns what they print."""
        typed = [self.commands[step].pop(0) for _ in range(count)]
        return self.on_the_cluster("".join(f"{line}\n" for line in typed))

    def on_the_cluster(self, text: str) -> str:
        done = subprocess.run(
            ["sh", "-c", f"{self.login} -T"], cwd=self.site.folder, input=text, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_TO_BUILD_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Site(worked_example("local")) as site:
        for name in ("Makefile", "ansible", "gpucluster", "pyproject.toml", "requirements.lock", "terraform", "tools"):
            (site.folder / name).symlink_to(ROOT / name)
        (site.folder / ".venv").symlink_to((ROOT / ".venv").resolve())
        inventory = site.folder / "inventories" / "local" / "cluster.yml"
        inventory.parent.mkdir(parents=True)
        site.file = site.file.rename(inventory)
        yield Reader(site)
        if sockets := Sockets(inventory.parent / ".gpucluster").folder():
            shutil.rmtree(sockets)


def test_make_demo_builds_it_and_shows_how_to_log_in(reader: Reader) -> None:
    shown = reader.types(1)
    found = re.search(rf"\bssh -F \S+ (?:-\S+ \S+ )*alice@{_NAME}-controller", shown)
    assert found, shown[-2000:]
    reader.login = found[0]


def test_users_work_on_both_nodes(reader: Reader) -> None:
    assert re.search(r"\d+% /mnt/home$", reader.types_on_the_cluster(2, 1), re.MULTILINE)
    shown = reader.types_on_the_cluster(3, 1)
    assert sorted(re.findall(r"^(compute-\d): (\S+)$", shown, re.MULTILINE)) == [
        ("compute-1", "0,1,2,3,4,5,6,7"),
        ("compute-2", "0,1,2,3,4,5,6,7"),
    ]


def test_a_job_is_submitted_and_its_output_read(reader: Reader) -> None:
    shown = reader.types_on_the_cluster(4, 2)
    submitted = re.search(r"Submitted batch job (\d+)", shown)
    assert submitted, shown
    ended = f"sacct --noheader --allocations --format State --jobs {submitted[1]}\n"
    wait_for("the job has ended", lambda: "COMPLETED" in reader.on_the_cluster(ended), interval=0.5)
    shown = reader.types_on_the_cluster(4, 2)
    assert {"compute-1", "compute-2"} <= set(shown.split())
    assert re.search(rf"^{submitted[1]} .* COMPLETED ", shown, re.MULTILINE), shown


def test_the_operator_looks_at_it(reader: Reader) -> None:
    assert _NAME in reader.types(5)
    assert re.search(r"^\d+\s*$", reader.types(5), re.MULTILINE)


def test_it_grows_by_a_node(reader: Reader) -> None:
    text = reader.site.file.read_text()
    assert text.count("count: 2") == 1
    reader.site.file.write_text(text.replace("count: 2", "count: 3"))
    assert "compute-3" in reader.types(6)
    assert "[y/N]" in reader.types(6, answer="y")
    assert len(containers(reader.site.home)) == 4


def test_it_is_removed_with_the_files_only_when_told(reader: Reader) -> None:
    reader.types(7, answer=_NAME, status=6)
    assert len(containers(reader.site.home)) == 4
    reader.types(7, answer=_NAME)
    assert containers(reader.site.home) == []
    assert networks(reader.site.home) == []
    assert not any(reader.commands.values()), "every command of the page was typed"
