"""What a plan shows: as text on one screen, in full, and as Markdown for a merge request."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucluster.cli.summaries import SIGNS, change_sum, changes_text
from gpucluster.errors import InputError
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.lifecycle.duration import Duration
    from gpucluster.lifecycle.field_effects import FieldEffect
    from gpucluster.lifecycle.hourly_price import HourlyPrice
    from gpucluster.lifecycle.plan import ClusterPlan
    from gpucluster.lifecycle.resize import PoolScaling
    from gpucluster.terraform.plan import ResourceChange

# Jobs that a plan lists by themselves.
_SHOWN_JOBS = 7
# A screen: columns, and lines that each part may have before it is shortened.
_COLUMNS = 80
_LINES = 8


def plan_text(plan: ClusterPlan, command: str = "gpucluster apply", *, full: bool = True) -> str:
    """What an apply would do, as text: the changed keys of cluster.yml, Terraform's changes, the hosts by name, the
    jobs there, their configuration, the price and the time.

    Args:
        command: makes the changes.
        full: every line whole. False: on one screen; each part is shortened, and no line has more than 80 columns.
    """
    parts = _parts(plan, full=full)
    if not full:
        parts = [_on_screen(part) for part in parts]
    if plan.empty:
        return "\n\n".join([*parts, "no changes"])
    changes = [change for change in plan.changes if not change.internal]
    total = change_sum(changes) if changes else "resources stay as they are"
    shortened = [] if full or parts == _parts(plan, full=True) else ["Every line: gpucluster plan --full"]
    return "\n\n".join([*parts, "\n".join([*shortened, f"{total}. Next: {command}"])])


def _parts(plan: ClusterPlan, *, full: bool) -> list[str]:
    parts = [_fields_text(plan.fields or ())]
    changes = [change for change in plan.changes if not change.internal]
    if changes:
        shown = changes_text(changes)
        if not full and shown.count("\n") >= _LINES:
            shown = "\n".join(_counted(changes))
        parts.append(f"{count(len(changes), 'change')} of resources\n{shown}")
    elif plan.changes or plan.changes_outputs:
        parts.append("notes in Terraform's state, no resources")
    if plan.hosts:
        lines = [f"  {line}" for line in _host_lines(plan)]
        if not full and max(map(len, lines)) > _COLUMNS:
            lines = [f"  {line}" for line in _counted_hosts(plan)]
        parts.append("\n".join(["nodes", *lines]))
    parts.append(_jobs_text(plan))
    if plan.configuration:
        parts.append(
            "\n".join(["configuration of the hosts", *(f"  {printable(str(each))}" for each in plan.configuration)])
        )
    parts.append(_price_text(plan.price) if plan.price else "")
    parts.append(_duration_text(plan.duration) if plan.duration else "")
    return [part for part in parts if part]


def _host_lines(plan: ClusterPlan) -> list[str]:
    lines = [f"pool {pool}: {names}" for pool, names in plan.hosts.pools.items()]
    lines += [f"the controller: {plan.hosts.controller}"] if plan.hosts.controller else []
    return lines + ([f"login nodes: {plan.hosts.login}"] if str(plan.hosts.login) else [])


def _counted_hosts(plan: ClusterPlan) -> list[str]:
    """One line for each pool and each thing that happens to its nodes: what a line has no room for is a name, and
    never that nodes are lost."""
    lines = [f"the controller: {plan.hosts.controller}"] if plan.hosts.controller else []
    for where, hosts in [*((f"pool {name}", each) for name, each in plan.hosts.pools.items()), _login(plan)]:
        kinds = {"remove": hosts.removed, "replace": hosts.replaced, "reboot": hosts.rebooted, "add": hosts.added}
        lines += [f"{where}: {verb} {len(names)}: {', '.join(names)}" for verb, names in kinds.items() if names]
    return lines


def _login(plan: ClusterPlan) -> tuple[str, PoolScaling]:
    return "login nodes", plan.hosts.login


def _counted(changes: Sequence[ResourceChange]) -> list[str]:
    """One line for each action: how many changes, and of what."""
    from gpucluster.terraform.addresses import human_name

    lines = []
    for action, sign in SIGNS.items():
        named = Counter(human_name(change.address) for change in changes if change.action == action)
        if named:
            names = (f"{number} x {name}" if number > 1 else name for name, number in named.items())
            lines.append(f"  {sign} {action} {named.total()}: {', '.join(names)}")
    return lines


def _on_screen(part: str) -> str:
    """A part with a few lines of 80 columns."""
    lines = part.split("\n")
    if len(lines) > _LINES + 1:
        lines = [*lines[:_LINES], f"  and {count(len(lines) - _LINES, 'line')} more"]
    return "\n".join(line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 3]}..." for line in lines)


def _price_text(price: HourlyPrice) -> str:
    """What an hour costs, before, after, and with all elastic nodes."""
    before = "not known" if price.before is None else f"{price.before:.2f}"
    lines = [f"price of an hour: {before} -> {price.after:.2f} {price.currency}"]
    if price.at_limits != price.after:
        lines[0] += f", {price.at_limits:.2f} with all elastic nodes"
    if price.unknown:
        lines.append(f"  without {', '.join(price.unknown)}: the price is not known")
    return "\n".join([*lines, f"  instances only; {price.source}"])


def _duration_text(duration: Duration) -> str:
    """How long an apply will take, and from where that is known."""
    from gpucluster.cli.output import seconds

    if duration.median_s is None or duration.p90_s is None:
        return f"time: not known ({duration.source})"
    times = f"{seconds(duration.median_s)}, in 9 of 10 runs at most {seconds(duration.p90_s)}"
    return f"time: {times}\n  from {count(duration.runs, 'run')}, {duration.work}: {printable(duration.source)}"


def _jobs_text(plan: ClusterPlan) -> str:
    """The jobs on nodes that leave service."""
    if plan.jobs is None:
        return f"jobs on these nodes\n  not known: {printable(plan.jobs_error)}"
    from gpucluster.operations.drain import DRAIN_TIMEOUT

    if not plan.jobs:
        return ""
    most = f"{DRAIN_TIMEOUT / 60:.0f} minutes at most (--drain-timeout)"
    lines = [f"jobs on these nodes: apply waits, {most}"]
    lines += [f"  {printable(str(job))}" for job in plan.jobs[:_SHOWN_JOBS]]
    if more := plan.jobs[_SHOWN_JOBS:]:
        users = sorted({job.user for job in more})
        lines.append(f"  and {count(len(more), 'job')} of {printable(', '.join(users))}")
    return "\n".join(lines)


def _fields_text(fields: Sequence[FieldEffect]) -> str:
    """The keys of cluster.yml that differ, each with the effect of its change."""
    if not fields:
        return ""
    width = max(len(each.effect) for each in fields)
    lines = ["cluster.yml"]
    # The strongest effects first: these are what a reader must not miss.
    for each in sorted(fields, key=lambda field: -field.effect.strength):
        lines.append(f"  {each.effect:<{width}}  {_field_text(each)}")
        # The note explains an effect that is more than the word; of a live one it is in the reference.
        if each.note and each.effect != "live":
            lines.append(f"  {'':<{width}}  ({each.note})")
    return "\n".join(printable(line) for line in lines)


def _field_text(field: FieldEffect) -> str:
    """A changed key with both values; of a part that has come or gone only that."""
    from gpucluster.cli.value_diff import changed_lines

    if isinstance(field.after, Mapping) and field.before is None:
        return f"{field.path}: added"
    if isinstance(field.before, Mapping) and field.after is None:
        return f"{field.path}: removed"
    first, *more = changed_lines(field.path, field.before, field.after) or (f"{field.path}: changes",)
    return " ".join([first, *(line.strip() for line in more)])


def write_markdown(plan: ClusterPlan, file: Path, name: str) -> None:
    """Write the plan as Markdown, whole or not at all.

    Args:
        name: of the cluster.

    Raises:
        InputError: the file can't be written.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(markdown(plan, name) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        hint = "Name a file in a folder that you may write"
        raise InputError(f"can't write the file: {error.strerror}", where=str(file), hint=hint) from error


