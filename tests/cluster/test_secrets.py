"""`cluster.secrets`: what this machine and the state expect of hosts before and after their ssh keys change.

The controller, Terraform and the ssh client are doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.cluster.secrets import SecretOperations
from gpucluster.errors import InputError, UnconfirmedError
from gpucluster.handover import CONTRACT_VERSION
from gpucluster.operations.rotation import RotatedSecret, Rotation, Rotations
from gpucluster.spec import loads
from gpucluster.workspace.saved_state import SavedHost
from tests.spec.spec_texts import LOCAL


class Site:
    """A cluster of doubles.

    Args:
        steps: what was done, in its order. `certificates`: that the state has.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.certificates = {"ssh": "ssh-ed25519 FORMER demo ssh authority\n"}
        identity = {"contract_version": CONTRACT_VERSION, "certificates": self.certificates}
        terraform = SimpleNamespace(outputs=lambda: {"identity": identity})
        hosts = [SavedHost("demo-controller", "10.0.0.2", "ocid1.ctl"), SavedHost("compute-1", "10.0.1.2", None)]
        client = SimpleNamespace(learn_authority=self._note("authority"), learn_others=self._learned)
        provisioning = SimpleNamespace(
            prepare=lambda _run, **_how: self._prepared(terraform),
            note_host_keys=lambda _terraform, keys: self.steps.append(("state", keys)),
            note_authority=lambda _terraform, name, text: self.steps.append((f"state: {name}", text)),
        )
        runs = SimpleNamespace(run=lambda _name, **_how: nullcontext(SimpleNamespace()))
        self.parts: Any = SimpleNamespace(
            spec=loads(LOCAL),
            on_event=lambda _event: None,
            connections=SimpleNamespace(controller=SimpleNamespace(hosts=lambda: hosts), control_plane=None),
            identity=SimpleNamespace(runs=runs),
            phases=SimpleNamespace(provisioning=provisioning),
            programs=SimpleNamespace(ssh=lambda: client),
        )

    def _prepared(self, terraform: Any) -> Any:
        self.steps.append("prepared")
        return terraform

    def _note(self, what: str) -> Callable[[Any], None]:
        return lambda value: self.steps.append((what, value))

    def _learned(self, keys: Mapping[str, Sequence[str]]) -> dict[str, str]:
        self.steps.append(("learned", dict(keys)))
        return {instance: each[0] for instance, each in keys.items()}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    keys = {"demo-controller": ("ssh-ed25519 NEXT",), "compute-1": ("ssh-ed25519 OTHER",)}
    done = {
        "passwords": RotatedSecret("passwords", True, 2, (), ()),
        "host-keys": RotatedSecret("host-keys", True, 2, (), ("compute-1",), keys),
        "ssh-ca": RotatedSecret("ssh-ca", True, 2, (), (), {}, "ssh-ed25519 CA demo ssh authority\n"),
        "directory-ca": RotatedSecret("directory-ca", True, 2, (), (), {}, "PEM"),
    }

    def rotate(_rotations: Rotations, what: Sequence[str], on_done: Any = lambda _: None) -> Rotation:
        for name in what:
            made.steps.append(name)
            on_done(done[name])
        rotated = Rotation(tuple(done[name] for name in what))
        if "host-keys" in what:
            raise UnconfirmedError("not every host", done=rotated)
        return rotated

    monkeypatch.setattr(Rotations, "rotate", rotate)
    return made


def test_the_ca_is_believed_before_hosts_have_other_keys_and_what_they_have_is_learned_at_once(site: Site) -> None:
    with pytest.raises(UnconfirmedError):
        SecretOperations(site.parts).rotate(["host-keys", "ssh-ca"])
    assert site.steps == [
        "prepared",
        ("authority", "ssh-ed25519 FORMER"),
        "host-keys",
        # An instance that this machine does not know is left out.
        ("learned", {"ocid1.ctl": ("ssh-ed25519 NEXT",)}),
        ("state", {"ocid1.ctl": "ssh-ed25519 NEXT"}),
        "ssh-ca",
        ("authority", "ssh-ed25519 CA"),
        ("state: ssh", "ssh-ed25519 CA demo ssh authority\n"),
        ("learned", {}),
    ]


def test_the_state_gets_the_ca_of_the_directory_which_ssh_does_not_need(site: Site) -> None:
    site.certificates.clear()
    SecretOperations(site.parts).rotate(["directory-ca"])
    assert site.steps == ["prepared", "directory-ca", ("state: directory", "PEM"), ("learned", {})]


def test_without_the_ca_in_the_state_no_host_gets_other_keys(site: Site) -> None:
    site.certificates.clear()
    with pytest.raises(InputError, match="does not have the ssh CA") as caught:
        SecretOperations(site.parts).rotate(["host-keys"])
    assert (site.steps, caught.value.hint) == (["prepared"], "Run: gpucluster apply")


def test_what_needs_no_terraform_does_not_wait_for_it(site: Site) -> None:
    assert SecretOperations(site.parts).rotate(["passwords"]).secrets[0].name == "passwords"
    assert site.steps == ["passwords"]
