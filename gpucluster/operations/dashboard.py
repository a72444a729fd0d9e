"""A port of this machine that leads to Grafana or Prometheus of the cluster: through ssh, while the command runs.

Both listen on the loopback device of `monitoring.host` only. No other host reaches them, and nothing is opened in the
cloud's network.
"""

from __future__ import annotations

import http.client
import socket
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucluster import cancellation, process
from gpucluster.controller.monitor.prometheus import PORT as PROMETHEUS_PORT
from gpucluster.dashboards import addresses
from gpucluster.dashboards.addresses import GRAFANA_PORT, Subject
from gpucluster.errors import EnvironmentFault, InputError, ProcessError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.handover.names import monitoring_host
from gpucluster.operations.controller import ControllerConnection
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import CONNECT_SECONDS

_HOST = "127.0.0.1"
#: The password of Grafana's user `admin`, made by the role `monitoring`: only root reads it.
PASSWORD_FILE = "/var/lib/gpucluster/grafana/admin-password"  # noqa: S105 - a path
ADMIN = "admin"
#: Ports on the loopback of their host, the one that is preferred first.
PORTS: Mapping[str, int] = {"grafana": GRAFANA_PORT, "prometheus": PROMETHEUS_PORT}
# bash opens a connection itself: no other program is needed there.
_LISTENING = "bash -c 'for port in {ports}; do (exec 3<>/dev/tcp/{host}/$port) 2>/dev/null && echo $port; done; true'"
# A connection of its own: a forwarded port of a shared one would outlive us.
_OPTIONS = (
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "ExitOnForwardFailure=yes",
    "-o",
    f"ConnectTimeout={CONNECT_SECONDS}",
)
# Seconds between two looks whether the connection stands; ssh itself notices a dead network after 45.
_BEAT = 2.0
_END = 5.0
_PAGE_S = 5.0
#: Seconds before each new attempt after a connection has ended.
RETRIES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


@dataclass(frozen=True)
class Page:
    """What is shown: `grafana` or `prometheus`, and the address on this machine."""

    service: str
    url: str


class Dashboard:
    """Forwards a local port to what shows dashboards.

    Args:
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        controller: ControllerConnection,
        on_event: Sink,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        self._spec = spec
        self._controller = controller
        self._on_event = on_event
        self._sleep = sleep
        self._host = monitoring_host(spec)
        self._where = self._host or "the controller"

    def forward(self, subject: Subject, port: int | None, on_open: Callable[[Page], None]) -> None:
        """Forward until the caller is interrupted.

        Args:
            port: of this machine; None takes a free one.
            on_open: is called once, when the page can be opened.

        Raises:
            InputError: cluster.yml has no monitoring, or the port is taken.
            ToolError: nothing listens on the host, it can't be reached, or the connection ended and no other one
                could be made.
            KeyboardInterrupt: the user has ended it.
        """
        self._require_monitoring()
        local = _free_port(port)
        service = self._service()
        path = addresses.in_grafana(subject) if service == "grafana" else addresses.in_prometheus(subject)
        failures, opened = 0, False
        while True:
            try:
                with process.ProcessConversation(self._argv(local, PORTS[service]), end_s=_END) as connection:
                    connection.ask("open", _echoed)
                    if opened:
                        info(self._on_event, "dashboard", f"the connection to {self._where} is there again")
                    else:
                        base = f"http://{_HOST}:{local}"
                        if service == "prometheus" and _has_pages(f"{base}{addresses.CLASSIC}/alerts"):
                            base += addresses.CLASSIC
                        on_open(Page(service, f"{base}{path}"))
                    opened, failures = True, 0
                    while True:
                        self._sleep(_BEAT)
                        connection.ask("beat", _echoed)
            except EnvironmentFault:
                raise
            except ProcessError as error:
                reason = _reason(error)
                if not opened or failures == len(RETRIES):
                    raise ToolError(
                        f"the connection to {self._where} could not be made: {reason}",
                        hint="See whether it runs: gpucluster status",
                    ) from error
                if failures == 0:
                    warn(self._on_event, "dashboard", f"the connection to {self._where} ended ({reason}): trying again")
                self._sleep(RETRIES[failures])
                failures += 1

    def password(self) -> str:
        """The password of Grafana's administrator.

        Raises:
            InputError: cluster.yml has no Grafana.
            ToolError: the host has none, or does not answer.
        """
        self._require_monitoring()
        if not self._spec.monitoring.grafana:
            raise InputError(
                "this cluster has no Grafana", where=str(self._spec.file),
                hint="Set grafana: true in the section monitoring, then run: gpucluster apply",
            )  # fmt: skip
        result = self._controller.ask(f"sudo cat {PASSWORD_FILE}", host=self._host)
        if result.returncode != 0 or not result.stdout.strip():
            raise ToolError(f"{self._where} has no password of Grafana yet", hint="Run: gpucluster apply")
        return result.stdout.strip()

    def _require_monitoring(self) -> None:
        if not self._spec.monitoring.enabled:
            raise InputError(
                "this cluster has no monitoring", where=str(self._spec.file),
                hint="Set enabled: true in the section monitoring, then run: gpucluster apply",
            )  # fmt: skip

    def _service(self) -> str:
        """Which of both listens; Grafana, if both do."""
        ports = " ".join(map(str, PORTS.values()))
        command = _LISTENING.format(ports=ports, host=_HOST)
        listening = self._controller.ask(command, host=self._host).stdout.split()
        for service, port in PORTS.items():
            if str(port) in listening:
                return service
        raise ToolError(
            f"nothing on {self._where} shows dashboards: neither Grafana nor Prometheus listens",
            hint=f"Run: gpucluster apply. Then see: gpucluster ssh {self._host or ''} -- systemctl --failed".replace(
                "  ", " "
            ),
        )

    def _argv(self, local: int, remote: int) -> list[str]:
        # `cat` ends with its input: when we end, and also when we are killed.
        ssh, *rest = self._controller.ssh_argv(self._host, ["cat"])
        return [ssh, *_OPTIONS, "-L", f"{_HOST}:{local}:{_HOST}:{remote}", *rest]


def _echoed(_line: str) -> bool:
    return True


def _has_pages(url: str) -> bool:
    """Whether a server answers with a page there."""
    # A proxy of the environment does not reach our loopback device.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PAGE_S) as answer:
            return bool(answer.status == http.HTTPStatus.OK)
    except (OSError, http.client.HTTPException):
        return False


def _free_port(port_number: int | None) -> int:
    with socket.socket() as listener:
        # As ssh does: a port whose last connections are still being closed is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port_number or 0))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {port_number} of this machine can't be used: {getattr(error, 'strerror', error)}",
                hint="Name another one with --port, or none: then a free one is taken",
            ) from error
        port: int = listener.getsockname()[1]
        return port


def _reason(error: ProcessError) -> str:
    """The last line that ssh wrote."""
    return error.stderr.strip().rpartition("\n")[2] or f"ssh ended with status {error.returncode}"
