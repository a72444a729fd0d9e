"""Certificates and proxy of the site, with the real trust store, apt and sh."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.in_container import Host
from tests.ansible.in_container import host as in_container
from tests.ansible.loading import ANSIBLE, load, read
from tests.ansible.render import render, render_file, variables

trust = load("library/gpucluster_trust.py")

PROXY: dict[str, Any] = {
    "url": "http://proxy.example:3128",
    "direct": ["localhost", "127.0.0.1", "169.254.169.254", "10.0.0.0/16", ".nodes.example", "pypi.corp.example"],
    "hosts": ["demo-controller", "10.0.0.2"],
}


def authority(folder: Path, name: str) -> str:
    """A new CA; returns its certificate."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    argv += ["-subj", f"/CN={name}", "-keyout", str(folder / "key.pem"), "-out", str(folder / f"{name}.pem")]
    subprocess.run(argv, check=True, capture_output=True)
    return (folder / f"{name}.pem").read_text()


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("authorities")
    return [authority(folder, name) for name in ("one", "two")]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """The trust store of Debian in a folder, with its real program."""
    anchors, certs = tmp_path / "anchors", tmp_path / "certs"
    anchors.mkdir()
    certs.mkdir()
    argv = ["update-ca-certificates", "--fresh", "--localcertsdir", str(anchors), "--etccertsdir", str(certs)]
    argv += ["--hooksdir", str(tmp_path / "none")]
    return trust.Store(anchors, ".crt", certs / "ca-certificates.crt", tuple(argv))


def update(store: Any) -> None:
    subprocess.run(store.update, check=True, capture_output=True)


@pytest.mark.slow
def test_certificates_come_into_the_store_and_leave_it(store: Any, authorities: list[str]) -> None:
    wanted = {trust.fingerprint(text): text for text in authorities}
    assert trust.change(store, wanted, check=True)
    assert not list(store.anchors.iterdir())
    assert trust.change(store, wanted, check=False)
    assert trust.stale(store, wanted, ""), "a run that is killed here must be finished by the next one"
    update(store)
    assert not trust.stale(store, wanted, "\n".join(wanted))
    assert not trust.change(store, wanted, check=False)
    assert set().union(*map(trust.bodies, authorities)) <= trust.bodies(store.bundle.read_text())

    (store.anchors / "of-the-image.crt").write_text("not ours")
    left = dict(list(wanted.items())[:1])
    assert trust.change(store, left, check=False)
    assert trust.stale(store, left, "\n".join(wanted)), "the record still has the other one"
    (store.anchors / "of-the-image.crt").unlink()
    update(store)
    assert trust.bodies(store.bundle.read_text()) >= trust.bodies(next(iter(left.values())))
    assert not trust.bodies(authorities[1]) & trust.bodies(store.bundle.read_text())


def test_apt_reads_the_proxy_and_reaches_hosts_of_the_cluster_without_it(tmp_path: Path) -> None:
    file = tmp_path / "apt.conf"
    file.write_text(render("base", "apt_proxy", variables({"base_proxy": PROXY}, role="base")))
    done = subprocess.run(["apt-config", "--config-file", file, "dump"], capture_output=True, text=True, check=True)
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in done.stdout
    assert 'Acquire::https::Proxy::pypi.corp.example "DIRECT";' in done.stdout
    assert 'Acquire::http::Proxy::10.0.0.2 "DIRECT";' in done.stdout
    assert "10.0.0.0/16" not in done.stdout


def test_programs_get_the_proxy_from_one_file(tmp_path: Path) -> None:
    file = tmp_path / "proxy.env"
    file.write_text(render("base", "proxy.env", variables({"base_proxy": PROXY}, role="base")))
    script = f"set -a; . {file}; env | grep -i _proxy | sort"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={}).stdout.splitlines()
    direct = ",".join(PROXY["direct"] + PROXY["hosts"])
    assert said == sorted(
        f"{name}={value}"
        for low, value in (("http_proxy", PROXY["url"]), ("https_proxy", PROXY["url"]), ("no_proxy", direct))
        for name in (low, low.upper())
    )


