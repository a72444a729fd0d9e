"""Users where Oracle runs the control plane: tokens of service accounts, by a real API server."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import people, person_objects
from gpucluster.controller.kubernetes.person_objects import ACCOUNTS_NAMESPACE, KubernetesUser, Quota
from gpucluster.controller.users import kubernetes as of_directory
from gpucluster.controller.users import kubernetes_requests
from gpucluster.controller.users.config import Config
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from gpucluster.node_agent.rules.labels import HOST
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.waiting import wait_for

ADA = KubernetesUser("ada", 10001, (10001,), "/home/ada")
ROOT = KubernetesUser("root_ann", 10002, (10002,), "/home/root_ann", privileged=True)
GONE = KubernetesUser("ada", 10001, (10001,), "/home/ada", enabled=False)
QUOTA = Quota(pods=3)


def test_homes_are_mounted_on_hosts_alone() -> None:
    made = {
        (each["kind"], each["metadata"]["name"]): each
        for each in person_objects.objects((ADA,), QUOTA, 34, person_objects.Api((), 443), engine=True)
    }
    (term,) = made["PersistentVolume", "home-user-ada"]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": HOST, "operator": "Exists"}]}
    assert made["ResourceQuota", "no-pods"]["metadata"]["namespace"] == ACCOUNTS_NAMESPACE
    assert ("ServiceAccount", "user-ada") in made


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes-people")) as server:
        # As that of OKE, the kubeconfig has its CA.
        config = json.loads(server.kubeconfig.read_text())
        authority = (server.folder / "certs" / "apiserver.crt").read_bytes()
        config["clusters"][0]["cluster"] = {
            "server": config["clusters"][0]["cluster"]["server"],
            "certificate-authority-data": base64.b64encode(authority).decode(),
        }
        server.kubeconfig.write_text(json.dumps(config))
        yield server


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> list[KubernetesUser]:
    """The people of the directory, which is not here."""
    here: list[KubernetesUser] = []
    monkeypatch.setattr(Config, "load", classmethod(lambda _cls: None))
    monkeypatch.setattr(kubernetes_requests, "_directory", lambda _config: None)
    monkeypatch.setattr(of_directory, "people_of", lambda _state, _config: here)
    return here


def log_in(api: ApiServer, folder: Path, user: str | None, hours: int = 1) -> tuple[Kubectl, dict[str, Any]]:
    """kubectl as a user who got a token."""
    answer = kubernetes_requests.token(api.kubectl, {"user": user, "hours": hours})
    (folder / "authority.pem").write_text(answer["authority"])
    cluster = {"server": answer["server"], "certificate-authority": str(folder / "authority.pem")}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a", "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": answer["token"]}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }  # fmt: skip
    file = folder / f"{user}.conf"
    file.write_text(json.dumps(config))
    return Kubectl(str(file), api.kubectl._argv[0]), answer


def may(kubectl: Kubectl, *words: str) -> bool:
    try:
        return kubectl.run("auth", "can-i", *words).strip() == "yes"
    except ApiFailed:
        return False


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_token_is_the_person_until_the_directory_says_otherwise(
    api: ApiServer, directory: list[KubernetesUser], tmp_path: Path
) -> None:
    directory += [ADA, ROOT]
    people.sync(api.kubectl, (ADA, ROOT), QUOTA, engine=True)
    assert not people.sync(api.kubectl, (ADA, ROOT), QUOTA, engine=True).changed
    before = time.time()
    ada, answer = log_in(api, tmp_path, "ada")
    after = time.time()
    assert (answer["user"], answer["namespace"]) == ("ada", "user-ada")
    ends = time.mktime(time.strptime(answer["expires"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert before + 3000 < ends < after + 4000, "it ends by itself"
    wait_for("ada may create pods", lambda: may(ada, "create", "pods", "--namespace=user-ada"), interval=0.2)
    for words in (
        ["get", "pods", "--namespace=user-root-ann-10002"],
        ["get", "secrets", f"--namespace={ACCOUNTS_NAMESPACE}"],
        ["create", "serviceaccounts", f"--namespace={ACCOUNTS_NAMESPACE}", "--subresource=token"],
        ["create", "pods", f"--namespace={ACCOUNTS_NAMESPACE}"],
    ):
        assert not may(ada, *words), words
    administrator, _answer = log_in(api, tmp_path, "root_ann")
    wait_for("the administrator may delete nodes", lambda: may(administrator, "delete", "nodes"), interval=0.2)
    # A disabled user gets no token, and has none any more.
    directory[:] = [GONE, ROOT]
    people.sync(api.kubectl, (GONE, ROOT), QUOTA, engine=True)
    wait_for("ada has no rights any more", lambda: not may(ada, "get", "pods", "--namespace=user-ada"), interval=0.2)
    with pytest.raises(Refused, match="is disabled"):
        kubernetes_requests.token(api.kubectl, {"user": "ada", "hours": 1})
    # Who comes back gets a new one; the old one stays without effect.
    directory[:] = [ADA, ROOT]
    people.sync(api.kubectl, (ADA, ROOT), QUOTA, engine=True)
    again, _answer = log_in(api, tmp_path, "ada")
    wait_for("ada has rights again", lambda: may(again, "get", "pods", "--namespace=user-ada"), interval=0.2)


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_an_operator_has_an_account_whose_tokens_end(
    api: ApiServer, directory: list[KubernetesUser], tmp_path: Path
) -> None:
    operator, answer = log_in(api, tmp_path, None, hours=2)
    assert (answer["user"], answer["namespace"]) == ("gpucluster:operator", "default")
    wait_for("the operator has rights", lambda: may(operator, "create", "clusterroles"), interval=0.2)
    account = api.kubectl.get("serviceaccount", "gpucluster-operator", "kube-system")
    assert not account.get("secrets")
    for hours in (0, 721, True, "5"):
        with pytest.raises(Refused, match="1 to 720 hours"):
            kubernetes_requests.token(api.kubectl, {"user": None, "hours": hours})
    with pytest.raises(Refused, match="there is no user"):
        kubernetes_requests.token(api.kubectl, {"user": "nobody", "hours": 1})
