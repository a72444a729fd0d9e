"""Rules of `monitoring`: the configuration of Alertmanager."""

from __future__ import annotations

from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields

RULES = (
    "The other keys of `monitoring` have an effect only with `monitoring.enabled: true`.",
    "`monitoring.alertmanager_file` is a file of at most 1 MiB that you can read. The controller checks its content.",
)

_FILE: Path = ("monitoring", "alertmanager_file")
_MAX_BYTES = 1024 * 1024


def check(context: RuleContext) -> None:
    """Add every error of `monitoring`. The content of Alertmanager's file is never part of a message."""
    name = context.section("monitoring").get("alertmanager_file")
    if not isinstance(name, str):
        return
    try:
        with fields.located(name, context.directory).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError):
        hint = "File names are relative to this file. docs/how-to/monitoring.md has an example"
        context.error(_FILE, f"there is no file {shown(name)} that can be read", hint)
        return
    if not content.strip():
        context.error(_FILE, f"{shown(name)} is empty", "docs/how-to/monitoring.md has an example")
    elif len(content) > _MAX_BYTES:
        context.error(_FILE, f"{shown(name)} has more than 1 MiB", "Name the configuration file of Alertmanager")
