"""What roles run on nodes is in the archive that nodes have; the controller's commands are in its own alone."""

from __future__ import annotations

import re

from gpucluster.controller import __main__ as controller
from gpucluster.node_agent import __main__ as node
from gpucluster.node_agent.kubernetes import __main__ as kubernetes
from tests.ansible.loading import ANSIBLE

#: What runs on the controller or on Prometheus' host only.
_CONTROLLER = (
    "roles/base/files/gpucluster-ssh-authority@.service",
    "roles/health/tasks/absent.yml",
    "roles/health/tasks/present.yml",
    "roles/health/templates/gpucluster-health.service.j2",
    "roles/kubernetes/tasks/autoscaler.yml",
    "roles/kubernetes/tasks/certificates.yml",
    "roles/kubernetes/tasks/control_plane.yml",
    "roles/kubernetes/tasks/elastic_node.yml",
    "roles/kubernetes/tasks/system.yml",
    "roles/kubernetes/tasks/upgrade_await.yml",
    "roles/kubernetes/templates/gpucluster-kubernetes-certificates.service.j2",
    "roles/ldap/tasks/existing.yml",
    "roles/monitoring/templates/gpucluster-monitor.service.j2",
    "roles/people/files/gpucluster-kubeconfig@.service",
    "roles/people/tasks/main.yml",
    "roles/people/templates/gpucluster-directory.service.j2",
    "roles/people/templates/gpucluster-logs.service.j2",
    "roles/slurm/tasks/policies.yml",
    "roles/slurm/files/gpucluster-munge-switch.service",
    "roles/slurm/templates/gpucluster-munge-keys@.service.j2",
    "roles/software/templates/gpucluster-software.service.j2",
)
_CALL = re.compile(r"(?:agent_program(?: \}\})?|/usr/local/bin/gpucluster-agent)([\"', a-z0-9{}=/._-]*)")
#: Subcommands of the commands that both archives have.
_OF_NODES = {
    "health": {"run", "gate", "publish"},
    "kubernetes": set(kubernetes.COMMANDS),
    "host-certificate": {"request"},
}


def _calls() -> list[tuple[str, list[str]]]:
    """File and the first words of each call of the agent."""
    found = []
    for file in sorted([*ANSIBLE.glob("roles/**/*"), *ANSIBLE.glob("tasks/*")]):
        if file.suffix in (".yml", ".j2", ".service") and file.is_file():
            name = file.relative_to(ANSIBLE).as_posix()
            for call in _CALL.findall(file.read_text()):
                words = re.findall(r"(?<![\w=/.-])[a-z][a-z-]*(?![\w=/.])", call)
                found += [(name, words)] if words and words[0] in controller.COMMANDS else []
    return found


def _is_of_nodes(words: list[str]) -> bool:
    wanted = _OF_NODES.get(words[0])
    return words[0] in node.COMMANDS and (wanted is None or bool(wanted & set(words[1:])))


def test_what_runs_on_nodes_is_in_their_archive() -> None:
    calls = [(name, words) for name, words in _calls() if name not in _CONTROLLER]
    assert {words[0] for _name, words in calls} >= {"exporter", "health", "kubernetes", "mig", "record"}
    assert [(name, words) for name, words in calls if not _is_of_nodes(words)] == []


def test_what_is_listed_runs_a_command_of_the_controller() -> None:
    """Else it could run on nodes, and would not be looked at."""
    assert set(_CONTROLLER) == {name for name, words in _calls() if not _is_of_nodes(words)}
