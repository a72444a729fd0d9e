"""What others have written has a bound, of its size and of its depth, before it is read as a whole.

A file that is nested without end, or packed a thousand to one, is refused with a sentence: it fills no memory and no
disk, and ends no program with a traceback.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpucluster
from gpucluster.configuration.runner import _agent_error
from gpucluster.controller.backup import archive
from gpucluster.controller.jobs import datasets
from gpucluster.errors import InputError
from gpucluster.jobs import outputs
from gpucluster.jobs.model import HEADER
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import HostReport
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.operations import backup, users_file
from gpucluster.spec import load
from gpucluster.spec.document import MAX_BYTES
from gpucluster.terraform import messages

DEEP = "[" * 200_000
#: What Python's parser takes, and what walks through values would not.
DEEPER = '{"a":' * (bounded.DEEPEST + 1) + "1" + "}" * (bounded.DEEPEST + 1)
NESTED = (DEEP, DEEP + "]" * 200_000, '{"a":' * 200_000, DEEPER)


READERS: dict[str, Callable[[Path, str], object]] = {
    "an agent's error": lambda _, text: _agent_error(text),
    "a message of Terraform": lambda _, text: messages.parse(text),
    "a line of a job's output": lambda _, text: (outputs.header(HEADER + text), list(outputs.objects(text))),
    "the manifest of a data set": lambda folder, text: (
        (folder / datasets.MANIFEST).write_text(text), datasets._manifest(Folder.open(folder))
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_takes_it_as_no_value(reader: str, text: str, tmp_path: Path) -> None:
    READERS[reader](tmp_path, text)


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_a_report_of_a_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|delimiter"):
        HostReport.from_dict(bounded.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "{a: " * 50_000,
        "- " * 20_000,
        "? " * 20_000,
        "x" * (MAX_BYTES + 1),
        "a: &a [*a, *a]",
    ],
)
def test_files_of_yaml(text: str, tmp_path: Path) -> None:
    """cluster.yml, and a file of users."""
    file = tmp_path / "cluster.yml"
    file.write_text(text)
    with pytest.raises(InputError):
        load(file)
    with pytest.raises(InputError):
        users_file.read(file)


# --- backups -----

GOOD: dict[str, Any] = {
    "version": 1, "cluster": "demo", "suffix": "dc=demo", "slurm_cluster": None, "time": "2026-01-01T00:00:00Z",
    "counts": {"people": 1, "groups": 1, "accounting_jobs": None}, "sha256": {archive.DIRECTORY: "0" * 64},
}  # fmt: skip


def packed(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return out.getvalue()


def unpacked(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize(
    "changed",
    [{"cluster": "\x1b]0;x\x07"}, {"cluster": "x" * 64}, {"cluster": ["x"]}, {"cluster": "a\n"}, {"time": "\x1b[31m"},
     {"suffix": "dc=a\n"}, {"slurm_cluster": "a;b\n"}, {"counts": {}}, {"sha256": {"../x": "0" * 64}},
     {"sha256": {archive.DIRECTORY: "x"}}, {"sha256": {archive.DIRECTORY: 1}}, {"sha256": []}],
    ids=str,
)  # fmt: skip
def test_a_hostile_manifest_is_refused_before_anything_else_is_unpacked(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    stream = io.BytesIO(
        packed((archive.MANIFEST, json.dumps({**GOOD, **changed}).encode()), (archive.DIRECTORY, b"x" * 9))
    )
    with pytest.raises(Refused) as caught:
        archive.read_backup(tmp_path, stream)
    assert str(caught.value).isprintable()
    assert not (tmp_path / archive.DIRECTORY).exists()


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_a_manifest_that_is_nested(text: str, tmp_path: Path) -> None:
    data = packed((archive.MANIFEST, text[: archive.LARGEST_MANIFEST - 1].encode()))
    with pytest.raises(Refused):
        archive.read_backup(tmp_path, io.BytesIO(data))
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(InputError, match="not a backup"):
        backup.inspect(file)


def test_a_member_before_the_manifest_or_not_in_it(tmp_path: Path) -> None:
    manifest = json.dumps(GOOD).encode()
    for members in (
        [(archive.DIRECTORY, b"x"), (archive.MANIFEST, manifest)],
        [(archive.MANIFEST, manifest), (archive.ACCOUNTING, b"x")],
    ):
        folder = tmp_path / members[0][0]
        folder.mkdir()
        with pytest.raises(Refused, match="does not belong"):
            archive.read_backup(folder, io.BytesIO(packed(*members)))
        assert not (folder / members[1][0]).exists() or members[1][0] != archive.ACCOUNTING


@pytest.mark.slow
def test_a_bomb_fills_no_disk(tmp_path: Path) -> None:
    """Ten times what a backup may have in any case, packed a thousand to one."""
    size = 10 * (1 << 26)
    member = tarfile.TarInfo(archive.DIRECTORY)
    member.size = size
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as stream:
        stream.write(gzip.decompress(packed((archive.MANIFEST, json.dumps(GOOD).encode())))[:1024])
        stream.write(member.tobuf())
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    assert len(out.getvalue()) < size / 100
    with pytest.raises(Refused, match="to 1"):
        archive.read_backup(tmp_path, io.BytesIO(out.getvalue()))
    assert unpacked(tmp_path) <= (1 << 26) + (1 << 21)


def test_a_name_as_large_as_a_bomb_fills_no_memory(tmp_path: Path) -> None:
    """tarfile reads a long name as a whole."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as stream:
        stream.write(member.tobuf(tarfile.GNU_FORMAT))
        for _ in range(100):
            stream.write(bytes(1 << 20))
    with pytest.raises(Refused, match="to 1"):
        archive.read_backup(tmp_path, io.BytesIO(out.getvalue()))


def test_parsers_of_others_are_bounded() -> None:
    """What a host, a program or another machine has written goes through `bounded`."""
    folder = Path(gpucluster.__file__).parent
    places = [folder / name for name in ("operations", "terraform", "workspace", "verdict", "jobs")]
    found = [
        f"{file.relative_to(folder)}:{number}"
        for place in places
        for file in place.rglob("*.py")
        if "templates" not in file.parts
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(r"\bjson\.loads?\(", line) and "terraform/program.py" not in str(file)
    ]
    assert found == []
