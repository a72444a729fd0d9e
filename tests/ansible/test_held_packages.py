"""Packages that are held: real dpkg and apt with a database of their own; dnf's configuration as a text.

What this does not prove: that dnf follows `excludepkgs`, which dnf.conf(5) promises: there is no dnf on Debian's hosts.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import ModuleFailed, load

held = load("module_utils/gpucluster_held.py")
module = load("library/gpucluster_held_packages.py")

UBUNTU = [
    "linux-image-6.8.0-1030-oracle",
    "linux-modules-nvidia-580-server-open-oracle",
    "linux-oracle",
    "libnvidia-compute-580-server",
    "nvidia-fabricmanager-580",
    "nvlsm",
    "mlnx-ofed-kernel-dkms",
]
FREE = ["curl", "linux-libc-dev", "linux-firmware", "nvidia-container-toolkit", "libnvidia-container1"]


class RealModule:
    """The part of AnsibleModule that runs programs: here with a database of dpkg of the test's own."""

    def __init__(self, root: Path, *, check_mode: bool = False) -> None:
        self.check_mode, self.root = check_mode, root

    def run_command(self, argv: list[str], data: str = "", **_options: Any) -> tuple[int, str, str]:
        environment = os.environ | {"DPKG_ADMINDIR": str(self.root / "var/lib/dpkg"), "LC_ALL": "C"}
        done = subprocess.run(argv, input=data, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def fail_json(self, *, msg: str, **_more: Any) -> None:
        raise ModuleFailed(msg)


def entry(name: str, version: str, state: str = "install ok installed") -> str:
    return (
        f"Package: {name}\nStatus: {state}\nMaintainer: test <test@example.com>\nArchitecture: amd64\n"
        f"Version: {version}\nDescription: a package of a test\n"
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    database = tmp_path / "var/lib/dpkg"
    for folder in ("updates", "info"):
        (database / folder).mkdir(parents=True)
    (database / "available").touch()
    (database / "arch").write_text("amd64\n")
    (database / "status").write_text("\n".join(entry(name, "1.0") for name in [*UBUNTU, *FREE]))
    return tmp_path


def apply(root: Path, *, check_mode: bool = False) -> Any:
    made = RealModule(root, check_mode=check_mode)
    holder = module.Holder(made, module.manager.__globals__["Debian"](made), root)
    holder.run()
    return holder


def apt(root: Path, *words: str) -> str:
    """The answer of a program of apt that knows nothing of this machine but its own programs."""
    options = [f"--option=Dir={root}", f"--option=Dir::State::status={root}/var/lib/dpkg/status"]
    for folder in (
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"LC_ALL": "C", "DPKG_ADMINDIR": f"{root}/var/lib/dpkg"}
    # As a file of /etc/apt/apt.conf.d: apt reads that folder before an option gives it another place.
    environment["APT_CONFIG"] = str(root / module.UNATTENDED if (root / module.UNATTENDED).exists() else "/dev/null")
    command = [words[0], *options, "--option=APT::Architecture=amd64", "--option=APT::Sandbox::User=root", *words[1:]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_dpkg_holds_the_driver_and_the_kernel_once_and_apt_sees_it(root: Path) -> None:
    first = apply(root)
    assert (first.changed, first.held) == (True, sorted(UBUNTU))
    assert apt(root, "apt-mark", "showhold").split() == sorted(UBUNTU)
    again = apply(root)
    assert (again.changed, again.held, again.released) == (False, [], [])


def test_an_upgrade_of_everything_leaves_what_is_held(root: Path) -> None:
    repository = root / "repository"
    repository.mkdir()
    newer = (
        entry(name, "2.0").replace("Status: install ok installed\n", "")
        + f"Filename: ./{name}.deb\nSize: 1\nSHA256: {'0' * 64}\n"
        for name in [*UBUNTU, *FREE]
    )
    (repository / "Packages").write_text("\n".join(newer))
    (root / "etc/apt").mkdir(parents=True)
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{repository} ./\n")
    apt(root, "apt-get", "update")

    def upgraded() -> set[str]:
        return set(re.findall(r"^Inst (\S+) ", apt(root, "apt-get", "--simulate", "dist-upgrade"), re.MULTILINE))

    assert upgraded() == {*UBUNTU, *FREE}
    apply(root)
    assert upgraded() == set(FREE)
    # On purpose, as the role nvidia does it and the documentation states.
    with pytest.raises(subprocess.CalledProcessError):
        apt(root, "apt-get", "--simulate", "--yes", "install", "nvlsm=2.0")
    said = apt(root, "apt-get", "--simulate", "--yes", "--allow-change-held-packages", "install", "nvlsm=2.0")
    assert "Inst nvlsm " in said


def test_what_others_hold_stays_held_and_what_is_gone_is_released(root: Path) -> None:
    database = root / "var/lib/dpkg/status"
    text = database.read_text()
    database.write_text(
        text.replace(entry("curl", "1.0"), entry("curl", "1.0", "hold ok installed")).replace(
            entry("nvlsm", "1.0"), entry("nvlsm", "1.0", "hold ok installed")
        )
    )
    assert "nvlsm" not in apply(root).held
    assert "nvlsm" not in (root / module.RECORD).read_text()
    text = database.read_text()
    removed = re.sub(r"(Package: (?:linux-oracle|nvlsm)\nStatus:) hold ok installed", r"\1 hold ok config-files", text)
    database.write_text(removed)
    later = apply(root)
    assert (later.held, later.released) == ([], ["linux-oracle"])
    on_hold = apt(root, "apt-mark", "showhold").split()
    assert {"curl", "nvlsm"} <= set(on_hold)
    assert "linux-oracle" not in on_hold


def test_a_kernel_that_was_upgraded_on_purpose_is_held_by_the_next_run(root: Path) -> None:
    apply(root)
    database = root / "var/lib/dpkg/status"
    database.write_text(database.read_text() + "\n" + entry("linux-image-6.8.0-1040-oracle", "1.0"))
    assert apply(root).held == ["linux-image-6.8.0-1040-oracle"]


def test_a_trial_changes_nothing(root: Path) -> None:
    before = (root / "var/lib/dpkg/status").read_text()
    assert apply(root, check_mode=True).changed
    assert (root / "var/lib/dpkg/status").read_text() == before
    assert not (root / "etc").exists()


def test_a_host_without_such_packages_needs_none(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text("\n".join(entry(name, "1.0") for name in FREE))
    assert apply(root).held == []
    assert not apply(root).changed


def test_a_dpkg_that_refuses_is_a_failure_with_its_words(root: Path) -> None:
    made = RealModule(root)
    holder = module.Holder(made, module.manager.__globals__["Debian"](made), root)
    with pytest.raises(ModuleFailed, match=r"dpkg can't hold packages: dpkg: error: .*zzz"):
        holder._select("curl\tzzz\n")


def test_unattended_upgrades_read_the_patterns_as_they_are(root: Path) -> None:
    apply(root)
    said = apt(root, "apt-config", "dump", "--format", "%f\t%v%n")
    found = [
        line.split("\t")[1] for line in said.splitlines() if line.startswith("Unattended-Upgrade::Package-Blacklist::")
    ]
    assert found == list(held.PATTERNS)


@pytest.mark.parametrize(
    ("name", "is_held"),
    [
        # Ubuntu and NVIDIA's repository for it
        ("linux-image-oracle-lts-22.04", True),
        ("linux-headers-6.8.0-1030-oracle", True),
        ("nvidia-dkms-580-server-open", True),
        ("nvidia-imex-580", True),
        ("libnvidia-nscq-580", True),
        ("libcuda1:amd64", True),
        ("linux-tools-common", False),
        ("datacenter-gpu-manager-4-core", False),
        ("nvidia-cuda-toolkit", False),
        # Debian
        ("linux-image-cloud-amd64", True),
        ("firmware-nvidia-gsp", True),
        ("nvidia-cuda-mps", True),
        ("nvidia-container-runtime", False),
        # Oracle Linux
        ("kernel-uek", True),
        ("kernel-uek-core", True),
        ("kernel-uek-modules-extra", True),
        ("kernel", True),
        ("kernel-modules-core", True),
        ("kmod-nvidia-open-dkms", True),
        ("nvidia-driver-cuda-libs", True),
        ("libnvsdm", True),
        ("kmod-mlnx-ofa_kernel", True),
        ("kernel-headers", False),
        ("kernel-tools-libs", False),
        ("libnvidia-container-tools", False),
    ],
)
def test_packages_of_driver_and_kernel_are_known_by_their_names(name: str, is_held: bool) -> None:
    assert held.to_hold([name]) == ([name] if is_held else [])


ORACLE = "[main]\ngpgcheck=1\ninstallonly_limit=3\nbest=True\n"


def excluded(text: str) -> set[str]:
    parsed = configparser.ConfigParser()
    parsed.read_string(text)
    return set(re.split(r"[\s,]+", parsed["main"].get("excludepkgs", ""))) - {""}


@pytest.mark.parametrize(
    ("text", "others"),
    [
        (ORACLE, set()),
        ("", set()),
        ("[main]", set()),
        (ORACLE + "excludepkgs=slurm*,pmix\n", {"slurm*", "pmix"}),
        (ORACLE + "exclude = slurm* pmix\n[other]\nexcludepkgs=zsh\n", {"slurm*", "pmix"}),
        (ORACLE + "excludepkgs=slurm*,\n   pmix\n\nkeepcache=1\n", {"slurm*", "pmix"}),
        (ORACLE + "# excludepkgs=zsh\n", set()),
    ],
)
def test_dnf_excludes_them_beside_what_it_excluded_before(text: str, others: set[str]) -> None:
    once = held.with_excluded(text, [], ["kernel-uek", "nvidia-driver"])
    assert excluded(once) == {*others, "kernel-uek", "nvidia-driver"}
    assert held.with_excluded(once, ["kernel-uek", "nvidia-driver"], ["kernel-uek", "nvidia-driver"]) == once
    assert excluded(held.with_excluded(once, ["kernel-uek", "nvidia-driver"], ["nvidia-driver"])) == {
        *others,
        "nvidia-driver",
    }
    without = held.with_excluded(once, ["kernel-uek", "nvidia-driver"], [])
    assert excluded(without) == others
    kept = [line for line in text.splitlines() if line and "xclude" not in line and "pmix" not in line]
    assert [line for line in without.splitlines() if line in kept] == kept


def test_dnf_keeps_an_exclusion_that_was_there_before(tmp_path: Path) -> None:
    class Rpm:
        format = "rpm"

        def run(self, argv: list[str], what: str = "") -> str:
            assert argv[:3] == ["rpm", "--query", "--all"]
            return self.said

        said = "kernel-uek\nkernel-uek\nnvidia-driver\nbash\n"

    rpm = Rpm()

    def apply() -> Any:
        holder = module.Holder(RealModule(tmp_path), rpm, tmp_path)
        holder.run()
        return holder

    (tmp_path / "etc/dnf").mkdir(parents=True)
    (tmp_path / module.DNF_CONFIG).write_text(ORACLE + "excludepkgs=kernel-uek\n")
    first = apply()
    assert (first.changed, first.held) == (True, ["nvidia-driver"])
    assert not apply().changed
    rpm.said = "bash\n"
    assert apply().released == ["nvidia-driver"]
    assert excluded((tmp_path / module.DNF_CONFIG).read_text()) == {"kernel-uek"}