def test_docker_restarts_for_its_own_exceptions_and_not_for_the_number_of_nodes() -> None:
    text = (ANSIBLE / "roles/docker/templates/docker.conf.j2").read_text()
    assert "docker_proxy.direct" in text
    assert "hosts" not in text
    tasks = read("roles/docker/tasks/present.yml")
    (run,) = (task["gpucluster_service"] for task in tasks if task["name"] == "Configure and run Docker")
    (docker,) = (unit for unit in run["units"] if unit["name"] == "docker")
    assert "{{ site_certificates_record }}" in docker["follows"], "Docker reads the trust store once"


@pytest.mark.parametrize(("settings", "lines"), [({}, 0), ({"base_proxy": PROXY}, 1)])
def test_the_autoscaler_has_them_only_where_they_are_set(settings: dict[str, Any], lines: int) -> None:
    given = variables({**settings, "base_trusted_certificates": ["x"] * lines}, role="autoscaler")
    unit = render_file(ANSIBLE / "roles/autoscaler/templates/gpucluster-autoscaler.service.j2", given)
    assert unit.count("EnvironmentFile=-/etc/gpucluster/proxy.env") == lines
    assert unit.count("REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt") == lines


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with in_container() as node:
        (node.folder / "roles").symlink_to(ANSIBLE / "roles")
        yield node


@pytest.mark.containers
def test_a_host_trusts_and_asks_the_proxy_and_forgets_both(host: Host, authorities: list[str]) -> None:
    tasks = [{"include_role": {"name": "base", "tasks_from": "site"}}]
    facts: dict[str, Any] = {"os_package_manager": "apt"}
    settings = facts | {"base_trusted_certificates": authorities, "base_proxy": PROXY}
    host.run("sh", "-c", "printf 'EDITOR=vi\\n' > /etc/environment")
    verify = ["openssl", "verify", "/root/one.pem"]
    subprocess.run(
        ["nsenter", f"--target={host.pid}", "--mount", "--", "sh", "-c", "cat > /root/one.pem"],
        input=authorities[0], text=True, check=True,
    )  # fmt: skip
    assert "OK" not in host.run(*verify, check=False)

    assert host.play(tasks, settings).changed == 2
    assert host.play(tasks, settings).changed == 0
    assert "/root/one.pem: OK" in host.run(*verify)
    assert 'Proxy "http://proxy.example:3128"' in host.run("apt-config", "dump")
    assert "https_proxy=http://proxy.example:3128" in host.read("/etc/environment")
    assert host.exists("/etc/gpucluster/site")

    # Killed between the files and the update of the store.
    host.run("sh", "-c", "cd /etc/ssl/certs && rm ca-certificates.crt gpucluster-* && openssl rehash .")
    assert "OK" not in host.run(*verify, check=False)
    assert host.play(tasks, settings).changed == 1
    assert "/root/one.pem: OK" in host.run(*verify)

    gone = facts | {"base_trusted_certificates": [], "base_proxy": None}
    assert host.play(tasks, gone).changed == 2
    assert host.play(tasks, gone).changed == 0
    assert "OK" not in host.run(*verify, check=False)
    assert "proxy.example" not in host.run("apt-config", "dump")
    assert host.read("/etc/environment") == "EDITOR=vi\n"
    assert not host.exists("/etc/gpucluster/site")


@pytest.mark.containers
def test_a_package_that_no_repository_has_fails_with_its_name(host: Host) -> None:
    script = "mkdir -p /srv/empty /root/lists; touch /srv/empty/Packages; mv /etc/apt/sources.list.d/* /root/lists"
    host.run("sh", "-c", f"{script}; echo 'deb [trusted=yes] file:/srv/empty ./' > /etc/apt/sources.list")
    facts = {"missing_packages": ["openldap-servers"]}
    tasks: list[dict[str, Any]] = [
        {"set_fact": {"ansible_facts": {"gpucluster_host": facts}}},
        {"include_role": {"name": "base", "tasks_from": "install_apt"}},
    ]
    played = host.play(tasks, {}, check=False)
    said = " ".join(played.said.split())
    assert "no repository of this host (Debian-13) has openldap-servers; its repositories: file:" in said, played.said
