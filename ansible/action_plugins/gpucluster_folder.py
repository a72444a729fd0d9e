"""Sends missing files to a host: as one archive, in parts that fit into memory."""

from __future__ import annotations

import shlex
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

DOCUMENTATION = """
The part of the module gpucluster_folder that runs on the operator's machine: see library/gpucluster_folder.py.
"""


PART_BYTES = 32 * 1024 * 1024


def archive(folder: Path, names: list[str], target: IO[bytes]) -> None:
    """Write a tar archive of files, which belong to root in it."""
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = (folder / name).stat().st_size, 0o644
            with (folder / name).open("rb") as file:
                tar.addfile(entry, file)


class ActionModule(ActionBase):
    """Checks the files, sends the missing ones, installs them."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        source = Path(str(arguments.pop("source", None) or ""))
        seen: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        if seen.get("failed") or not seen.get("missing") or self._task.check_mode:
            return seen
        place = f"{arguments['path']}/.incoming.tar"
        try:
            with tempfile.TemporaryFile() as packed:
                archive(source, seen["missing"], packed)
                packed.seek(0)
                self._send(packed, place)
        except OSError as error:
            raise AnsibleActionFail(f"{error}; run apply again, it fetches the files") from error
        done: dict[str, Any] = self._execute_module(module_args={**arguments, "archive": place}, task_vars=task_vars)
        return done if done.get("failed") else {**done, "removed": seen["removed"]}

    def _send(self, packed: IO[bytes], place: str) -> None:
        """Send by the standard input of a command: a host needs no sftp."""
        redirect = ">"
        for part in iter(lambda: packed.read(PART_BYTES), b""):
            done = self._low_level_execute_command(f"cat {redirect} {shlex.quote(place)}", in_data=part)
            if done["rc"] != 0:
                why = done.get("stderr") or done.get("stdout")
                raise AnsibleActionFail(f"the files could not be written to {place}: {why}")
            redirect = ">>"
