"""Each handler that a task notifies exists in its role. Ansible itself finds out only when the task changes a host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(folder for folder in (Path(__file__).parents[2] / "ansible" / "roles").iterdir() if folder.is_dir())


class _Loader(yaml.SafeLoader):
    """Reads Ansible's own tags (`!unsafe`) as plain text."""


_Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def _tasks(folder: Path) -> Iterator[dict[str, Any]]:
    pending = [task for file in folder.glob("**/*.yml") for task in yaml.load(file.read_text(), _Loader) or []]
    while pending:
        task = pending.pop()
        yield task
        pending += [inner for part in ("block", "rescue", "always") for inner in task.get(part) or []]


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_notified_handler_exists(role: Path) -> None:
    handlers = list(_tasks(role / "handlers"))
    known = {handler.get("name") for handler in handlers} | {
        topic for handler in handlers for topic in _list(handler.get("listen"))
    }
    notified = {name for task in [*_tasks(role / "tasks"), *handlers] for name in _list(task.get("notify"))}
    assert notified <= known
