"""The archive of `gpucluster support-bundle`: what is in it, what is missing and why, and that no secret is in it.

The hosts are a double, except in one test that runs the real program on this machine. tests/e2e/test_main_path.py has
the hosts of a cluster.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event
from gpucluster.node_agent.rules.scrubbing import Scrubber
from gpucluster.operations.support_bundle import BundleSources, SupportBundle, SupportBundles, of_workspace
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.terraform.state import StateContents, StateEntry
from gpucluster.workspace.saved_state import SavedHost
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.planted_secrets import ORDINARY, left, planted, texts_of

CONTROLLER, NODE = "demo-controller", "compute-1"
TEXT = "\n".join((*ORDINARY, *(each.text for each in planted()), *ORDINARY)) + "\n"


def sent(files: Mapping[str, Any], missing: Mapping[str, str] | None = None) -> Completed:
    """What the program on a host prints."""
    whole = json.dumps({"files": files, "cut": [], "missing": missing or {}}).encode()
    return said(base64.b64encode(zlib.compress(whole)).decode() + "\n")


def sources(
    ask: Callable[..., Completed] | None = None, *, names: Sequence[str] = (CONTROLLER, NODE), **others: Any
) -> BundleSources:
    double = ControllerDouble(lambda _asked: sent({"journal/units/slurmd.service.log": TEXT}))
    chosen: dict[str, Any] = {
        "status": lambda: {"state": "present", "note": TEXT},
        "exposure": lambda: {"hosts": [{"host": NODE, "error": TEXT}]},
        "contents": lambda: StateContents({"password": TEXT}, (StateEntry("oci_core_vcn.this", "ocid1.vcn..x"),)),
        "hosts": lambda: [SavedHost(name, "10.77.0.2", None) for name in names],
        "elastic": list,
        "ask": ask or double.ask,
    }
    return BundleSources(**{**chosen, **others})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace that has secrets in each of its files."""
    (tmp_path / "cluster.yml").write_text(f"version: 1\nname: demo\n# {ORDINARY[0]}\n{TEXT}")
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    run = "20261129T010203-abcdef"
    (paths.runs / f"{run}.json").write_text(json.dumps({"run": run, "command": "apply", "error": TEXT}))
    (paths.runs / "20261129T010204-terraform-apply.log").write_text(TEXT)
    (paths.runs / run).mkdir()
    (paths.runs / run / "evidence.json").write_text(json.dumps({"facts": {"host": {"text": TEXT}}}))
    paths.host_reports.mkdir()
    (paths.host_reports / "compute-1-20261129T010203Z.json").write_text(json.dumps({"fault": TEXT}))
    artifact = paths.ansible / "artifacts" / f"{run}-site"
    artifact.mkdir(parents=True)
    (artifact / "stdout").write_text(TEXT)
    (paths.ssh / "id_ed25519").write_text(planted()[-1].text)
    paths.terraform_state.write_text(TEXT)
    return tmp_path


def make(folder: Path, chosen: BundleSources | None, **options: Any) -> tuple[SupportBundle, dict[str, str]]:
    """A bundle, and the texts in it by their path."""
    file = folder / "cluster.yml"
    bundles = SupportBundles(
        name="demo", file=file, paths=ClusterPaths.of(file), sources=chosen, on_event=lambda _event: None
    )
    bundle = bundles.create(folder / "out.tar.gz", **options)
    return bundle, texts_of(bundle.file)


def test_two_hundred_secrets_in_each_source_and_none_in_the_archive(folder: Path) -> None:
    assert len(planted()) >= 200
    bundle, texts = make(folder, sources())
    assert stat.S_IMODE(bundle.file.stat().st_mode) == 0o600
    for name, text in texts.items():
        assert left(text) == [], name
    assert bundle.removed > 1000
    assert set(texts) >= {
        "cluster.yml", "status.json", "exposure.json", "state.json", "manifest.json", "workspace.txt",
        "runs/20261129T010203-abcdef.json", "runs/20261129T010203-abcdef/evidence.json",
        "runs/20261129T010204-terraform-apply.log", "ansible/20261129T010203-abcdef-site.log",
        "host-reports/compute-1-20261129T010203Z.json",
        f"hosts/{CONTROLLER}/journal/units/slurmd.service.log", f"hosts/{NODE}/journal/units/slurmd.service.log",
    }  # fmt: skip
    assert not any("id_ed25519" in name or "tfstate" in name for name in texts)


def test_none_stays_if_a_program_writes_them_line_by_line_into_a_journal() -> None:
    before = "2026-11-29T02:49:03.123456+00:00 compute-1 cat[812]: "
    text = "".join(f"{before}{line}\n" for line in TEXT.splitlines())
    clean = Scrubber().text(text)
    assert left(text) != []
    assert left(clean) == []
    assert all(f"{before}{line}" in clean for line in ORDINARY)


def test_ordinary_text_stays(folder: Path) -> None:
    _, texts = make(folder, sources())
    for name in ("cluster.yml", f"hosts/{NODE}/journal/units/slurmd.service.log", "status.json"):
        assert all(line in texts[name] for line in ORDINARY), name
    assert json.loads(texts["state.json"]) == [{"address": "oci_core_vcn.this", "id": "ocid1.vcn..x", "deposed": False}]


