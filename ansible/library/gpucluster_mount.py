#!/usr/bin/python
"""A network file system in fstab, mounted, and verified to be the requested one.

Instead of plain tasks: `mount` is in a collection, which ansible-core does not bring, and takes whatever is mounted
there for the share: users would write to the disk below it.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_mount
short_description: Mount a share and verify that it is this share
description:
  - Writes one line of fstab, mounts the share if it is not mounted, and fails if something else is mounted there.
options:
  source: {description: As mount(8) takes it, for instance C(10.0.0.3:/mnt/home)., type: str, required: true}
  path: {description: The mount point; it is created., type: path, required: true}
  fstype: {description: File system type., type: str, default: nfs}
  options: {description: Mount options., type: str, default: defaults}
  root_mode: {description: Mode of the top directory of the share; not changed if not given., type: str}
  selinux_booleans: {description: SELinux booleans to switch on., type: list, elements: str, default: []}
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


class Mount:
    """One share on one host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.source: str = module.params["source"]
        self.path: str = module.params["path"].rstrip("/")
        self.fstype: str = module.params["fstype"]

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

    def keep_entry(self) -> bool:
        """Write the line of fstab if it is missing."""
        options = self.module.params["options"]
        entry = f"{self.source} {self.path} {self.fstype} {options} 0 0"
        old = FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""
        new = with_entry(old, self.path, entry)
        if new == old:
            return False
        if not self.module.check_mode:
            new_file = FSTAB.with_name(".fstab.gpucluster")
            new_file.write_text(new, encoding="utf-8")
            new_file.chmod(0o644)
            new_file.replace(FSTAB)
            # systemd generates its mount units from this file; a stale unit would be mounted at the next boot.
            self.module.run_command(["systemctl", "daemon-reload"])
        return True

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

    def set_mode(self) -> bool:
        """Set the mode of the top directory of the share."""
        wanted: str | None = self.module.params["root_mode"]
        top = Path(self.path)
        if not wanted or not top.exists() or top.stat().st_mode & 0o7777 == int(wanted, 8):
            return False
        if not self.module.check_mode:
            top.chmod(int(wanted, 8))
        return True


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "source": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "fstype": {"type": "str", "default": "nfs"},
        "options": {"type": "str", "default": "defaults"},
        "root_mode": {"type": "str"},
        "selinux_booleans": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    share = Mount(module)
    changed = share.switch_on()
    changed = share.keep_entry() or changed
    is_mounted = mounted_at(MOUNTINFO.read_text(encoding="utf-8"), share.path) is not None
    if not module.check_mode:
        if not is_mounted:
            share.mount()
        share.verify()
    changed = share.set_mode() or changed
    module.exit_json(changed=changed or not is_mounted, mounted=not is_mounted)


if __name__ == "__main__":
    main()
