"""Known vulnerabilities of Slurm, by release: a dated table. Pure.

Source: the changes of Slurm 25.05.9, 25.11.8 and 26.05.4, as projects quote them that have taken these versions
(openhpc/ohpc 2670 and 2686, GoogleCloudPlatform/cluster-toolkit 6264, September 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpucluster.slurm.releases import RELEASES, release_of


@dataclass(frozen=True)
class Advisory:
    """Vulnerabilities that were published together.

    Args:
        date: the month in which they were published.
        names: their numbers.
        what: the worst of them, in a few words.
        fixed: by release, the first version without them. A release that is not in it has none.
    """

    date: str
    names: tuple[str, ...]
    what: str
    fixed: Mapping[str, str]


ADVISORIES = (
    Advisory(
        "2026-09",
        tuple(f"CVE-2026-{number}" for number in (65107, 65108, 65109, 65138, 65139, 65140, 65165, 65168)),
        "sbcast does not check a credential, slurmstepd's stack overflows, an operator can change administrators",
        {"25.05": "25.05.9", "25.11": "25.11.8", "26.05": "26.05.4"},
    ),
)


def known(version: str) -> tuple[Advisory, ...]:
    """The advisories for a version that SchedMD has published.

    Args:
        version: such as 25.11.7. A version that is newer than the table has none. "" is one that is not known, such
            as that of a distribution, which patches its packages itself.
    """
    if not version:
        return ()
    release = release_of(version)
    newest = max(RELEASES, key=_numbers)
    return tuple(
        each
        for each in ADVISORIES
        if (release in each.fixed and _numbers(version) < _numbers(each.fixed[release]))
        or (release not in each.fixed and _numbers(release) < _numbers(newest))
    )


def warnings(version: str) -> tuple[str, ...]:
    """What is known of a version, and what to do: one sentence for each advisory."""
    release = release_of(version)
    ends = RELEASES[release].ends if release in RELEASES else ""
    sentences = []
    for each in known(version):
        names = f"{each.names[0]} and {len(each.names) - 1} others" if len(each.names) > 1 else each.names[0]
        fixed = each.fixed.get(release)
        action = (
            f"Set `software: {{versions: {{slurm: {fixed}}}}}`, which has none of them, or a newer `slurm.release`"
            if fixed
            else f"SchedMD's support of {release} ended in {ends}, and it gets no fix: choose a newer `slurm.release`"
        )
        sentences.append(f"Slurm {version} has known vulnerabilities of {each.date} ({names}): {each.what}. {action}")
    return tuple(sentences)


def _numbers(version: str) -> tuple[int, ...]:
    """For comparison. What follows a number, as in 25.11.8-1 or 26.05.0rc1, is left out."""
    numbers = []
    for part in version.split("."):
        digits = part[: next((place for place, sign in enumerate(part) if not sign.isdigit()), len(part))]
        numbers.append(int(digits or 0))
    return tuple(numbers)
