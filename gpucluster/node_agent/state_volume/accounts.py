"""Users and groups of packages, which may have other numbers on the next controller: files keep their owners by name.

The accounts that own something on the volume are recorded there. The next controller makes them with the same numbers,
before a package makes them with others. Where a number is taken, the files get the account's number there. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Numbers above belong to people, whose accounts are in the directory.
LAST_SYSTEM_ID = 999
# Debian's numbers for packages that ask for one: slurm has 64030.
_GLOBAL = range(60000, 65000)


@dataclass(frozen=True)
class Accounts:
    """Numbers by name: users with their own group, and groups."""

    users: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"users": dict(self.users), "groups": dict(self.groups), "group_of": dict(self.group_of)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Accounts:
        """From JSON; empty for a volume without such a record."""
        return cls(document.get("users", {}), document.get("groups", {}), document.get("group_of", {}))


def local(passwd: str, group: str) -> Accounts:
    """The accounts of packages in the texts of /etc/passwd and /etc/group."""
    groups = {words[0]: int(words[2]) for words in _rows(group, 3) if _is_system(int(words[2]))}
    names = {number: name for name, number in groups.items()}
    rows = [words for words in _rows(passwd, 4) if _is_system(int(words[2]))]
    return Accounts(
        {words[0]: int(words[2]) for words in rows},
        groups,
        {words[0]: names[int(words[3])] for words in rows if int(words[3]) in names},
    )


def _rows(text: str, fewest: int) -> list[list[str]]:
    rows = [line.split(":") for line in text.splitlines()]
    return [words for words in rows if len(words) >= fewest and words[2].isdigit() and words[fewest - 1].isdigit()]


def _is_system(number: int) -> bool:
    return 0 < number <= LAST_SYSTEM_ID or number in _GLOBAL


def missing(recorded: Accounts, here: Accounts) -> tuple[dict[str, int], dict[str, int]]:
    """The groups and the users to make, with the number of each: the recorded one, or 0 where that is taken."""
    return _missing(recorded.groups, here.groups), _missing(recorded.users, here.users)


def _missing(recorded: Mapping[str, int], here: Mapping[str, int]) -> dict[str, int]:
    taken = set(here.values())
    return {name: 0 if number in taken else number for name, number in recorded.items() if name not in here}


def changed(recorded: Mapping[str, int], here: Mapping[str, int]) -> dict[int, int]:
    """The new number by the old one, of users or of groups whose number is another here."""
    return {number: here[name] for name, number in recorded.items() if name in here and here[name] != number}
