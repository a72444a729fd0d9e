"""What hosts should have of the controller's keys follows from its files, also for a host that boots."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.controller import munge_keys, shared_keys
from gpucluster.controller.host_commands import Answer
from gpucluster.controller.rotation_parts import UnconfirmedHosts
from gpucluster.controller.shared_keys import beside, document, servers
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.shared_keys import LOGIN, SERVER
from tests.controller.host_keys import pair
from tests.controller.rotated_hosts import CONFIG

KNOWN = {"hosts": {"10.0.1.2": ["compute-1"]}, "elastic": [], "domain": ""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_keys, "DOCUMENT", tmp_path / "document")
    for name in ("gpucluster", LOGIN, SERVER):
        pair(tmp_path / name)
    return tmp_path


def config(folder: Path) -> HostLogins:
    return replace(CONFIG, key=folder / "gpucluster")


def test_during_a_rotation_two_keys_are_accepted_and_one_is_used(folder: Path) -> None:
    before = document(config(folder), folder)
    assert [len(before["controller"]), len(before["containers"]["authorized"])] == [1, 1]
    for name, ending in (("gpucluster", ".next"), (LOGIN, ".next"), (SERVER, ".former")):
        pair(beside(folder / name, ending))
    during = document(config(folder), folder)
    for part, listed in ((during, "controller"), (during["containers"], "authorized"), (during["containers"], "known")):
        assert len(part[listed]) == 2
    assert during["controller"][0] == before["controller"][0]
    assert during["containers"]["login"] == before["containers"]["login"]
    # A former key of the controller is its own matter: no host is to accept it.
    pair(beside(folder / "gpucluster", ".former"))
    assert document(config(folder), folder) == during


def test_what_is_not_there_is_left_out(folder: Path) -> None:
    assert list(document(config(folder), folder / "none")) == ["controller"]
    assert list(document(HostLogins(), folder)) == ["containers"]
    assert document(HostLogins({}, folder / "none"), folder / "none") == {}


def test_a_host_that_boots_gets_it_from_the_first_rotation_on(folder: Path) -> None:
    def answer(port: int = 900, address: str = "10.0.1.2") -> object:
        text = json.dumps({"which": "shared", "has": ""})
        return munge_keys.answer(address, port, text, KNOWN, (folder / "no", folder / "no"), shared_keys.DOCUMENT)

    assert answer() == {"shared": None}
    made = shared_keys.publish(config(folder), folder)
    assert answer() == {"shared": made}
    assert stat.S_IMODE(shared_keys.DOCUMENT.stat().st_mode) == 0o600
    for port, address in ((1024, "10.0.1.2"), (900, "10.0.9.9")):
        with pytest.raises(Refused):
            answer(port, address)


def test_the_number_of_servers_is_read_whatever_a_host_prints() -> None:
    assert servers(Answer('welcome\n{"servers": 2}\n', "")) == 2
    for text in ("", "x", "[]", "{}", '{"servers": "x"}', '{"servers": null}'):
        assert servers(Answer(text, "")) == 0


def test_hosts_that_have_not_confirmed_are_kept_in_a_file(tmp_path: Path) -> None:
    left = UnconfirmedHosts(tmp_path / "left", "controller-key")
    assert left.read() == []
    left.keep(["b", "a"])
    assert left.read() == ["a", "b"]
    left.keep([])
    assert not left.file.exists()
    left.file.write_text("{")
    with pytest.raises(Failed, match="can't be read"):
        left.read()
