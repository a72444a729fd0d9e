#!/usr/bin/python
"""Network file systems in fstab, mounted, and verified to be the requested ones.

Instead of plain tasks: `mount` is in a collection, which ansible-core does not bring, and takes whatever is mounted
there for the share: users would write to the disk below it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_mount
short_description: Mount shares and verify that they are these shares
description:
  - Writes a line of fstab for each share, mounts it if it is not mounted, and fails if something else is mounted there.
  - Further shares that are no longer wanted are unmounted, and their lines removed.
options:
  source: {description: As mount(8) takes it, for instance C(10.0.0.3:/mnt/home)., type: str, required: true}
  path: {description: The mount point; it is created., type: path, required: true}
  fstype: {description: File system type., type: str, default: nfs}
  options: {description: Mount options., type: str, default: defaults}
  root_mode: {description: Mode of the top directory of the share; not changed if not given., type: str}
  selinux_booleans: {description: SELinux booleans to switch on., type: list, elements: str, default: []}
  shares:
    description: Further shares. One whose line of fstab changes is mounted again.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Its name in fstab., type: str, required: true}
      server: {description: Address of the NFS server., type: str, required: true}
      export_path: {description: Path of the export on the server., type: str, required: true}
      mount_path: {description: The mount point; it is created., type: path, required: true}
      read_only: {description: Whether the host only reads., type: bool, required: true}
      created:
        description: Whether it was made for this cluster. While it is new and empty, every user may write into it.
        type: bool
        required: true
      groups: {description: Not used; the inventory has it., type: list, elements: str, default: []}
author: gpucluster
"""

EXAMPLES = """
- name: Mount the home directories
  gpucluster_mount:
    source: 10.0.0.3:/mnt/home
    path: /mnt/home
"""

RETURN = """
mounted:
  description: Whether it was mounted by this task.
  returned: always
  type: bool
"""

FSTAB = Path("/etc/fstab")
MOUNTINFO = Path("/proc/self/mountinfo")
# Options that begin with x- are for other programs than mount (mount(8)): this one marks the line of a further share.
MARK = "x-gpucluster.share="
# The top directory of a new file system, and the same when every user may write into it, as into /tmp.
NEW_MODE, OPEN_MODE = 0o755, 0o1777
SNAPSHOTS = ".snapshot"


