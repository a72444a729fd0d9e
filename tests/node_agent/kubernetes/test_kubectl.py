"""kubectl as a program: what reaches its command line, and what its last words mean."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("The connection to the server 10.0.0.2:6443 was refused - did you specify the right host or port?",
         faults.DEAD, "gives no answer: The connection to the server 10.0.0.2:6443 was refused"),
        ("Unable to connect to the server: net/http: TLS handshake timeout", faults.DEAD, "gives no answer"),
        ("Error from server: etcdserver: request timed out", faults.DEAD, "etcd on the controller gives no answer"),
        ("Error from server: etcdserver: mvcc: database space exceeded", faults.SPACE, "etcd is full"),
        ("Unable to connect to the server: x509: certificate has expired or is not yet valid: current time "
         "2027-01-01T00:00:00Z is after 2026-12-01T00:00:00Z", faults.EXPIRED, "not valid now"),
        ("error: You must be logged in to the server (Unauthorized)", faults.EXPIRED, "token in x.kubeconfig"),
        ('Error from server (NotFound): nodes "x" not found', faults.NOT_FOUND, 'nodes "x" not found'),
        ("Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget.",
         faults.BUDGET, "Cannot evict pod"),
        ('Error from server (Conflict): Operation cannot be fulfilled on nodes "a": the object has been modified',
         faults.CONFLICT, "Operation cannot be fulfilled"),
        ("error: stat /etc/kubernetes/admin.conf: no such file or directory", faults.DEAD, "no control plane"),
        *(
            (f'Error from server (NotFound): nodes "x" not found\n{letter}{day} 23:59:59.000001    4711 x.go:6] text',
             faults.NOT_FOUND, 'nodes "x" not found')
            for letter in "IWE" for day in ("0101", "0930", "1001", "1231")
        ),
        ("", faults.OTHER, "kubectl ended with status 7"),
    ],
)  # fmt: skip
def test_the_last_words_of_kubectl(said: str, kind: str, words: str) -> None:
    found = faults.explained(said, 7, "x.kubeconfig")
    assert found.kind == kind
    assert words in found.message
    assert "\n" not in found.message
    if kind in faults.OF_THE_SERVER:
        assert "gpucluster" in found.hint


def test_a_kubectl_that_is_not_installed_reports_what_installs_it() -> None:
    with pytest.raises(Failed, match="not installed") as raised:
        Kubectl(program="/nonexistent/kubectl").list("nodes")
    assert raised.value.hint == "Run: gpucluster apply"


@pytest.mark.parametrize("name", ["--all", "-x", "a b", "", None, "a/b", "A"])
def test_only_names_reach_the_command_line(name: object) -> None:
    with pytest.raises(Refused):
        checked_name(name)
