"""What an operator's machine and users ask about kubeconfigs. tests/controller/kubernetes has a real API server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import client_certificates, person_objects
from gpucluster.controller.kubernetes.person_objects import KubernetesUser, Quota
from gpucluster.controller.users import kubernetes as of_directory
from gpucluster.controller.users import kubernetes_requests
from gpucluster.controller.users.config import Config
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from tests.controller.users.harness import CONFIG

ADA = KubernetesUser("ada", 10001, (10001,), "/home/ada")
BOB = KubernetesUser("bob", 10002, (10002,), "/home/bob", enabled=False)


def test_who_asks_is_looked_up_by_their_uid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    signed: list[tuple[Any, ...]] = []

    moments: list[float] = []

    def sign(*given: Any, now: float) -> str:
        signed.append(given)
        moments.append(now)
        return "CERTIFICATE"

    config = Config.parse({
        "uri": "", "suffix": "dc=demo,dc=internal", "group": "users", "gid": 1, "privilege_group": "p",
        "privilege_gid": 2, "first_uid": 10000, "home_base": "/home", "shell": "/bin/bash",
        "service": {"dn": "", "password_file": "/none"}, "kubernetes": vars(Quota()), "kubeconfig_hours": 12,
    })  # fmt: skip
    monkeypatch.setattr(Config, "load", classmethod(lambda _cls: config))
    monkeypatch.setattr(kubernetes_requests, "_directory", lambda _config: None)
    monkeypatch.setattr(of_directory, "people_of", lambda _state, _config: [ADA, BOB])
    monkeypatch.setattr(client_certificates, "sign", sign)
    monkeypatch.setattr(client_certificates, "AUTHORITY", tmp_path)
    (tmp_path / "ca.crt").write_text("CA")
    kubectl = Kubectl()
    monkeypatch.setattr(kubectl, "server", lambda: "https://10.0.0.2:6443")
    given = kubernetes_requests.for_uid(kubectl, 10001, "REQUEST")
    assert (given["user"], given["namespace"], given["cluster"]) == ("ada", "user-ada", "demo")
    ends = datetime.fromisoformat(given["expires"].replace("Z", "+00:00")).timestamp()
    assert ends == int(moments[0]) + 12 * 3600
    assert signed == [("REQUEST", "ada", [], 12)], "no group, and the hours of cluster.yml"
    with pytest.raises(Refused, match="bob is disabled"):
        kubernetes_requests.for_uid(kubectl, 10002, "REQUEST")
    for nobody in (0, 999, 10003):
        with pytest.raises(Refused, match="no user of the cluster's directory"):
            kubernetes_requests.for_uid(kubectl, nobody, "REQUEST")
    assert len(signed) == 1


def test_an_operator_gets_a_certificate_of_the_operators_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    signed: list[Any] = []

    def sign(*words: Any, now: float) -> str:
        signed.append(words)
        return "CERTIFICATE"

    monkeypatch.setattr(client_certificates, "sign", sign)
    monkeypatch.setattr(client_certificates, "AUTHORITY", tmp_path)
    (tmp_path / "ca.crt").write_text("CA")
    kubectl = Kubectl()
    monkeypatch.setattr(kubectl, "server", lambda: "https://10.0.0.2:6443")
    answer = kubernetes_requests.certificate(kubectl, {"request": "REQUEST", "hours": 8})
    assert (answer["user"], answer["namespace"]) == (kubernetes_requests.OPERATOR, "default")
    assert (answer["certificate"], answer["authority"], answer["server"]) == (
        "CERTIFICATE", "CA", "https://10.0.0.2:6443",
    )  # fmt: skip
    assert signed == [("REQUEST", kubernetes_requests.OPERATOR, [person_objects.OPERATORS], 8)]


@pytest.mark.parametrize("hours", [None, 0, -1, "8", 10**6, True])
def test_hours_that_are_none_are_refused_before_anything_is_asked(hours: object, tmp_path: Path) -> None:
    nothing = Kubectl(str(tmp_path / "none"), str(tmp_path / "no-program"))
    for request in (kubernetes_requests.certificate, kubernetes_requests.token):
        with pytest.raises(Refused):
            request(nothing, {"hours": hours})


def test_a_controller_without_kubernetes_grants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "load", classmethod(lambda _cls: Config.parse(CONFIG)))
    with pytest.raises(Refused, match="not the controller of a cluster with Kubernetes"):
        kubernetes_requests.for_uid(Kubectl(), 10001, "REQUEST")
