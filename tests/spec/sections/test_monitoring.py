"""The section `monitoring`: its host, its files, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.spec import loads
from gpucluster.spec.sections.monitoring import Monitoring
from tests.spec.faults import findings
from tests.spec.spec_texts import LOCAL


def test_without_the_section_there_is_none() -> None:
    monitoring = loads(LOCAL).monitoring
    assert (monitoring.enabled, monitoring.grafana, monitoring.login_number) == (False, False, None)
    assert monitoring.alertmanager_path is None


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("slurm_interval: 5", "slurm_interval", "at least 10"),
        ("retention_days: 0", "retention_days", "at least"),
        ("idle_minutes: 4", "idle_minutes", "at least 5"),
        ("silent_hang_seconds: 59", "silent_hang_seconds", "at least 60"),
        ("on_hang: kill", "on_hang", "must be tell or requeue or cancel"),
        ("host: login-0", "host", ""),
        ("host: compute-1", "host", ""),
        ("grafanna: true", "grafanna", "Did you mean grafana?"),
    ],
)
def test_a_wrong_value_is_refused(text: str, path: str, words: str) -> None:
    (found,) = findings(f"{LOCAL}monitoring: {{enabled: true, {text}}}\n")
    assert found[2] == f"monitoring.{path}"
    assert words in found[3]


def test_the_host_is_the_controller_or_a_login_node_by_its_number() -> None:
    assert Monitoring().login_number is None
    assert Monitoring(host="login-12").login_number == 12


def test_the_configuration_of_alertmanager_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    text = f"{LOCAL}monitoring: {{enabled: true, alertmanager_file: alertmanager.yml}}\n"
    monitoring = loads(text, str(tmp_path / "cluster.yml")).monitoring
    assert monitoring.alertmanager_path == tmp_path / "alertmanager.yml"
