"""Values in the units of systemd: each is quoted here, or refused.

A unit is text in lines. In most settings `%` begins a specifier (systemd.unit(5)). A list of words is split at spaces
and read with quotes and backslashes, and in a command line `$` begins a variable (systemd.service(5)).
"""

from __future__ import annotations

import re

from gpucluster.errors import InputError

_BARE = re.compile(r"[A-Za-z0-9_./:,@+-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+~^*()\[\]&?!|<>-]+")


def text(value: str) -> str:
    """A value that is the rest of its line, such as that of `Description=` or `ListenStream=`.

    Raises:
        InputError: it has a line break, another control character, or an end that systemd reads as something else.
    """
    if not value.isprintable():
        raise InputError(
            f"a control character can't be in a unit of systemd: {value[:80]!r}", hint="Remove it from the value"
        )
    if value.endswith("\\") or value != value.strip():
        raise InputError(
            f"a value in a unit of systemd can't begin or end with a space, or end with a backslash: {value[:80]!r}",
            hint="Remove it from the value",
        )
    return value.replace("%", "%%")


def word(value: str) -> str:
    """One word of a list, such as a variable of `Environment=` or a path of `ReadWritePaths=`.

    Raises:
        InputError: it has a control character.
    """
    if value and _PLAIN.fullmatch(value):
        return value
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return text(f'"{quoted}"')


def bare(value: str) -> str:
    """A value in the middle of a word or of a shell's line in a unit, where quotes would have another meaning: one that
    needs none.

    Raises:
        InputError: it is none.
    """
    if not _BARE.fullmatch(value):
        what = f"this can't be in the middle of a word in a unit of systemd: {value[:80]!r}"
        raise InputError(what, hint="Letters, digits and any of _./:,@+- can be there")
    return value


def argument(value: str) -> str:
    """One argument of a command line, such as that of `ExecStart=`. The program itself is none: it has more rules.

    Raises:
        InputError: it has a control character.
    """
    # In quotes: a word of a semicolon alone would end the command.
    return word(value).replace("$", "$$")