def test_the_manifest_lists_each_file_and_what_is_missing(folder: Path) -> None:
    def refuse() -> Any:
        raise ToolError(f"the state is lost: password={planted()[0].hidden[0]}")

    ask = ControllerDouble(lambda _asked: sent({"a.txt": "x\n"}, {"gpus/nvidia-smi.txt": "it is not installed here"}))
    bundle, texts = make(folder, sources(ask.ask, contents=refuse))
    manifest = json.loads(texts["manifest.json"])
    assert {entry["path"] for entry in manifest["files"]} == set(texts) - {"manifest.json"}
    missing = {each["what"]: each["why"] for each in manifest["not_collected"]}
    assert missing[f"hosts/{NODE}/gpus/nvidia-smi.txt"] == "it is not installed here"
    assert missing["state.json"] == "the state is lost: password=[removed]"
    assert manifest["hosts"] == {CONTROLLER: "", NODE: ""}
    assert bundle.files == len(manifest["files"])
    controllers = [asked for asked in ask.asked if "--controller" in asked.command]
    assert [asked.host for asked in controllers] == [None]


def test_a_host_that_never_answers_holds_nothing_up(folder: Path) -> None:
    stuck = threading.Event()

    def answer(asked: Asked) -> Completed:
        if asked.host is None:
            return sent({"a.txt": "x\n"})
        stuck.wait()
        return sent({})

    bundle, texts = make(folder, sources(ControllerDouble(answer).ask), timeout=6)
    stuck.set()
    assert bundle.hosts == {CONTROLLER: "", NODE: "no answer in time"}
    assert f"hosts/{CONTROLLER}/a.txt" in texts


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said("", 255, "no route"), "no route"),
        (said("", 1, "refused: password=hunter2-x"), "refused: password=[removed]"),
        (said("hello\n"), "its answer can't be read"),
        (said(base64.b64encode(zlib.compress(b"0" * 60_000_000)).decode()), "it has sent more than it was asked for"),
        (said("", 1, "sudo: a password is required"), "sudo asks for a password there"),
    ],
)
def test_an_answer_that_is_none(folder: Path, answer: Completed, error: str) -> None:
    bundle, _ = make(folder, sources(ControllerDouble(answer).ask, names=[CONTROLLER]))
    assert bundle.hosts == {CONTROLLER: error}


def test_a_host_writes_in_no_other_folder(folder: Path) -> None:
    names = ("../x", "/etc/x", "a/../../x", "a//b", ".hidden", "a\n", "a/" + "b" * 300)
    _, texts = make(folder, sources(ControllerDouble(sent({**dict.fromkeys(names, "x"), "n": 3, "good": "x"})).ask))
    assert [name for name in texts if name.startswith(f"hosts/{NODE}")] == [f"hosts/{NODE}/good"]


def test_without_a_cluster_there_is_what_the_workspace_has(folder: Path) -> None:
    bundle, texts = make(folder, sources(names=[]))
    assert bundle.hosts == {}
    assert any(each.why.startswith("there is no cluster") for each in bundle.not_collected)
    assert "runs/20261129T010204-terraform-apply.log" in texts


def test_a_cluster_file_that_cannot_be_read(folder: Path) -> None:
    bundle = of_workspace(folder / "cluster.yml", lambda _event: None).create(
        folder / "out.tar.gz", problem="cluster.yml:3:1: it is wrong"
    )
    assert bundle.not_collected[0].why == "cluster.yml:3:1: it is wrong"
    assert {"cluster.yml", "manifest.json"} <= set(texts_of(bundle.file))


def test_an_existing_file_and_an_unknown_host_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no host nowhere"):
        make(folder, sources(), hosts=["nowhere"])
    assert not (folder / "out.tar.gz").exists()
    (folder / "out.tar.gz").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        make(folder, sources())
    assert (folder / "out.tar.gz").read_text() == "mine"
    assert [file.name for file in folder.iterdir() if file.name.startswith(".out")] == []


def test_one_host_alone_and_progress(folder: Path) -> None:
    events: list[Event] = []
    file = folder / "cluster.yml"
    bundle = SupportBundles(
        name="demo", file=file, paths=ClusterPaths.of(file), sources=sources(), on_event=events.append
    ).create(folder / "out.tar.gz", hosts=[NODE])
    assert bundle.hosts == {NODE: ""}
    assert [event.message for event in events] == [
        "asking 1 host", f"{NODE} (1 of 1): 1 file", f"{folder / 'out.tar.gz'} is written"
    ]  # fmt: skip


def test_the_real_program_on_this_machine(folder: Path, tmp_path: Path) -> None:
    """With a `sudo` that only starts its command."""
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    sudo.chmod(0o755)

    def ask(command: str, *, text: str, timeout: float, **_others: object) -> Completed:
        environment = {**os.environ, "PATH": f"{sudo.parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command], input=text, env=environment, timeout=timeout, check=False, capture_output=True,
            text=True,
        )  # fmt: skip
        return Completed((), done.returncode, done.stdout, done.stderr)

    bundle, texts = make(folder, sources(ask, names=[CONTROLLER]))
    assert bundle.hosts == {CONTROLLER: ""}
    place = f"hosts/{CONTROLLER}"
    assert "Linux" in texts[f"{place}/system/kernel.txt"]
    assert texts[f"{place}/system/mounts.txt"].count("\n") > 2
    assert any(
        each.what == f"{place}/gpus/nvidia-smi.txt" or "nvidia-smi" in str(texts) for each in bundle.not_collected
    )
