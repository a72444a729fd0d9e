"""A local port that leads to Grafana or Prometheus on the controller: real ssh, and a real ssh server in this process.

Grafana and Prometheus are doubles: HTTP servers that answer with their names.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import asyncssh
import pytest
from click.testing import CliRunner

from gpucluster import cluster as composition
from gpucluster.cli import cli
from gpucluster.dashboards.addresses import Subject
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event
from gpucluster.operations import dashboard
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.dashboard import Dashboard, Page
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.workspace.saved_state import SavedState
from tests.addresses import free_port
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S
from tests.workspace.known_hosts import save_controller, save_hosts

MONITORED = LOCAL + "\nmonitoring: {enabled: true, grafana: true}\n"
ON_LOGIN = (
    LOCAL
    + "\nlogin: {count: 1, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}\n"
    + "monitoring: {enabled: true, grafana: true, host: login-1}\n"
)


class Visitors(asyncssh.SSHServer):
    """Lets all users in, and forwards to where it is asked to."""

    open: ClassVar[list[Any]] = []

    def connection_made(self, conn: Any) -> None:
        self.open.append(conn)

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, *_: object) -> bool:
        return True


class SshHost:
    """The controller: an ssh server that runs commands here."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = self._call(self._listen())
        self.port = self.server.sockets[0].getsockname()[1]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _listen(self) -> Any:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Visitors, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            process_factory=self._run,
        )  # fmt: skip

    @staticmethod
    async def _run(process: Any) -> None:
        if process.command == "cat":
            async for line in process.stdin:
                process.stdout.write(line)
            process.exit(0)
            return
        done = await asyncio.to_thread(subprocess.run, ["sh", "-c", process.command], capture_output=True, text=True)
        process.stdout.write(done.stdout)
        process.stderr.write(done.stderr)
        process.exit(done.returncode)

    def end_connections(self) -> None:
        async def end() -> None:
            for connection in Visitors.open:
                connection.abort()
            Visitors.open.clear()

        self._call(end())

    def gone(self) -> None:
        async def close() -> None:
            self.server.close()

        self._call(close())
        self.end_connections()

    def close(self) -> None:
        self.gone()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    found = SshHost()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -o HostName=127.0.0.1 -p {found.port} "$@"\n')
    (programs / "ssh").chmod(0o755)
    # No password is asked: sudo is a double that runs the command.
    (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (programs / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    # Shared connections would outlive the test by a minute.
    monkeypatch.setattr("gpucluster.ssh.sockets.Sockets.folder", lambda _self: None)
    yield found
    found.close()


@contextmanager
def service(name: str, *, classic: bool = False) -> Iterator[int]:
    """An HTTP server. `classic`: with the pages of Prometheus 2 that Debian has in place of the new ones."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if self.path.startswith("/classic") and not classic else 200)
            self.end_headers()
            self.wfile.write(f"{name} {self.path}".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Which ports the controller's services have."""

    def choose(grafana: int | None = None, prometheus: int | None = None) -> None:
        ports = {"grafana": grafana or free_port(), "prometheus": prometheus or free_port()}
        monkeypatch.setattr(dashboard, "PORTS", ports)

    return choose


def _dashboard(folder: Path, steps: list[Callable[[], None]], events: list[Event], text: str = MONITORED) -> Dashboard:
    """Each wait is the next step; after the last one a user presses Ctrl-C."""
    save_hosts(folder, "demo-controller", "demo-login-1")
    paths = ClusterPaths(folder / ".gpucluster")
    spec = loads(text, str(folder / "cluster.yml"))
    locate = lambda **_: SavedState(paths).hosts()  # noqa: E731
    connection = ControllerConnection(
        spec=spec, paths=paths, locate=locate, bastion=lambda: pytest.fail("no bastion"), on_event=events.append
    )

    def sleep(_seconds: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    return Dashboard(spec, connection, events.append, sleep)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("classic", [True, False])
def test_a_prometheus_without_its_new_interface_shows_the_old_one(
    tmp_path: Path, host: SshHost, services: Callable[..., None], classic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # it must not be asked
    pages: list[Page] = []
    with service("prometheus", classic=classic) as prometheus:
        services(prometheus=prometheus)
        with pytest.raises(KeyboardInterrupt):
            _dashboard(tmp_path, [], []).forward(Subject(), None, pages.append)
    (page,) = pages
    assert page.url.endswith("/classic/alerts") is classic
    assert page.url.endswith("/alerts")


def test_the_page_is_there_until_a_user_ends_it(tmp_path: Path, host: SshHost, services: Callable[..., None]) -> None:
    pages: list[Page] = []
    read: list[str] = []
    with service("grafana") as grafana, service("prometheus") as prometheus:
        services(grafana, prometheus)
        found = _dashboard(tmp_path, [lambda: read.append(_read(pages[0].url))], [])
        with pytest.raises(KeyboardInterrupt):
            found.forward(Subject(job="12_3"), None, pages.append)
    assert [page.service for page in pages] == ["grafana"]
    assert pages[0].url.startswith("http://127.0.0.1:")
    assert read == ["grafana /d/gpucluster-job?var-job_id=12_3"]
    with pytest.raises(OSError, match="refused"):
        _read(pages[0].url)


def test_without_grafana_prometheus_own_pages_are_shown(
    tmp_path: Path, host: SshHost, services: Callable[..., None]
) -> None:
    pages: list[Page] = []
    read: list[str] = []
    with service("prometheus") as prometheus:
        services(prometheus=prometheus)
        found = _dashboard(tmp_path, [lambda: read.append(_read(pages[0].url))], [])
        with pytest.raises(KeyboardInterrupt):
            found.forward(Subject(), None, pages.append)
    assert pages[0].service == "prometheus"
    assert read == ["prometheus /alerts"]


def test_a_connection_that_ended_is_made_again_at_the_same_address(
    tmp_path: Path, host: SshHost, services: Callable[..., None]
) -> None:
    pages: list[Page] = []
    read: list[str] = []
    events: list[Event] = []
    with service("grafana") as grafana:
        services(grafana)
        # The third wait is that before the new attempt.
        steps = [host.end_connections, lambda: None, lambda: read.append(_read(pages[0].url))]
        with pytest.raises(KeyboardInterrupt):
            _dashboard(tmp_path, steps, events).forward(Subject(), None, pages.append)
    assert len(pages) == 1
    assert read == ["grafana /d/gpucluster-cluster"]
    said = [event.message for event in events]
    assert len(said) == 2
    assert "ended" in said[0]
    assert "trying again" in said[0]
    assert "is there again" in said[1]


def test_a_controller_that_stays_away_is_an_error(tmp_path: Path, host: SshHost, services: Callable[..., None]) -> None:
    with service("grafana") as grafana:
        services(grafana)
        steps = [host.gone, *[lambda: None] * len(dashboard.RETRIES)]
        with pytest.raises(ToolError, match="connection to the controller could not be made"):
            _dashboard(tmp_path, steps, []).forward(Subject(), None, lambda _page: None)
    assert steps == []


def test_nothing_that_listens_is_an_error_with_the_next_command(
    tmp_path: Path, host: SshHost, services: Callable[..., None]
) -> None:
    services()
    with pytest.raises(ToolError, match="neither Grafana nor Prometheus") as error:
        _dashboard(tmp_path, [], []).forward(Subject(), None, lambda _page: None)
    assert "gpucluster apply" in error.value.hint


def test_a_taken_port_is_an_error_before_anything_is_connected(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of this machine can't be used") as error:
            _dashboard(tmp_path, [], []).forward(Subject(), port, lambda _page: None)
    assert "--port" in error.value.hint


def test_it_leads_to_the_login_node_that_has_prometheus(
    tmp_path: Path, host: SshHost, services: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    real = ControllerConnection.ssh_argv

    def argv(self: ControllerConnection, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        asked.append(host)
        return real(self, host, command)

    monkeypatch.setattr(ControllerConnection, "ssh_argv", argv)
    monkeypatch.setattr(dashboard, "PASSWORD_FILE", str(tmp_path / "none"))
    pages: list[Page] = []
    with service("prometheus") as prometheus:
        services(None, prometheus)
        found = _dashboard(tmp_path, [], [], ON_LOGIN)
        with pytest.raises(KeyboardInterrupt):
            found.forward(Subject(), None, pages.append)
        with pytest.raises(ToolError, match="demo-login-1 has no password"):
            found.password()
        services()
        with pytest.raises(ToolError, match="nothing on demo-login-1") as error:
            found.forward(Subject(), None, pages.append)
    assert "gpucluster ssh demo-login-1 -- systemctl" in error.value.hint
    assert [page.service for page in pages] == ["prometheus"]
    assert set(asked) == {"demo-login-1"}


def test_a_cluster_without_monitoring_reports_how_to_get_it(tmp_path: Path) -> None:
    off = _dashboard(tmp_path, [], [], LOCAL)
    for call in (off.password, lambda: off.forward(Subject(), None, lambda _page: None)):
        with pytest.raises(InputError, match="has no monitoring") as error:
            call()
        assert "enabled: true" in error.value.hint
    without = _dashboard(tmp_path, [], [], LOCAL + "\nmonitoring: {enabled: true}\n")
    with pytest.raises(InputError, match="has no Grafana"):
        without.password()


def test_the_password_is_read_through_ssh(tmp_path: Path, host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    monkeypatch.setattr(dashboard, "PASSWORD_FILE", str(file))
    with pytest.raises(ToolError, match="has no password"):
        _dashboard(tmp_path, [], []).password()
    file.write_text("correct-horse\n")
    assert _dashboard(tmp_path, [], []).password() == "correct-horse"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"job": "12", "node": "gpu-1"}, "two dashboards"),
        ({"job": "12; reboot"}, "not a job id"),
        ({"job": ""}, "not a job id"),
        ({"node": ""}, "empty"),
    ],
)
def test_bad_subjects(arguments: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Subject(**arguments)


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder with a cluster.yml, and a user who presses Ctrl-C at the first wait. What their browser opened."""
    (tmp_path / "cluster.yml").write_text(MONITORED)
    save_controller(tmp_path, "demo-controller")
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(composition, "Dashboard", partial(Dashboard, sleep=interrupted))
    return opened


def test_the_command_shows_the_address_and_ends_well(
    operator: list[str], host: SshHost, services: Callable[..., None]
) -> None:
    with service("grafana") as grafana:
        services(grafana)
        done = CliRunner().invoke(cli, ["dashboard", "--node", "gpu 1&x=", "--open", "--output", "json"])
        assert done.exit_code == 0, done.output
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[0]["data"]["url"] == operator[0]
        assert operator[0].endswith("/d/gpucluster-node?var-node=gpu%201%26x%3D")
        assert events[-1]["kind"] == "result"
        assert events[-1]["status"] == "success"
        text = CliRunner().invoke(cli, ["dashboard"])
    assert text.exit_code == 0, text.output
    assert "/d/gpucluster-cluster" in text.output
    assert "gpucluster dashboard --password" in text.output
    # Only who asks for a browser gets one.
    assert len(operator) == 1


def test_the_password_is_printed_and_nothing_is_forwarded(
    operator: list[str], host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("correct-horse\n")
    monkeypatch.setattr(dashboard, "PASSWORD_FILE", str(file))
    done = CliRunner().invoke(cli, ["--debug", "dashboard", "--password"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "correct-horse\n"
    assert "correct-horse" not in done.stderr
