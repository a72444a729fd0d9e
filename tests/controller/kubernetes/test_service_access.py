"""The account and the kubeconfig of a service, with a real API server and the controller that makes tokens."""

from __future__ import annotations

import base64
import grp
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import apply, service_access
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import ApiServer, controllers, needs_api_server, running_with_kubelet
from tests.controller.kubernetes.objects import node
from tests.waiting import wait_for

RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
HERE = f"--namespace={service_access.NAMESPACE}"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("kubernetes")
    with running_with_kubelet(folder, "n1") as (server, _kubelet), controllers(server, "serviceaccount-token"):
        server.create(node("n1"))
        yield server


def wanted(path: Path, **changed: Any) -> dict[str, Any]:
    return {"set": "watch", "account": "gpucluster-watch", "rules": RULES, "file": str(path), **changed}


def as_service(api: ApiServer, file: Path) -> Kubectl:
    return Kubectl(str(file), api.kubectl._argv[0])


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_service_gets_a_kubeconfig_that_lasts_until_its_account_is_deleted(api: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"

    def keep(**changed: Any) -> bool:
        return service_access.keep(api.kubectl, time.sleep, wanted(file, **changed))

    assert keep() is True
    first = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    service = as_service(api, file)

    def may() -> bool:
        try:
            return [each["metadata"]["name"] for each in service.list("nodes")] == ["n1"]
        except ApiFailed:
            return False

    wait_for("the rights are there, some time after their object", may, interval=0.2)
    with pytest.raises(ApiFailed, match=r"may not|forbidden"):
        service.list("secrets")
    assert keep() is False
    assert file.read_text() == first
    file.write_text("damaged")
    assert keep() is True
    assert file.read_text() == first
    file.chmod(0o644)
    assert keep() is True
    assert file.stat().st_mode & 0o777 == 0o600
    group = grp.getgrgid(os.getegid()).gr_name
    assert keep(group=group) is True
    assert file.stat().st_mode & 0o777 == 0o640
    # A token that others may have seen is taken back by deleting the account: a new Secret has the same token.
    api.kubectl.delete("serviceaccount", "gpucluster-watch", service_access.NAMESPACE)
    wait_for("the rights are gone", lambda: not may(), interval=0.2)
    assert keep() is True
    assert file.read_text() != first
    wait_for("the rights are there again", may, interval=0.2)
    # Rights that it no longer needs go.
    assert keep(rules=[{**RULES[0], "verbs": ["get"]}]) is True
    wait_for("the rights are gone", lambda: not may(), interval=0.2)
    assert keep(rules=[]) is True
    assert not file.exists()
    with pytest.raises(ApiFailed):
        api.kubectl.get("serviceaccount", "gpucluster-watch", service_access.NAMESPACE)
    assert keep(rules=[]) is False


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_no_secret_is_on_a_command_line_or_in_what_is_left(api: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    service_access.keep(api.kubectl, time.sleep, wanted(file, set="other", account="gpucluster-other"))
    token = json.loads(file.read_text())["users"][0]["user"]["token"]
    found = api.kubectl.get("secret", "gpucluster-other", service_access.NAMESPACE)
    assert base64.b64decode(found["data"]["token"]).decode() == token
    assert token not in json.dumps(found["metadata"])
    assert [each.name for each in tmp_path.iterdir()] == ["kubeconfig"], "no other file has it"


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_what_can_t_be_done_is_reported(api: ApiServer, tmp_path: Path) -> None:
    def keep(**changed: Any) -> None:
        service_access.keep(api.kubectl, time.sleep, wanted(tmp_path / "kubeconfig", **changed))

    for changed in ({"rules": "all"}, {"file": "here"}, {"account": "--all"}):
        with pytest.raises(Refused):
            keep(**changed)
    with pytest.raises(Failed, match="no group nobody-here"):
        keep(group="nobody-here")
    with pytest.raises(AgentError, match="No such file"):
        keep(file=str(tmp_path / "none" / "kubeconfig"))


def test_a_control_plane_that_makes_no_token_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class NoToken:
        """A double of kubectl: a Secret into which no controller has written."""

        def get(self, *_: str) -> dict[str, Any]:
            return {"data": {}}

    monkeypatch.setattr(apply, "apply", lambda *_: {"changed": [], "removed": []})
    waits: list[float] = []
    with pytest.raises(Failed, match="makes no token for kube-system/gpucluster-watch within 60 s"):
        service_access.keep(NoToken(), waits.append, wanted(tmp_path / "kubeconfig"))  # type: ignore[arg-type]
    assert sum(waits) == 60
