"""Files of a host: whole files, marked blocks, edits, links, directories, and removed files."""

from __future__ import annotations

import base64
import binascii
import errno
import grp
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

BEGIN, END = "# BEGIN gpucluster", "# END gpucluster"
KINDS = ("content", "content_base64", "random_bytes", "copy_of", "block", "replace", "link", "directory", "absent")
FILE_SPEC: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "no_log": False},
    "content_base64": {"type": "str", "no_log": True},
    "random_bytes": {"type": "int"},
    "copy_of": {"type": "path"},
    "block": {"type": "str"},
    "at": {"type": "str", "choices": ["top", "bottom"], "default": "bottom"},
    "replace": {"type": "dict"},
    "link": {"type": "str"},
    "directory": {"type": "bool", "default": False},
    "absent": {"type": "bool", "default": False},
    "trusted": {"type": "bool", "default": False},
    "mode": {"type": "str"},
    "new_mode": {"type": "str"},
    "widest_mode": {"type": "str"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "secret": {"type": "bool", "default": False, "no_log": False},
}


def with_block(text: str, block: str, at: str) -> str:
    """The text with the marked block: in its old position, or at one end."""
    lines = f"{BEGIN}\n{block.strip()}\n{END}\n"
    found = re.search(rf"^{BEGIN}$.*?^{END}$\n?", text, re.MULTILINE | re.DOTALL)
    if found:
        return text[: found.start()] + lines + text[found.end() :]
    if text and not text.endswith("\n"):
        text += "\n"
    return lines + text if at == "top" else text + lines


def fault_of(path: Path) -> str:
    """Why root must not write below a directory: others could have prepared its contents. Empty if it may.

    The directory must belong to root, must not be a link, and only root may write to it. Its parents must belong to
    root as well; other users may write to them if they can't move files of root there, as in /tmp.
    """
    others, above = stat.S_IWGRP | stat.S_IWOTH, path.parent.resolve()
    for place in (path, above, *above.parents):
        try:
            state = place.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(state.st_mode):
            return f"{place} is not a directory"
        if state.st_uid != 0:
            return f"{place} belongs to user {state.st_uid}"
        if state.st_mode & others and (place == path or not state.st_mode & stat.S_ISVTX):
            return f"other users than root can write to {place} (mode {stat.S_IMODE(state.st_mode):04o})"
    return ""


def widest(item: dict[str, Any]) -> int:
    """The widest mode of an existing file."""
    return int(item["widest_mode"] or "7777", 8)


class Before:
    """What was at a path. Memory only: it may be a secret."""

    def __init__(self, path: Path) -> None:
        self.is_directory = path.is_dir() and not path.is_symlink()
        self._link = os.readlink(path) if path.is_symlink() else None
        real = path.resolve()
        self._state = real.stat() if real.is_file() else None
        self._content = real.read_bytes() if real.is_file() else b""

    def restore(self, path: Path) -> None:
        """Put it back, with its owner, mode and time."""
        if self._link is not None and (not path.is_symlink() or os.readlink(path) != self._link):
            path.unlink(missing_ok=True)
            path.symlink_to(self._link)
        if self._state is None:
            if self._link is None:
                path.unlink(missing_ok=True)
            return
        real = path.resolve()
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(self._content)
            file.flush()
            os.fsync(file.fileno())
        new = Path(name)
        os.chown(new, self._state.st_uid, self._state.st_gid)
        new.chmod(self._state.st_mode & 0o7777)
        os.utime(new, ns=(self._state.st_atime_ns, self._state.st_mtime_ns))
        move(new, real, self._content)


def move(new: Path, path: Path, content: bytes) -> None:
    """Give a file its name, in the place of the old one."""
    try:
        new.replace(path)
    except OSError as error:
        # A file that is a mount point (container engines mount /etc/hosts) can only be rewritten in place.
        if error.errno != errno.EBUSY:
            raise
        path.write_bytes(content)
        new.unlink()


