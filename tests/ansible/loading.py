"""The ansible folder's files as Python modules: they are no package."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ansible.plugins.loader import filter_loader, lookup_loader

from ansible import module_utils
from gpucluster.paths import ansible_dir
from tests.documents import parse

ANSIBLE = ansible_dir()
# As ansible.cfg states, for templates that are evaluated without a playbook.
lookup_loader.add_directory(str(ANSIBLE / "lookup_plugins"))
filter_loader.add_directory(str(ANSIBLE / "filter_plugins"))
ROLES = sorted(path.name for path in (ANSIBLE / "roles").iterdir())
PLAYBOOKS = sorted(path.name for path in ANSIBLE.glob("*.yml"))


def load(path: str) -> ModuleType:
    """A Python file below the ansible folder."""
    file = ANSIBLE / path
    name = f"gpucluster_ansible_{file.stem.replace('-', '_')}"
    spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    with _no_bytecode(), _our_module_utils():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _our_module_utils() -> Iterator[None]:
    """Put our module_utils beside Ansible's own, as Ansible does."""
    before = module_utils.__path__
    module_utils.__path__ = [*before, str(ANSIBLE / "module_utils")]
    try:
        yield
    finally:
        module_utils.__path__ = before


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Write no bytecode beside the files, because roles copy their folders to hosts."""
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = written


def read(path: Path | str) -> Any:
    """A YAML file below the ansible folder."""
    return copy.deepcopy(_parsed((ANSIBLE / path).read_text()))


@functools.cache
def _parsed(text: str) -> Any:
    """Each text once: most tests of roles read the same files."""
    return parse(text)


def tasks_of(items: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a file, those in blocks and plays included."""
    for item in items or []:
        inner = [item[key] for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks") if key in item]
        for part in inner:
            yield from tasks_of(part)
        if not inner:
            yield item


class ModuleFailed(Exception):
    """fail_json was called."""


class FakeModule:
    """The part of AnsibleModule that our code uses."""

    def __init__(self, *, check_mode: bool = False, answers: dict[str, tuple[int, str, str]] | None = None) -> None:
        self.check_mode = check_mode
        self.answers = answers or {}
        self.calls: list[str] = []
        self.params: dict[str, Any] = {}

    def fail_json(self, *, msg: str, **_more: Any) -> None:
        raise ModuleFailed(msg)

    def get_bin_path(self, name: str) -> str | None:
        """A program that has an answer is there."""
        return f"/usr/bin/{name}" if any(name in start for start in self.answers) else None

    def run_command(self, argv: list[str], **_options: Any) -> tuple[int, str, str]:
        line = " ".join(argv)
        self.calls.append(line)
        for start, answer in self.answers.items():
            if start in line:
                return answer
        return 0, "", ""
