"""A kubeconfig that a user asks for: who is served, what the file has, what is never replaced.

Real: the socket and the kernel's word for its other end, openssl. The directory is a double. kubectl, which reads a
file that is there already, is a double that prints what the real one would; test_kubernetes_people.py of e2e has all.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import own_kubeconfig
from gpucluster.controller.kubernetes.own_kubeconfig import Grant, ask, serve, write
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from tests.listener import answering
from tests.waiting import PATIENCE_S

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user")


def granted(uid: int, request: str) -> Mapping[str, Any]:
    return {
        "cluster": "demo", "user": "ada", "namespace": "user-ada", "server": "https://10.0.0.2:6443", "authority": "CA",
        "certificate": f"for {uid}: {request}", "expires": "2026-01-01T00:00:00Z",
    }  # fmt: skip


@pytest.fixture
def address() -> Iterator[Path]:
    """The path of a socket that others may reach. It is short: the kernel takes 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "socket"


@contextmanager
def served(address: Path, grant: Grant = granted) -> Iterator[str]:
    """A socket at which each connection is answered, as systemd does it; its path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(address))
        address.chmod(0o666)
        listening.listen()
        with answering(listening, lambda each, _: serve(grant, each.fileno(), each.fileno())):
            yield str(address)


def double_of_kubectl(folder: Path, *clusters: str) -> str:
    program = folder / "kubectl"
    config = json.dumps({"clusters": [{"name": name} for name in clusters]})
    program.write_text(f"#!/bin/sh\necho '{config}'\n")
    program.chmod(0o755)
    return str(program)


def test_the_file_has_the_key_whose_public_half_was_sent(address: Path, tmp_path: Path) -> None:
    file = tmp_path / "home" / ".kube" / "config"
    with served(address) as there:
        _granted, text = ask(None, there)
    write(file, text, "demo")
    made = json.loads(file.read_text())
    assert (made["current-context"], made["contexts"][0]["context"]["namespace"]) == ("demo", "user-ada")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["config"]
    access = {name: base64.b64decode(text).decode() for name, text in made["users"][0]["user"].items()}
    who, _, request = access["client-certificate-data"].partition(": ")
    assert who == f"for {os.geteuid()}", "the kernel says who asks"

    def public(*argv: str, text: str) -> str:
        return subprocess.run(["openssl", *argv], input=text, capture_output=True, text=True, check=True).stdout

    sent = public("req", "-noout", "-pubkey", text=request)
    assert sent == public("pkey", "-pubout", text=access["client-key-data"])
    assert "PRIVATE" not in request


def test_a_token_takes_the_place_of_a_certificate(address: Path) -> None:
    with served(address, lambda *given: {**granted(*given), "certificate": "", "token": "secret"}) as there:
        _granted, text = ask(16443, there)
    made = json.loads(text)
    assert made["users"][0]["user"] == {"token": "secret"}
    # As from kubeadm the name would be "kubernetes".
    where = {name: made["clusters"][0]["cluster"][name] for name in ("server", "tls-server-name")}
    assert where == {"server": "https://127.0.0.1:16443", "tls-server-name": "10.0.0.2"}


@AS_ROOT
def test_another_user_is_another_user(address: Path) -> None:
    seen: list[int] = []

    def grant(uid: int, request: str) -> Mapping[str, Any]:
        seen.append(uid)
        return granted(uid, request)

    with served(address, grant) as there:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with contextlib.suppress(BaseException):
                own_kubeconfig._ask(there, "x")
            os._exit(0)
        os.waitpid(child, 0)
    assert seen == [65534]


def test_what_is_refused_is_told(address: Path) -> None:
    def refuse(_uid: int, _request: str) -> Mapping[str, Any]:
        raise Refused("the user ada is disabled", "Ask")

    with served(address, refuse) as there, pytest.raises(Refused, match="ada is disabled") as raised:
        ask(None, there)
    assert raised.value.hint == "Ask"


@pytest.mark.parametrize(("clusters", "replaced"), [(["demo"], True), (["demo", "other"], False), (["other"], False)])
def test_only_a_file_of_this_cluster_alone_is_replaced(tmp_path: Path, clusters: list[str], *, replaced: bool) -> None:
    file = tmp_path / "config"
    file.write_text("before")
    kubectl = double_of_kubectl(tmp_path, *clusters)
    if replaced:
        write(file, "after", "demo", kubectl)
    else:
        with pytest.raises(Refused, match="not a kubeconfig of demo alone"):
            write(file, "after", "demo", kubectl)
    assert file.read_text() == ("after" if replaced else "before")


def test_another_host_reports_where_to_run_it(address: Path) -> None:
    with pytest.raises(Failed, match="gives no access") as raised:
        ask(None, str(address))
    assert "controller" in raised.value.hint


def test_a_service_that_dies_is_told(address: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(address))
        listening.listen()

        def close_without_a_word() -> None:
            listening.accept()[0].close()

        thread = threading.Thread(target=close_without_a_word, daemon=True)
        thread.start()
        with pytest.raises(AgentError):
            ask(None, str(address))
        thread.join(PATIENCE_S)


def test_the_command_reports_why_it_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_kubeconfig.main([]) == 1
    assert "Run it on the controller" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_does_not_end_is_refused(address: Path) -> None:
    with served(address) as there, pytest.raises(AgentError):
        own_kubeconfig._ask(there, "x" * 200_000)