def unescape(field: str) -> str:
    """Undo the octal escapes of fstab and mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), field)


def mounted_at(mountinfo: str, path: str) -> dict[str, str] | None:
    """The mount at exactly this path; the last one counts, because it hides the others."""
    found = None
    for line in mountinfo.splitlines():
        fields, _dash, rest = line.partition(" - ")
        if unescape(fields.split()[4]) == path:
            fstype, source = rest.split()[:2]
            found = {"fstype": fstype, "source": unescape(source)}
    return found


def with_entry(text: str, path: str, entry: str) -> str:
    """The fstab with this entry for the mount point instead of an older one."""
    lines, done = [], False
    for line in text.splitlines():
        fields = line.split()
        if line.lstrip().startswith("#") or len(fields) < 3 or unescape(fields[1]) != path:  # noqa: PLR2004
            lines.append(line)
        elif not done:
            lines.append(entry)
            done = True
    if not done:
        lines.append(entry)
    return "\n".join(lines) + "\n"


def marked_path(line: str) -> str:
    """The mount point of a further share, from its line of fstab; empty for other lines."""
    fields = line.split()
    if line.lstrip().startswith("#") or len(fields) < 4:  # noqa: PLR2004
        return ""
    return unescape(fields[1]) if any(option.startswith(MARK) for option in fields[3].split(",")) else ""


def marked_paths(text: str) -> list[str]:
    """The mount points of the further shares in fstab."""
    return [path for path in map(marked_path, text.splitlines()) if path]


def without_entry(text: str, path: str) -> str:
    """The fstab without the further share at this mount point."""
    return "".join(line + "\n" for line in text.splitlines() if marked_path(line) != path)


def further(share: dict[str, Any], options: str) -> dict[str, Any]:
    """A further share, as the home share is described. Its name in fstab is for readers."""
    access = ",ro" if share["read_only"] else ""
    return {
        "source": f"{share['server']}:{share['export_path']}",
        "path": share["mount_path"],
        "options": f"{options}{access},{MARK}{share['name']}",
    }


class Mount:
    """One share on one host."""

    def __init__(self, module: AnsibleModule, share: dict[str, Any]) -> None:
        self.module = module
        self.source: str = share["source"]
        self.path: str = share["path"].rstrip("/")
        self.fstype: str = module.params["fstype"]
        self.options: str = share["options"]

    def fail(self, why: str) -> NoReturn:
        """End the task."""
        self.module.fail_json(msg=f"{self.source} on {self.path}: {why}")
        raise AssertionError

    def switch_on(self) -> bool:
        """Switch SELinux booleans on, also for the boots that follow."""
        names: list[str] = self.module.params["selinux_booleans"]
        if not self.module.check_mode:
            for name in names:
                self.module.run_command(["setsebool", "-P", name, "on"], check_rc=True)
        return bool(names)

    @property
    def is_mounted(self) -> bool:
        """Whether something is mounted there."""
        return mounted_at(MOUNTINFO.read_text(encoding="utf-8"), self.path) is not None

    def keep_entry(self) -> bool:
        """Write the line of fstab if it is missing."""
        entry = f"{self.source} {self.path} {self.fstype} {self.options} 0 0"
        old = read_fstab()
        new = with_entry(old, self.path, entry)
        if new == old:
            return False
        write_fstab(self.module, new)
        return True

    def keep_mounted(self) -> bool:
        """Mount it if it is not mounted, and verify it; returns whether it was not."""
        missing = not self.is_mounted
        if not self.module.check_mode:
            if missing:
                self.mount()
            self.verify()
        return missing

    def mount(self) -> None:
        """Mount according to fstab."""
        Path(self.path).mkdir(parents=True, exist_ok=True)
        code, out, err = self.module.run_command(["mount", self.path])
        if code != 0:
            self.fail(err.strip() or out.strip())

    def verify(self) -> None:
        """Fail unless the mount is the source.

        NFS reports its source. A test double of NFS may report another one; then the share is mounted a second time,
        and is the same if both have the same top directory.
        """
        found = mounted_at(MOUNTINFO.read_text(encoding="utf-8"), self.path)
        if found is None:
            self.fail("mount succeeded, but nothing is mounted there")
        if found["fstype"].startswith("nfs"):
            same = found["source"].rstrip("/") == self.source.rstrip("/")
        else:
            same = self._is_same_as_second_mount()
        if not same:
            self.fail(f"{found['source']} is mounted there instead; stop what uses it, unmount it and run again")

    def _is_same_as_second_mount(self) -> bool:
        with tempfile.TemporaryDirectory(prefix="gpucluster-mount-", dir="/run") as place:
            code, out, err = self.module.run_command(["mount", "-t", self.fstype, "-o", "ro", self.source, place])
            if code != 0:
                self.fail(err.strip() or out.strip())
            try:
                return os.path.samestat(os.stat(place), os.stat(self.path))
            finally:
                self.module.run_command(["umount", place], check_rc=True)

    def open_to_all(self) -> bool:
        """Let every user write into a share that is as File Storage makes it: empty, and writable for root only."""
        top = Path(self.path)
        if self.module.check_mode or not self.is_mounted:
            return False
        state = top.stat()
        if state.st_uid != 0 or state.st_mode & 0o7777 != NEW_MODE or set(os.listdir(str(top))) - {SNAPSHOTS}:
            return False
        top.chmod(OPEN_MODE)
        return True

    def set_mode(self) -> bool:
        """Set the mode of the top directory of the share."""
        wanted: str | None = self.module.params["root_mode"]
        top = Path(self.path)
        if not wanted or not top.exists() or top.stat().st_mode & 0o7777 == int(wanted, 8):
            return False
        if not self.module.check_mode:
            top.chmod(int(wanted, 8))
        return True


def read_fstab() -> str:
    """The text of fstab; empty if there is none."""
    return FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""


def write_fstab(module: AnsibleModule, text: str) -> None:
    """Replace fstab."""
    if module.check_mode:
        return
    new_file = FSTAB.with_name(".fstab.gpucluster")
    new_file.write_text(text, encoding="utf-8")
    new_file.chmod(0o644)
    new_file.replace(FSTAB)
    # systemd generates its mount units from this file; a stale unit would be mounted at the next boot.
    module.run_command(["systemctl", "daemon-reload"])


def release(module: AnsibleModule, path: str) -> None:
    """Unmount a further share, whose server may be gone. Programs that have files open keep them until they end."""
    if not module.check_mode and mounted_at(MOUNTINFO.read_text(encoding="utf-8"), path) is not None:
        module.run_command(["umount", "--lazy", "--no-canonicalize", path], check_rc=True)


def keep_further(module: AnsibleModule) -> bool:
    """Mount the further shares, and unmount those that are not wanted; returns whether something changed."""
    changed = False
    shares: list[dict[str, Any]] = module.params["shares"]
    wanted = [share["mount_path"].rstrip("/") for share in shares]
    for path in sorted(set(marked_paths(read_fstab())) - set(wanted)):
        release(module, path)
        write_fstab(module, without_entry(read_fstab(), path))
        if not module.check_mode:
            with contextlib.suppress(OSError):  # it is not empty: what lay below the share
                os.rmdir(path)
        changed = True
    for share in shares:
        mount = Mount(module, further(share, module.params["options"]))
        before = marked_paths(read_fstab())
        if mount.keep_entry():
            changed = True
            if mount.path in before:  # another source, or other options
                release(module, mount.path)
        changed = mount.keep_mounted() or changed
        changed = (share["created"] and mount.open_to_all()) or changed
    return changed


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "source": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "fstype": {"type": "str", "default": "nfs"},
        "options": {"type": "str", "default": "defaults"},
        "root_mode": {"type": "str"},
        "selinux_booleans": {"type": "list", "elements": "str", "default": []},
        "shares": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "server": {"type": "str", "required": True},
                "export_path": {"type": "str", "required": True},
                "mount_path": {"type": "path", "required": True},
                "read_only": {"type": "bool", "required": True},
                "created": {"type": "bool", "required": True},
                "groups": {"type": "list", "elements": "str", "default": []},
            },
        },
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    share = Mount(module, module.params)
    changed = share.switch_on()
    changed = share.keep_entry() or changed
    missing = share.keep_mounted()
    changed = share.set_mode() or changed
    changed = keep_further(module) or changed
    module.exit_json(changed=changed or missing, mounted=missing)


if __name__ == "__main__":
    main()
