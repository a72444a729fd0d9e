"""Another password for Grafana's administrator, and how a rotation of it goes on after a kill.

Grafana is a double (tests/doubles/grafana), which has its answers from Grafana's source.
"""

from __future__ import annotations

import base64
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import grafana_password
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.foreign_folder import Folder
from tests.addresses import free_port
from tests.waiting import PATIENCE_S, wait_for

PROGRAM = Path(__file__).parents[1] / "doubles" / "grafana" / "grafana"
CONFIG = """
[server]
http_addr = 127.0.0.1
http_port = {port}
[paths]
data = {folder}/records
provisioning = {folder}/provisioning
[security]
admin_user = admin
admin_password = $__file{{{folder}/records/admin-password}}
[dashboards]
default_home_dashboard_path = {folder}/home.json
"""


class Killed(BaseException):
    """As kill -9 ends a process: no handler of an error sees it."""


class Site:
    """A Grafana in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.file, self.config = folder / "records" / "admin-password", folder / "grafana.ini"
        self.file.parent.mkdir()
        self.file.write_text("the first password\n")
        self.config.write_text(CONFIG.format(port=self.port, folder=folder))
        (folder / "home.json").write_text("{}")
        (folder / "bin").mkdir()
        (folder / "bin" / "grafana").touch()
        argv = ["server", "--homepath", str(folder), "--config", str(self.config)]
        self.process = subprocess.Popen([str(PROGRAM), *argv])

    @property
    def password(self) -> str:
        return self.file.read_text().strip()

    def accepts(self, password: str) -> bool:
        token = base64.b64encode(f"admin:{password}".encode()).decode()
        address = f"http://127.0.0.1:{self.port}/api/user"
        request = urllib.request.Request(address, headers={"Authorization": f"Basic {token}"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S):
                return True
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            return False

    def state(self) -> str:
        (row,) = grafana_password.state()
        assert row["changed"] > "2026"
        return str(row["state"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    monkeypatch.setattr(grafana_password, "CONFIG", made.config)
    monkeypatch.setattr(grafana_password.Place.of.__func__, "__defaults__", (made.config,))  # type: ignore[attr-defined]
    try:
        wait_for("the double answers", lambda: made.accepts(made.password), ignore=OSError)
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def rotate() -> dict[str, Any]:
    return grafana_password.rotate(lambda _text: None)


def test_grafana_accepts_the_next_password_and_no_other(site: Site) -> None:
    before = site.password
    assert rotate() == {"new": True, "hosts": 1, "away": [], "unconfirmed": []}
    assert site.password != before
    assert site.accepts(site.password)
    assert not site.accepts(before)
    assert site.file.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in site.file.parent.iterdir()} == {"admin-password", "grafana.db"}
    assert site.state() == "complete"
    assert rotate()["new"] is True


@pytest.mark.parametrize("step", ["write admin-password.next", "_change", "write admin-password", "delete"])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    what, _, name = step.partition(" ")
    owner = grafana_password if what == "_change" else Folder
    original = getattr(owner, what)

    def killed(*words: Any, **more: Any) -> Any:
        done = original(*words, **more)
        if not name or words[1] == name:
            raise Killed
        return done

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, killed)
        with pytest.raises(Killed):
            rotate()
    folder = site.file.parent
    made = (folder / "admin-password.next" if step != "delete" else site.file).read_text().strip()
    assert rotate()["new"] is (step == "delete")
    assert (site.password == made) is (step != "delete"), "no other password is made"
    assert site.accepts(site.password)
    assert site.state() == "complete"


def test_a_password_that_someone_has_changed_in_grafana_is_named(site: Site) -> None:
    kept = site.password
    site.file.write_text("not this one\n")
    with pytest.raises(Failed, match="accepts neither the password in") as caught:
        rotate()
    assert caught.value.hint is not None
    assert "gpucluster rotate grafana" in caught.value.hint
    assert site.state() == "prepared"
    site.file.write_text(kept)
    assert rotate()["new"] is False


def test_grafana_that_does_not_run_keeps_the_password(site: Site) -> None:
    before = site.password
    site.process.kill()
    site.process.wait()
    with pytest.raises(Failed, match="Grafana does not answer"):
        rotate()
    assert site.password == before


def test_a_link_in_grafanas_folder_leads_root_nowhere(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of root")
    site.file.unlink()
    site.file.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="admin-password"):
        rotate()
    assert (tmp_path / "secret").read_text() == "of root"


def test_a_host_without_grafana_has_nothing_to_rotate(site: Site) -> None:
    site.config.write_text("[server]\n")
    with pytest.raises(Failed, match="can't be read"):
        rotate()
    site.config.unlink()
    with pytest.raises(Refused, match="this host has no Grafana"):
        rotate()
    assert grafana_password.state() == []
