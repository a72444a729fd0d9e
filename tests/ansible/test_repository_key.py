"""The key of a package repository, with the real gpg: only the expected one is stored."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import load, read
from tests.ansible.render import evaluate, host_facts, render, variables

keys = load("library/gpucluster_repository_key.py")


class Ended(Exception):
    """The end of the module."""


def run(params: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the module returns."""
    ended: dict[str, Any] = {}

    class Module:
        check_mode = False

        def __init__(self, **_spec: Any) -> None:
            self.params = params

        def run_command(self, argv: list[str]) -> tuple[int, str, str]:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

        def exit_json(self, **result: Any) -> None:
            ended.update(result)
            raise Ended

        def fail_json(self, **result: Any) -> None:
            ended.update(result, failed=True)
            raise Ended

    monkeypatch.setattr(keys, "AnsibleModule", Module)
    with pytest.raises(Ended):
        keys.main()
    return ended


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A key and its fingerprint."""
    home = tmp_path_factory.mktemp("gpg")
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-gen-key", "repository", "ed25519", "sign", "never"], check=True, capture_output=True)
    shown = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    fingerprint = next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr"))
    subprocess.run([*gpg, "--armor", "--output", str(home / "key.asc"), "--export"], check=True, capture_output=True)
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)
    return home / "key.asc", fingerprint


def test_only_the_expected_key_is_stored(
    key: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fingerprint = key
    target = tmp_path / "pki" / "docker"
    asked = {"url": file.as_uri(), "fingerprint": fingerprint.lower(), "path": str(target)}
    asked["setting"] = "nvidia.repositories"
    wrong = run({**asked, "fingerprint": "0" * 40}, monkeypatch)
    assert wrong["failed"]
    assert f"has the fingerprint {fingerprint}, not {'0' * 40}" in wrong["msg"]
    assert "set nvidia.repositories in cluster.yml" in wrong["msg"]
    assert list(target.parent.iterdir()) == []

    assert run(asked, monkeypatch)["changed"]
    assert target.read_bytes() == file.read_bytes()
    # It is not asked for again.
    assert not run({**asked, "url": "file:///nowhere"}, monkeypatch)["changed"]
    target.write_text("damaged")
    assert "can't be downloaded from file:///nowhere" in run({**asked, "url": "file:///nowhere"}, monkeypatch)["msg"]
    assert target.read_text() == "damaged"


def test_oracle_linux_has_docker_s_own_repository_unless_another_is_named() -> None:
    own = read("roles/docker/vars/main.yml")["docker_own_repository"]
    assert len(own["key_fingerprint"]) == 40
    assert own["url"].startswith("https://download.docker.com/")
    assert "gpgcheck=1" in Path(read.__globals__["ANSIBLE"], "roles/docker/templates/docker.repo.j2").read_text()


NVIDIA = {
    system: {"url": url, "key_url": "https://mirror.example/key.pub", "key_fingerprint": "0" * 40}
    for system, url in {
        "Debian-12": "https://mirror.example/cuda/debian12",
        "OracleLinux-9": "https://m.example/9",
    }.items()
}


def _nvidia(system: str) -> dict[str, Any]:
    facts = host_facts() | {"system": system}
    return variables({"nvidia_repositories": NVIDIA}, role="nvidia", facts=facts, system=system)


def test_apt_reads_nvidia_s_repository_with_its_key_alone(tmp_path: Path) -> None:
    known = _nvidia("Debian-12")
    files = evaluate("{{ nvidia_repository_files[os_package_manager] }}", known)
    parts = tmp_path / "parts"
    parts.mkdir()
    text = render("nvidia", files["template"].removesuffix(".j2"), known)
    (parts / Path(files["list"]).name).write_text(text)
    argv = ["apt-get", "update", "--print-uris", "-o", "Dir::Etc::SourceList=/dev/null"]
    argv += ["-o", f"Dir::Etc::SourceParts={parts}"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert said.startswith("'https://mirror.example/cuda/debian12/InRelease'")
    assert f"Signed-By: {files['key']}\n" in text


def test_dnf_checks_nvidia_s_packages_with_its_key() -> None:
    known = _nvidia("OracleLinux-9")
    files = evaluate("{{ nvidia_repository_files[os_package_manager] }}", known)
    text = render("nvidia", files["template"].removesuffix(".j2"), known)
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(text)
    found = dict(parsed["gpucluster-nvidia"])
    assert found["baseurl"] == "https://m.example/9"
    assert (found["gpgcheck"], found["gpgkey"]) == ("1", "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpucluster-nvidia")


def test_only_hosts_of_a_named_system_get_it() -> None:
    first = read("roles/nvidia/tasks/main.yml")[0]
    for system, wanted in (("Debian-12", True), ("Debian-13", False)):
        assert evaluate("{{ " + first["when"] + " }}", _nvidia(system) | {"nvidia_repositories": NVIDIA}) is wanted
