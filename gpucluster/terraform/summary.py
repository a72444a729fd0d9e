"""Several diagnoses in one message: diagnoses with the same cause become one sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpucluster.terraform.diagnosis import Diagnosis

_SHOWN = 3  # resources that are named where many were refused for the same reason


def of(diagnoses: Sequence[Diagnosis], doing: str) -> tuple[str, str, str]:
    """(what, where, hint) of an error for all of them: one sentence for each cause.

    Args:
        doing: what failed, such as "terraform apply".
    """
    groups = _groups(diagnoses)
    hint = ". ".join(dict.fromkeys(group[0].advice for group in groups))
    if len(groups) == 1 and len(groups[0]) == 1:
        only = groups[0][0]
        return f"{doing} failed: {only.sentence}", only.where, hint
    lines = [f"{doing} failed in {len(diagnoses)} places:"]
    for group in groups:
        first, *others = group
        where = f" ({first.where})" if first.where else ""
        lines.append(f"  - {first.sentence}{where}")
        lines += [f"    also {other.subject or other.address} ({other.where})" for other in others[: _SHOWN - 1]]
        if len(group) > _SHOWN:
            lines.append(f"    and {len(group) - _SHOWN} more")
    return "\n".join(lines), "", hint


def _groups(diagnoses: Iterable[Diagnosis]) -> list[list[Diagnosis]]:
    groups: dict[tuple[Any, ...], list[Diagnosis]] = {}
    for diagnosis in diagnoses:
        refusal = diagnosis.refusal
        key = (diagnosis.cause, refusal.status, refusal.code, refusal.message)
        groups.setdefault(key, []).append(diagnosis)
    return list(groups.values())