def markdown(plan: ClusterPlan, name: str) -> str:
    """What an apply would do, for a merge request.

    Args:
        name: of the cluster.
    """
    changes = [change for change in plan.changes if not change.internal]
    total = "no changes" if plan.empty else change_sum(changes) if changes else "resources stay as they are"
    blocks = [f"### gpucluster plan: {_cell(name)}", f"**{total}**"]
    blocks += ["\n".join(f"- :warning: {_cell(warning)}" for warning in plan.warnings)] if plan.warnings else []
    if plan.fields:
        rows = [
            [f"`{_code(each.path)}`", _value(each.before), _value(each.after), f"**{each.effect}**", each.note]
            for each in sorted(plan.fields, key=lambda field: -field.effect.strength)
        ]
        blocks.append(_table(["key", "before", "after", "effect", "note"], rows))
    blocks += ["\n".join(f"- {_cell(line)}" for line in _host_lines(plan))] if plan.hosts else []
    if plan.jobs is None:
        blocks.append(f"Jobs on these nodes are not known: {_cell(plan.jobs_error)}")
    elif plan.jobs:
        rows = [[job.id, job.user, ", ".join(job.nodes), job.left] for job in plan.jobs]
        blocks.append(_table(["job", "user", "nodes", "time left"], [[_cell(cell) for cell in row] for row in rows]))
    facts = [_price_text(plan.price)] if plan.price else []
    facts += [_duration_text(plan.duration)] if plan.duration else []
    blocks += ["\n".join(f"- {_cell('; '.join(map(str.strip, fact.splitlines())))}" for fact in facts)] if facts else []
    details = [changes_text(changes)] if changes else []
    details += ["\n".join(printable(str(each)) for each in plan.configuration)] if plan.configuration else []
    if details:
        # A fence that is longer than any in the text can't be ended by it.
        fence = "`" * 8
        text = "\n\n".join(details)
        blocks.append(f"<details><summary>details</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>")
    return "\n\n".join(blocks)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _value(value: Any) -> str:
    import json

    if value is None:
        return ""
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return f"`{_code(text if len(text) <= _COLUMNS else text[: _COLUMNS - 3] + '...')}`" if text else ""


def _code(text: str) -> str:
    """Text inside backticks, in a cell of a table."""
    return printable(text).replace("`", "'").replace("|", "\\|")


def _cell(text: str) -> str:
    """Plain text: nothing in it is Markdown or HTML."""
    escaped = "".join(f"\\{char}" if char in "\\`*_[]|#!" else char for char in printable(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
