"""Paths and commands as parts of an ssh_config file: quoted, or refused where ssh has no way to write them.

Source: ssh_config(5), sections TOKENS and ENVIRONMENT VARIABLES, and the reader of arguments in OpenSSH's misc.c
(`argv_split`): within double quotes a backslash keeps a quote or a backslash.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpucluster.errors import InputError
from gpucluster.text import printable


def quoted_path(path: Path) -> str:
    """A path as an argument of an option that expands tokens, such as IdentityFile.

    Raises:
        InputError: ssh would read something else in it.
    """
    return _argument(_checked(path).replace("%", "%%"))


def control_path(folder: Path) -> str:
    """The argument of ControlPath: a socket in a folder, named by ssh for each connection (the token %C)."""
    return _argument(f"{_checked(folder).replace('%', '%%')}/%C")


def included(path: Path) -> str:
    """A path as the argument of Include, which is a pattern: each sign with a meaning is one of any kind (`?`).

    Whether it expands tokens, too, differs between releases of OpenSSH.
    """
    return _argument(re.sub(r"[][*\\%]", "?", _checked(path)))


def shell_line(words: Sequence[str | Path], *tokens: str) -> str:
    """A command for ProxyCommand: ssh expands tokens in it, and then a shell reads the line.

    Args:
        tokens: words at its end in which ssh shall expand tokens.
    """
    return " ".join([*(shell_word(word) for word in words), *tokens])


def shell_word(word: str | Path) -> str:
    """One word of such a line."""
    return shlex.quote(_checked(word)).replace("%", "%%")


def exec_argument(line: str) -> str:
    """A line of `shell_word`s as the argument of `Match exec`."""
    return _argument(line)


def _argument(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _checked(text: str | Path) -> str:
    """Refuse what ssh can't take as it is: lines end at control characters, and `${` begins a variable everywhere."""
    path = str(text)
    if not path.isprintable() or "${" in path:
        raise InputError(
            f"ssh can't use the path {printable(path)}: it has a control character, or ${{",
            hint="Give the folder of cluster.yml another name",
        )
    return path
