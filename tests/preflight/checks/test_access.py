"""The key, the clock, the region, the compartment, ssh and Terraform: each fault is reported with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.preflight.facts import (
    Compartment,
    FirstCall,
    InstalledProgram,
    KeyFile,
    SshPair,
    Unknown,
)
from tests.preflight.cases import (
    KEY,
    SSH,
    Case,
    reported,
)
from tests.preflight.preflight_facts import (
    refused,
)

# What is changed, what is so, and what must be reported of it: level, check, a passage.
CASES: dict[str, Case] = {
    # credentials
    "no key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", "it can't be read: No such file or directory"), "first_call": None},
        "error",
        "credentials",
        "No such file",
    ),
    "locked key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", "it has a passphrase"), "first_call": None},
        "error",
        "credentials",
        "passphrase",
    ),
    "open key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", mode=0o644, fingerprint="aa:bb")},
        "warning",
        "credentials",
        "mode 0644",
    ),
    "other fingerprint": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", fingerprint="cc:dd"), "first_call": FirstCall("region us-ashburn-1", 401)},
        "error",
        "credentials",
        "has cc:dd",
    ),
    "unknown key": (
        (),
        {"first_call": FirstCall("region us-ashburn-1", 401, "401 NotAuthenticated", 0.1)},
        "error",
        "credentials",
        "does not accept the signature",
    ),
    "unknown runner": (
        (),
        {"key_file": None, "first_call": FirstCall("region us-ashburn-1", 401, "401 NotAuthenticated", 0.1)},
        "error",
        "credentials",
        "does not accept the signature",
    ),
    "no network": (
        (),
        {"first_call": FirstCall("region us-ashburn-1", 0, "[Errno 101] Network is unreachable")},
        "error",
        "credentials",
        "Network is unreachable",
    ),
    # clock
    "clock a little off": ((), {"first_call": FirstCall("x", 200, skew=-61)}, "warning", "clock", "61 s behind"),
    "clock far off": ((), {"first_call": FirstCall("x", 401, skew=3600)}, "error", "clock", "3600 s ahead"),
    # region, compartment
    "region": ((), {"regions": ("uk-london-1",)}, "error", "region", "not subscribed"),
    "region of the profile says why": (
        (),
        {"regions": ("uk-london-1",), "first_call": FirstCall("region us-ashburn-1", 401)},
        "error",
        "region",
        "us-ashburn-1",
    ),
    "regions unknown": (
        (),
        {"regions": refused("region", "the regions of the tenancy")},
        "warning",
        "region",
        "could not read the regions",
    ),
    "no compartment": (
        (),
        {"compartment": refused("compartment"), "vcns": refused("overlap")},
        "error",
        "compartment",
        "there is no compartment",
    ),
    "compartment not to be seen": (
        (),
        {"compartment": refused("compartment", "the compartment c")},
        "warning",
        "compartment",
        "could not read the compartment",
    ),
    "instances of others": (
        (),
        {"strangers": 3},
        "warning",
        "compartment",
        "3 instances of others, which the controller",
    ),
    "compartment deleted": ((), {"compartment": Compartment("hpc", "DELETED")}, "error", "compartment", "is DELETED"),
    # ssh, terraform
    "ssh key elsewhere": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", exists=False)}, "warning", "ssh", "not a file"),
    "open ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", mode=0o640)}, "error", "ssh", "mode 0640"),
    "locked ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", locked=True)}, "note", "ssh", "passphrase"),
    "spoilt ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A")}, "error", "ssh", "can't be read"),
    "two ssh pairs": (
        (),
        {"ssh": SshPair(SSH, "ssh-ed25519 A", derived="ssh-ed25519 B")},
        "error",
        "ssh",
        "does not belong",
    ),
    "no ssh-keygen": (
        (),
        {"ssh": Unknown("ssh", "the private key", "no ssh-keygen", action="Install it")},
        "warning",
        "ssh",
        "no ssh-keygen",
    ),
    "old terraform": (
        (),
        {"terraform": InstalledProgram("terraform 1.5 has no backend oci", "Take 1.12")},
        "error",
        "terraform",
        "no backend oci",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_level_reason_and_action(case: str, tmp_path: Path) -> None:
    reported(CASES[case], tmp_path)
