"""Rotation of the password of Grafana's administrator: on the controller, or the login node that has the monitoring.

Grafana reads the file when it makes its database, and never again. So its HTTP API changes the password, on the
loopback device, and the file follows; users read it there (`gpucluster dashboard --password`). Grafana accepts one
password, and nothing else uses it: there is no overlap. The next one is in a file before Grafana has it, so the program
may be killed at any point: the same request finds which of both Grafana accepts.
"""

from __future__ import annotations

import base64
import configparser
import http.client
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.controller import rotation_parts
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.foreign_folder import Folder

NAME = "grafana"
#: Which the role `monitoring` writes.
CONFIG = Path("/etc/gpucluster/grafana/grafana.ini")

_ADDRESS = "127.0.0.1"
_NEXT = "admin-password.next"
_BYTES = 24
_SECONDS = 20.0
_LONGEST = 4096
_CHANGED, _REFUSED = 200, 401


class Place(NamedTuple):
    """Where Grafana listens on the loopback device, who administers it, and the file with the password."""

    port: int
    user: str
    file: Path

    @classmethod
    def of(cls, config: Path = CONFIG) -> Place:
        """That of this host.

        Raises:
            Refused: it has no Grafana. Failed: its configuration can't be read.
        """
        found = configparser.ConfigParser(interpolation=None)
        try:
            found.read_string(config.read_text(encoding="utf-8"))
            secret = found["security"]["admin_password"]
            file = Path(secret[len("$__file{") : -1])
            return cls(int(found["server"]["http_port"]), found["security"]["admin_user"], file)
        except FileNotFoundError:
            raise Refused("this host has no Grafana", "Set monitoring.grafana, then run: gpucluster apply") from None
        except (configparser.Error, KeyError, ValueError):
            raise Failed(f"{config} can't be read", "Run: gpucluster apply") from None


def rotate(note: Callable[[str], None]) -> dict[str, Any]:
    """Give the administrator another password, or complete a rotation that was interrupted.

    Raises:
        Refused: this host has no Grafana.
        Failed: Grafana does not answer, or accepts neither password.
    """
    place = Place.of()
    # The folder is Grafana's: no link in it leads root anywhere else.
    with Folder.open(place.file.parent) as folder:
        owner = folder.status()
        is_new = folder.look(_NEXT) is None
        if is_new:
            folder.write(_NEXT, f"{secrets.token_urlsafe(_BYTES)}\n".encode(), 0o600)
        else:
            note("goes on with a rotation that was interrupted")
        present, following = (_password(folder, name) for name in (place.file.name, _NEXT))
        _change(place, present, following)
        folder.write(place.file.name, f"{following}\n".encode(), 0o600, (owner.st_uid, owner.st_gid))
        folder.delete(_NEXT)
    return {"new": is_new, "hosts": 1, "away": [], "unconfirmed": []}


def _password(folder: Folder, name: str) -> str:
    return folder.read(name, _LONGEST).decode(errors="replace").strip()


def _change(place: Place, present: str, following: str) -> None:
    """Let Grafana accept the next password alone. It may be repeated."""
    change = {"oldPassword": present, "newPassword": following, "confirmNew": following}
    status = _ask(place, "PUT", "/api/user/password", present, json.dumps(change))
    if status == _REFUSED:
        # Killed when Grafana had the next one.
        status = _ask(place, "GET", "/api/user", following)
        if status == _REFUSED:
            raise Failed(
                f"Grafana accepts neither the password in {place.file} nor the next one",
                f"Someone has changed it in Grafana. Write it into {place.file}, then run: gpucluster rotate {NAME}",
            )
    if status != _CHANGED:
        raise Failed(f"Grafana does not change the password: status {status}", "Run: journalctl -u gpucluster-grafana")


def _ask(place: Place, method: str, path: str, password: str, body: str | None = None) -> int:
    """The status of an answer to the administrator with this password."""
    token = base64.b64encode(f"{place.user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(_ADDRESS, place.port, timeout=_SECONDS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise Failed(f"Grafana does not answer: {reason}", "Run: journalctl -u gpucluster-grafana") from None
    finally:
        connection.close()


def state() -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the password was made. Empty on a host without Grafana."""
    try:
        place = Place.of()
        with Folder.open(place.file.parent) as folder:
            file, following = folder.look(place.file.name), folder.look(_NEXT)
    except (Refused, FileNotFoundError):
        return []
    made = rotation_parts.moment(file.st_mtime) if file else ""
    return [{"name": NAME, "changed": made, "state": "prepared" if following else "complete", "unconfirmed": []}]
