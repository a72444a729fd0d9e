"""Users are checked twice: in cluster.yml on the operator's machine, and by the agent on the controller.

Both use the rules of `gpucluster.controller.rules`. What one accepts and the other refuses would fail in the middle of
an apply, so whole users are compared here as well.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.rules import ssh_keys
from gpucluster.controller.users import config, desired, values
from gpucluster.controller.users import plan as plans
from gpucluster.controller.users import state as states
from gpucluster.errors import InputError
from gpucluster.node_agent import errors
from gpucluster.spec import load
from tests.ansible.loading import read
from tests.controller.users.harness import CONFIG
from tests.spec.spec_texts import KEY, LOCAL, public_key

ACCOUNTS = values.LocalAccounts(users={}, groups={}, logins=set(), shells={"/bin/bash"})


def program_takes(person: dict[str, Any]) -> bool:
    """Whether the controller's program lets this user in."""
    try:
        plan = plans.Plan(config.Config.parse(CONFIG), states.DirectoryState(), ACCOUNTS, {})
        plan.put_user(desired.desired_user({key: value for key, value in person.items() if value != ""}, ACCOUNTS))
    except errors.Refused:
        return False
    return True


def file_takes(person: dict[str, Any], folder: Path) -> bool:
    """Whether cluster.yml takes them."""
    file = folder / "cluster.yml"
    text = {"ssh_public_keys": person.get("ssh_keys", [KEY]), **person}
    text.pop("ssh_keys", None)
    head, _, rest = LOCAL.partition("users:\n")
    after = rest.partition("\nslurm:")[2]
    file.write_text(f"{head}users:\n  people: [{json.dumps(text)}]\nslurm:{after}")
    try:
        load(file)
    except InputError:
        return False
    return True


LONG = public_key(comment="x" * ssh_keys.MAX_CHARACTERS)
RSA = ("ssh-rsa", b"\x01\x00\x01")
CASES: list[tuple[dict[str, Any], bool]] = [
    ({"name": "dora"}, True),
    ({"name": "root"}, False),
    ({"name": "kvm"}, False),
    ({"name": "libvirt-qemu"}, False),
    ({"name": "systemd-x"}, False),
    ({"name": "Dora"}, False),
    ({"name": "a" * 33}, False),
    *(({"name": "dora", "uid": uid}, taken_) for uid, taken_ in (
        (10001, True), (10000, False), (61183, True), (61184, False), (65535, False), (65536, True),
        (600_178_687, True), (600_178_688, False), (1_879_048_191, False), (1_879_048_192, True),
        (2_000_000_000, True), (2_000_000_001, False),
    )),
    *(({"name": "dora", "full_name": full_name}, taken_) for full_name, taken_ in (
        ("Dora", True), ("", True), ("Алиса Müller", True), ("می‌نا", True), ("123", False), ("a\tb", False),
        ("a\u00a0b", False), ("a:b", False), ("a,b", False), ("\u202eevil", False), ("x" * 100, True),
        ("x" * 101, False),
    )),
    *(({"name": "dora", "ssh_keys": [key]}, taken_) for key, taken_ in (
        (KEY, True), (public_key("ssh-ed25519", b"x" * 31), False), (public_key("ssh-ed25519", b"x" * 32, b"y"), False),
        (public_key(*RSA, b"\xff" * 256), True), (public_key(*RSA, b"\xff" * 128), False),
        (public_key("ssh-rsa", b"\xff" * 256), False),
        (public_key("ecdsa-sha2-nistp256", b"nistp256", b"x" * 65), True),
        (public_key("ecdsa-sha2-nistp256", b"nistp256"), False), (public_key("ssh-dss", b"x" * 32), False),
        (f"ssh-ed25519 {KEY.split()[1][:-8]}", False), (f'command="id" {KEY}', False), (LONG, False), ("", False),
        (f"{KEY}\n{KEY}", False), (f"{KEY}\tx", False),
        ("ssh-rsa " + KEY.split()[1], False), ("-----BEGIN OPENSSH PRIVATE KEY-----", False),
    )),
    ({"name": "dora", "ssh_keys": [public_key(comment=str(n)) for n in range(101)]}, False),
]  # fmt: skip


@pytest.mark.parametrize(("person", "taken_"), CASES, ids=range(len(CASES)))
def test_file_and_agent_accept_the_same_users(person: dict[str, Any], taken_: bool, tmp_path: Path) -> None:
    assert (file_takes(person, tmp_path), program_takes(person)) == (taken_, taken_)


@given(st.sampled_from(sorted(ssh_keys.TYPES)), st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 8))
def test_file_and_agent_accept_the_same_keys(kind: str, parts: list[bytes], cut: int) -> None:
    body = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), *parts))
    text = f"{kind} {base64.b64encode(body[: len(body) - cut]).decode()} x"
    try:
        assert ssh_keys.check(text) == text
    except ssh_keys.BadKey:
        with pytest.raises(errors.Refused):
            values.public_keys([text])
    else:
        assert values.public_keys([text]) == (text,)


def test_both_roles_mean_the_same_account_of_slurm() -> None:
    people, slurm = (read(f"roles/{role}/defaults/main.yml") for role in ("people", "slurm"))
    assert people["people_slurm_account"] == slurm["slurm_default_account"]
