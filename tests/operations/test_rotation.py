"""What `rotate` asks the controller, and what it makes of the answers. The program there is a double."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, ToolError, UnconfirmedError
from gpucluster.events import Event
from gpucluster.operations.kubernetes import ControlPlaneCertificate
from gpucluster.operations.rotation import RotatableSecret, RotatedSecret, Rotations, chosen, secrets_of
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL

WITHOUT = (
    "version: 1\nname: demo\ncloud: {provider: local}\nscheduler: none\n"
    "network: {vcn_cidr: 10.20.0.0/16, public_subnet_cidr: 10.20.0.0/24, private_subnet_cidr: 10.20.1.0/24,"
    " ssh_allowed_cidrs: [203.0.113.0/24]}\n"
    "controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}\n"
    "pools: {compute: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 1}}\n"
)
KUBERNETES_LOCAL = WITHOUT.replace("scheduler: none", "scheduler: kubernetes")
GRAFANA = "monitoring: {enabled: true, grafana: true, host: login-1}\nlogin: {count: 1}\n"
#: What a cluster with a home share has.
OF_HOSTS = ("passwords", "host-keys", "ssh-ca", "directory-ca", "controller-key")
DONE = {"new": True, "hosts": 3, "away": ["compute-2"], "unconfirmed": [], "keys": {}, "authority": ""}


class Controller:
    """Runs a program of the test here instead of the one there."""

    def __init__(self, folder: Path, answer: dict[str, Any] | str, status: int = 0) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self._request = folder / "request"
        self.hosts: list[str | None] = []
        self._program = (
            f"import sys; open({str(self._request)!r}, 'w').write(sys.stdin.read());"
            f"sys.stderr.write('switches\\n'); sys.stdout.write({text!r}); sys.exit({status})"
        )

    def ssh_argv(self, host: str | None, _command: Sequence[str]) -> list[str]:
        self.hosts.append(host)
        return [sys.executable, "-c", self._program]

    @property
    def request(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._request.read_text())
        return found


class ControlPlane:
    """Renews what it has been told to."""

    def __init__(self) -> None:
        self.renewed: list[float] = []

    def renew(self, within_days: float) -> tuple[str, ...]:
        self.renewed.append(within_days)
        return ("apiserver.crt",)

    def certificates(self) -> tuple[ControlPlaneCertificate, ...]:
        rows = (("ca.crt", "2036-01-01", True), ("b.crt", "2027-11-02", False), ("a.crt", "2027-11-01", False))
        return tuple(ControlPlaneCertificate(f"/pki/{name}", f"{day}T00:00:00Z", 300, ca) for name, day, ca in rows)


def rotations(
    controller: Controller | Controllers,
    events: list[Event] | None = None,
    text: str = LOCAL,
    plane: ControlPlane | None = None,
) -> Rotations:
    sink = (events if events is not None else []).append
    return Rotations(loads(text), controller, plane or ControlPlane(), sink)  # type: ignore[arg-type]


def test_the_secret_is_named_and_progress_is_shown(tmp_path: Path) -> None:
    controller, events = Controller(tmp_path, {"result": {"munge": DONE}}), list[Event]()
    done = rotations(controller, events).rotate(["munge"])
    assert done.secrets == (RotatedSecret("munge", True, 3, ("compute-2",), ()),)
    assert controller.request == {"operation": "rotate", "arguments": {"what": ["munge"]}}
    assert [event.message for event in events] == ["switches"]
    assert json.loads(json.dumps(done.to_dict()))["secrets"][0]["away"] == ["compute-2"]


def test_a_host_that_has_not_confirmed_it_is_no_success(tmp_path: Path) -> None:
    answer = {
        "error": {"message": "not every host", "hint": "again"},
        "done": {"munge": {**DONE, "unconfirmed": ["x"]}},
    }
    with pytest.raises(UnconfirmedError, match="not every host") as caught:
        rotations(Controller(tmp_path, answer, status=8)).rotate(["munge"])
    assert caught.value.exit_code == 8
    assert caught.value.done.to_dict()["secrets"][0] == {"name": "munge", **DONE, "unconfirmed": ["x"]}


class Controllers:
    """Runs a program of the test for each secret.

    Args:
        answers: what it prints, by the name of the secret.
    """

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self._program = (
            "import json, sys; [name] = json.load(sys.stdin)['arguments']['what'];"
            f"answer = {answers!r}[name]; sys.stdout.write(json.dumps(answer));"
            "sys.exit(0 if 'result' in answer else 8 if 'done' in answer else 1)"
        )

    def ssh_argv(self, _host: str | None, _command: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", self._program]


def test_all_of_them_are_rotated_though_hosts_have_not_confirmed_the_first() -> None:
    missed = {
        "error": {"message": "not every host", "hint": "again"},
        "done": {"munge": {**DONE, "unconfirmed": ["x"]}},
    }
    keys = {"compute-1": ["ssh-ed25519 AAAA"]}
    answers: dict[str, dict[str, Any]] = {
        "munge": missed,
        "passwords": {"result": {"passwords": DONE}},
        "host-keys": {"result": {"host-keys": {**DONE, "keys": keys}}},
        "ssh-ca": {"result": {"ssh-ca": {**DONE, "authority": "ssh-ed25519 AAAA ca"}}},
        "directory-ca": {"result": {"directory-ca": {**DONE, "authority": "PEM"}}},
        "controller-key": {"result": {"controller-key": DONE}},
        "join-key": {"result": {"join-key": DONE}},
    }
    told: list[str] = []
    with pytest.raises(UnconfirmedError, match="not every host") as caught:
        rotations(Controllers(answers)).rotate(["all"], lambda done: told.append(done.name))
    done = caught.value.done
    assert [each.name for each in done.secrets] == told == list(answers)
    assert [each.unconfirmed for each in done.secrets] == [("x",), *[()] * (len(answers) - 1)]
    assert done.to_dict()["secrets"][2]["keys"] == keys


def test_what_was_not_begun_is_named() -> None:
    failed = {"error": {"message": "nothing was switched", "hint": "again"}}
    with pytest.raises(ToolError, match="nothing was switched") as caught:
        rotations(Controllers({"munge": failed})).rotate(["all"])
    assert caught.value.hint == "again. Not begun: passwords, host-keys, ssh-ca, directory-ca, controller-key, join-key"


def test_no_answer_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="does not answer") as caught:
        rotations(Controller(tmp_path, "", status=1)).rotate(["munge"])
    assert "the same command again" in str(caught.value.hint)


def test_what_there_is(tmp_path: Path) -> None:
    row = {"name": "munge", "changed": "2026-11-29T10:00:00Z", "state": "unconfirmed", "unconfirmed": ["compute-1"]}
    controller = Controller(tmp_path, {"result": {"secrets": [row]}})
    found = rotations(controller).present()
    assert found == (RotatableSecret("munge", "2026-11-29T10:00:00Z", "unconfirmed", ("compute-1",)),)
    assert found[0].to_dict() == {**row, "expires": ""}
    assert controller.request["operation"] == "state"


def test_the_host_with_grafana_is_asked_about_its_password(tmp_path: Path) -> None:
    row = {"changed": "", "state": "complete", "unconfirmed": list[str]()}
    rows = [{**row, "name": name} for name in ("munge", "grafana")]
    controller = Controller(tmp_path, {"result": {"secrets": rows}})
    assert [each.name for each in rotations(controller, text=LOCAL + GRAFANA).present()] == ["munge", "grafana"]
    assert controller.hosts == [None, "demo-login-1"]
    controller = Controller(tmp_path, {"result": {"grafana": DONE}})
    rotations(controller, text=LOCAL + GRAFANA).rotate(["grafana"])
    assert controller.hosts == ["demo-login-1"]


@pytest.mark.parametrize(
    ("what", "text", "words"),
    [
        ((), LOCAL, "nothing is named"),
        (("mung",), LOCAL, "mung can't be rotated"),
        (("munge", "x"), LOCAL, "x can't be rotated"),
        (("kubernetes",), LOCAL, "no kubernetes to rotate: its scheduler is not kubernetes"),
        (("munge",), KUBERNETES_LOCAL, "no munge to rotate: its scheduler is not slurm"),
        (("passwords",), WITHOUT, "no passwords to rotate: it has no directory of its own"),
        (("host-keys",), WITHOUT, "no host-keys to rotate: without a home share its controller does not know"),
        (("munge", "all"), KUBERNETES_LOCAL, "no munge to rotate"),
        (("all",), WITHOUT, "nothing to rotate: the scheduler of this cluster is none"),
    ],
)
def test_only_what_works_can_be_named(what: tuple[str, ...], text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        chosen(what, loads(text))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (LOCAL, ("munge", *OF_HOSTS, "join-key")),
        (KUBERNETES_LOCAL, (*OF_HOSTS, "kubernetes")),
        (KUBERNETES_LOCAL + "containers: {runtimes: [docker]}\n", (*OF_HOSTS, "container-keys", "kubernetes")),
        (WITHOUT, ()),
        (LOCAL + GRAFANA, ("munge", *OF_HOSTS, "join-key", "grafana")),
    ],
)
def test_all_is_what_the_cluster_has(text: str, names: tuple[str, ...]) -> None:
    assert secrets_of(loads(text)) == names
    if names:
        assert chosen(["all"], loads(text)) == names
        assert chosen(names[::-1], loads(text)) == names


def test_the_certificates_of_a_control_plane_are_renewed(tmp_path: Path) -> None:
    plane = ControlPlane()
    row = {"name": "passwords", "changed": "", "state": "complete", "unconfirmed": []}
    there = rotations(Controller(tmp_path, {"result": {"secrets": [row]}}), text=KUBERNETES_LOCAL, plane=plane)
    assert there.rotate(["kubernetes"]).secrets == (RotatedSecret("kubernetes", True, 1, (), ()),)
    assert plane.renewed[0] > 3650, "kubeadm makes none that are valid for longer"
    (_passwords, certificates) = there.present()
    assert (certificates.name, certificates.state, certificates.expires) == (
        "kubernetes",
        "complete",
        "2027-11-01T00:00:00Z",
    )
