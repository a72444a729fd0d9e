"""The processes that ansible-playbook forks for tasks leave alone what existed before the fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ansible.loading import ANSIBLE

pytestmark = pytest.mark.slow

# A lookup of a task's argument is evaluated in the task's own process.
LOOKUP = """
import gc, os
from ansible.plugins.lookup import LookupBase
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **options):
        return [{"frozen": gc.get_freeze_count(), "threshold": gc.get_threshold()[0], "parent": os.getppid()}]
"""
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "{{ lookup('collector') | to_json }}"
"""


def test_what_existed_before_the_fork_is_not_visited_in_a_task(tmp_path: Path) -> None:
    (tmp_path / "lookup_plugins").mkdir()
    (tmp_path / "lookup_plugins/collector.py").write_text(LOOKUP)
    (tmp_path / "callback_plugins").symlink_to(ANSIBLE / "callback_plugins")
    (tmp_path / "play.yml").write_text(PLAY)
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", "play.yml"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if '"msg":' in line)
    found = json.loads("{" + line + "}")["msg"]
    found = json.loads(found) if isinstance(found, str) else found
    assert found["frozen"] > 10_000
    assert found["threshold"] > 10_000
