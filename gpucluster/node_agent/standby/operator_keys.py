"""The operators' ssh keys on the standby. On other hosts the role `base` does the same: the standby has no roles."""

from __future__ import annotations

import json
import pwd
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.node_agent.host_identity import BEGIN, END

#: cloud-init's record of the instance, which it writes at each boot.
#: https://docs.cloud-init.io/en/latest/explanation/instancedata.html
_INSTANCE_DATA = "run/cloud-init/instance-data.json"
_FILE, _MOST = "authorized_keys", 1 << 20
_KEY = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-\S+\s+AAAA[0-9A-Za-z+/=]+)(?:\s|$)")


def words(line: str) -> str:
    """The key of a line of authorized_keys as `type key`, behind its options; empty if it has none."""
    found = _KEY.search(line)
    return " ".join(found[1].split()) if found else ""


def rewritten(text: str, operators: Sequence[str], launched: Collection[str]) -> str:
    """authorized_keys with the keys of operators in a block, and without those that the instance was launched with and
    that are not theirs any more. Other lines stay. Pure.

    Args:
        text: of the file.
        operators: public keys, each a line.
        launched: as `type key`.
    """
    keep = {words(key) for key in operators}
    former = set(launched) - keep
    before, begin, rest = text.partition(BEGIN)
    outside = before + (rest.partition(END)[2] if begin else "")
    lines = [line for line in outside.splitlines() if words(line) not in former]
    block = [BEGIN.strip(), *operators, END.strip()] if operators else []
    return "".join(f"{line}\n" for line in (*lines, *block))


def launched_with(root: Path) -> frozenset[str]:
    """The keys with which the cloud launched this instance, as `type key`; empty where cloud-init has not run."""
    try:
        keys = json.loads((root / _INSTANCE_DATA).read_text(encoding="utf-8"))["v1"]["public_ssh_keys"]
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    return frozenset(words(str(key)) for key in keys or ())


def give(user: str, operators: Sequence[str], root: Path = Path("/")) -> None:
    """Let these keys log in as the login user, and no key of the launch besides. Without keys nothing is changed.

    Raises:
        OSError: a file can't be read or written.
    """
    if not operators:
        return
    launched = launched_with(root)
    entry = pwd.getpwnam(user)
    _rewrite(root / entry.pw_dir.lstrip("/"), operators, launched, (entry.pw_uid, entry.pw_gid))
    # cloud-init gives root the same keys, with a command that refuses.
    former = launched - {words(key) for key in operators}
    if former and (root / "root/.ssh" / _FILE).is_file():
        _rewrite(root / "root", (), former, (0, 0))


def _rewrite(home: Path, operators: Sequence[str], launched: Collection[str], owner: tuple[int, int]) -> None:
    with Folder.open(home) as top, top.folder(".ssh") as folder:
        there = folder.look(_FILE) is not None
        text = folder.read(_FILE, _MOST).decode(errors="surrogateescape") if there else ""
        new = rewritten(text, operators, launched)
        if new != text:
            folder.write(_FILE, new.encode(errors="surrogateescape"), 0o600, owner)