class Files:
    """Works through the list and records the changes."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.paths: list[str] = []
        self.diff: list[dict[str, str]] = []
        self._before: list[tuple[Path, Before]] = []

    def differs(self, item: dict[str, Any]) -> bool:
        """Whether a file or link is not as it is wanted; nothing is changed."""
        path = Path(item["path"])
        if item["absent"] or item["link"] is not None:
            wanted = None if item["absent"] else item["link"]
            return os.path.lexists(path) and (not path.is_symlink() or os.readlink(path) != wanted)
        old = path.read_bytes() if path.is_file() else None
        return not (old is None and item["replace"]) and self._wanted(old, item) != old

    def stage(self, item: dict[str, Any], copy: Path) -> None:
        """Write what a file will be to another place, where a copy of the present one may be."""
        if item["absent"]:
            copy.unlink(missing_ok=True)
        else:
            old = copy.read_bytes() if copy.is_file() else None
            self._write(copy, self._wanted(old, item), item, exists=old is not None)

    def restore(self) -> list[str]:
        """Undo the changes of files and links, the last one first; a removed directory stays away."""
        for path, before in reversed(self._before):
            before.restore(path)
        return [str(path) for path, _before in self._before]

    def apply(self, item: dict[str, Any]) -> None:
        """Create, change or remove one path."""
        kinds = [kind for kind in KINDS if item[kind] not in (None, False)]
        if len(kinds) != 1:
            self.module.fail_json(msg=f"{item['path']}: give exactly one of {', '.join(KINDS)}, not {kinds or 'none'}")
        path = Path(item["path"])
        before = Before(path)
        if item["link"] is not None:
            changed = self._link(path, item["link"])
        elif item["directory"]:
            changed = self._directory(path, trusted=item["trusted"])
        elif item["absent"]:
            changed = self._absent(path)
        else:
            changed = self._file(path, item)
        # In check mode a new file does not exist, so it has no owner.
        if item["link"] is None and not item["absent"] and path.exists():
            changed = self._attributes(path, item) or changed
        if changed:
            self.paths.append(str(path))
            if not before.is_directory and not path.is_dir():
                self._before.append((path, before))

    def _link(self, path: Path, target: str) -> bool:
        if path.is_symlink() and os.readlink(path) == target:
            return False
        if path.is_dir() and not path.is_symlink():
            self.module.fail_json(msg=f"{path} is a directory; it can't become a link to {target}")
        if not self.module.check_mode:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.gpucluster")
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(path)
        return True

    def _absent(self, path: Path) -> bool:
        if not os.path.lexists(path):
            return False
        if not self.module.check_mode:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return True

    def _directory(self, path: Path, *, trusted: bool) -> bool:
        fault = fault_of(path) if trusted else ""
        if fault:
            self.module.fail_json(
                msg=f"{path} and its contents must belong to root only, but {fault}. Check the contents, move them "
                "away or correct their owner and mode, and run again"
            )
        if path.is_dir():
            return False
        if path.exists() or path.is_symlink():
            self.module.fail_json(msg=f"{path} exists and is not a directory; move it and run again")
        if not self.module.check_mode:
            path.mkdir(parents=True, mode=0o755)
        return True

    def _file(self, path: Path, item: dict[str, Any]) -> bool:
        old = path.read_bytes() if path.is_file() else None
        if old is None and item["replace"]:
            return False  # a missing file has nothing to replace
        new = self._wanted(old, item)
        if new == old:
            return False
        if not item["secret"] and all(item[kind] is None for kind in ("content_base64", "random_bytes", "copy_of")):
            self.diff.append(
                {
                    "before": (old or b"").decode(errors="replace"),
                    "after": new.decode(errors="replace"),
                    "before_header": str(path),
                    "after_header": str(path),
                }
            )
        if not self.module.check_mode:
            self._write(path, new, item, exists=old is not None)
        return True

    def _wanted(self, old: bytes | None, item: dict[str, Any]) -> bytes:
        if item["content"] is not None:
            return str(item["content"]).encode()
        if item["content_base64"] is not None:
            try:
                return base64.b64decode(item["content_base64"], validate=True)
            except binascii.Error as error:
                self.module.fail_json(msg=f"{item['path']}: content_base64: {error}")
        if item["random_bytes"] is not None:
            return old or secrets.token_bytes(item["random_bytes"])
        if item["copy_of"] is not None:
            return self._original(Path(item["copy_of"]), old)
        text = (old or b"").decode()
        if item["block"] is not None:
            return with_block(text, item["block"], item["at"]).encode()
        return re.sub(item["replace"]["regexp"], item["replace"]["with"], text, flags=re.MULTILINE).encode()

    def _original(self, source: Path, old: bytes | None) -> bytes:
        if not source.exists() and self.module.check_mode:
            return old or b""
        return source.read_bytes()

    def _write(self, path: Path, content: bytes, item: dict[str, Any], *, exists: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        real = path.resolve()
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        new = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # Before the file gets its name, so that it is never readable by others.
            if exists:
                state = real.stat()
                os.chown(new, state.st_uid, state.st_gid)
                new.chmod(state.st_mode & widest(item))
                self._attributes(new, item, new=True)
            else:
                self._attributes(new, {**item, "mode": item["mode"] or item["new_mode"] or "0644"}, new=True)
            move(new, real, content)
        finally:
            new.unlink(missing_ok=True)

    def _attributes(self, path: Path, item: dict[str, Any], *, new: bool = False) -> bool:
        """Set owner and mode. A file that has just been written gets them in check mode, too: it is a trial's."""
        state = path.stat()
        uid, gid, mode = state.st_uid, state.st_gid, state.st_mode & 0o7777
        try:
            uid = pwd.getpwnam(item["owner"]).pw_uid if item["owner"] else uid
            gid = grp.getgrnam(item["group"]).gr_gid if item["group"] else gid
        except KeyError as error:
            if self.module.check_mode:
                return True
            self.module.fail_json(msg=f"{item['path']}: {error.args[0]}; is its package installed?")
        mode = int(item["mode"], 8) if item["mode"] else mode & widest(item)
        if (uid, gid, mode) == (state.st_uid, state.st_gid, state.st_mode & 0o7777):
            return False
        if new or not self.module.check_mode:
            os.chown(path, uid, gid)
            path.chmod(mode)
        return True
