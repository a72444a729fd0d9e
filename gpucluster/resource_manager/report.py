"""What `gpucluster migrate orm` prints: what became of every variable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucluster.resource_manager.migration import Migration
from gpucluster.resource_manager.table import LAST
from gpucluster.text import printable


def report(migration: Migration) -> str:
    """The lines after the one that names the file. No line has the value of a secret or of an unknown variable."""
    return "\n".join(_lines(migration))


def _lines(migration: Migration) -> Iterator[str]:
    yield f"taken over ({len(migration.taken)}), named in the file behind the values:"
    yield from (f"  {name} -> {', '.join(keys)}" for name, keys in migration.taken.items())
    if migration.decisions:
        yield f"to decide ({len(migration.decisions)}), DECIDE in the file:"
        yield from _pairs((each.key, each.text) for each in migration.decisions)
    if migration.not_taken:
        yield f"without a counterpart ({len(migration.not_taken)}):"
        yield from _pairs((f"{each.name} = {each.value}", each.reason) for each in migration.not_taken)
    if migration.secrets:
        yield f"secrets ({len(migration.secrets)}), neither written nor shown:"
        yield from _pairs(migration.secrets.items())
    if migration.unknown:
        yield f"unknown ({len(migration.unknown)}): no release of the stack up to {LAST} has them; of a fork, or newer:"
        yield from (f"  {printable(name)}" for name in migration.unknown)
    if migration.idle:
        yield f"without effect ({len(migration.idle)}): empty, off, or at a default that needs nothing here:"
        yield f"  {', '.join(migration.idle)}"
    yield "not in the variables: users and their files (docs/how-to/migrate-from-the-marketplace-stack.md)"


def _pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for subject, text in pairs:
        yield f"  {printable(subject)}: {text}"
