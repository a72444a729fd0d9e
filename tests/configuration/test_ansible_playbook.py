"""Real ansible-playbook, with and without what an earlier run has compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster.configuration import ansible_playbook
from gpucluster.paths import ansible_dir, import_root

PLAYBOOK = r"""
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    word: hidden-value
    escaped: "{{ 'a\\tb' }}"
    twice: "{{ word * 2 }}"
  tasks:
    - gpucluster_service:
        files:
          - {path: "{{ folder }}/out", content: "{{ twice }} {{ lookup('template', 'one.j2') }}"}
          - {path: "{{ folder }}/copied", content: "{{ escaped }}{{ [1, 2] | map('pow', 2) | join(',') }}"}
    - ansible.builtin.fail: {msg: "as {{ word }} says"}
      when: word == 'fail' or word is match('fail')
"""
RESULTS = ("hidden-valuehidden-value \\n\\nincluded hidden-value\n", "a\\tb1.0,4.0")
TEMPLATE = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('\\\\n') }}{% include 'two.j2' %}\n"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the playbook in its own process."""
    folder = tmp_path / "ansible"
    folder.mkdir()
    (folder / "site.yml").write_text(PLAYBOOK)
    (folder / "one.j2").write_text(TEMPLATE)
    (folder / "two.j2").write_text("included {{ word }}")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", ansible_playbook.__name__, "--inventory=localhost,", "site.yml"]
        env = {
            "PATH": os.defpath,
            "PYTHONPATH": str(import_root()),
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_HOME": str(tmp_path / "home"),
            "ANSIBLE_CONFIG": str(ansible_dir() / "ansible.cfg"),
        }
        variables = {"folder": folder, "ansible_python_interpreter": sys.executable}
        extra = [f"--extra-vars={name}={value}" for name, value in variables.items()]
        return subprocess.run([*argv, *extra, *words], env=env, cwd=folder, capture_output=True, text=True, check=False)

    return run


def compiled(tmp_path: Path) -> dict[Path, int]:
    """The files that were kept, with the number of their inode."""
    return {file: file.stat().st_ino for file in (tmp_path / "home/compiled").rglob("*") if file.is_file()}


def results(tmp_path: Path) -> tuple[str, str]:
    return (tmp_path / "ansible/out").read_text(), (tmp_path / "ansible/copied").read_text()


@pytest.mark.slow
def test_what_one_run_has_compiled_serves_the_next_and_gives_the_same(
    play: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = play()
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(tmp_path) == RESULTS
    kept = compiled(tmp_path)
    assert {"templates", "modules"} == {file.parent.name for file in kept}
    assert not any(b"hidden-value" in file.read_bytes() for file in kept), "values do not belong into compiled files"
    again = play()
    assert "changed=0" in again.stdout, again.stdout + again.stderr
    assert compiled(tmp_path) == kept, "the second run has compiled something again"
    # A part of each file is left.
    for file in kept:
        if file.suffix != ".lock":
            file.write_bytes(file.read_bytes()[:20])
    failed = play("--extra-vars=word=fail")
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "as fail says" in failed.stdout
    assert results(tmp_path)[0] == RESULTS[0].replace("hidden-value", "fail")


# A lookup in a task's argument is evaluated in the task's own process.
LOOKUP = """
import gc
from ansible.plugins.lookup import LookupBase
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **options):
        return ["frozen" if gc.get_freeze_count() > 10000 and gc.get_threshold()[0] > 10000 else "visited"]
"""


@pytest.mark.slow
def test_the_collector_of_a_task_leaves_alone_what_existed_before(
    play: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "ansible/lookup_plugins").mkdir()
    (tmp_path / "ansible/lookup_plugins/collector.py").write_text(LOOKUP)
    done = play("--extra-vars=word=\"{{ lookup('collector') }}\"")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(tmp_path)[0].startswith("frozenfrozen ")


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = ansible_playbook.cache_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(PermissionError):
        ansible_playbook.cache_folder(tmp_path)


def test_what_another_version_has_compiled_is_removed(tmp_path: Path) -> None:
    other = tmp_path / "compiled/of-another-version/templates"
    other.mkdir(parents=True, mode=0o700)
    (tmp_path / "compiled").chmod(0o700)
    assert ansible_playbook.cache_folder(tmp_path).is_dir()
    assert not other.exists()
