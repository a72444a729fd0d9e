"""What the roles write on hosts is where the collectors of facts and the agent read it."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gpucluster.node_agent.checks.expected import PATH, parse
from gpucluster.node_agent.facts import system
from tests.ansible.loading import ANSIBLE
from tests.ansible.render import evaluate, variables

GOLDEN = Path(__file__).parents[1] / "golden"


def test_what_a_host_should_have_is_written_as_the_agent_reads_it() -> None:
    groups = json.loads((GOLDEN / "local_demo" / "inventory.json").read_text())["all"]["children"]
    given = groups["controller"]["vars"]["node_expectation"]
    (file,) = evaluate("{{ checks_files }}", variables({"node_expectation": given}, role="base"))
    assert file["path"] == PATH
    assert parse(file["content"]).to_dict() == given


def test_the_secrets_of_the_controller_are_read_where_the_roles_have_them() -> None:
    slurm = yaml.safe_load((ANSIBLE / "roles" / "slurm" / "vars" / "main.yml").read_text())
    assert {name: str(file) for name, file in system.SECRETS.items()} == {"munge": slurm["slurm_munge_secret"]}
