"""Sends wheels to a host that has not installed them: in one stream, not file by file."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

DOCUMENTATION = """
The part of the module gpucluster_venv that runs on the operator's machine: see library/gpucluster_venv.py.
"""

MANIFEST = "wheels.json"


def archive(folder: Path, names: list[str]) -> bytes:
    """A tar archive of files, which belong to root in it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(Path(name).name)
            entry.size, entry.mode = (folder / name).stat().st_size, 0o644
            with (folder / name).open("rb") as file:
                tar.addfile(entry, file)
    return stream.getvalue()


class ActionModule(ActionBase):
    """Checks, sends and installs the set."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        folder = Path(str(args.pop("wheels") or ""))
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            arguments = {**args, "version": manifest["python"], "hash": manifest["hash"]}
            names = list(manifest["wheels"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AnsibleActionFail(f"{folder / MANIFEST}: {error}; run apply again to create the wheels") from error
        seen: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        if seen.get("failed") or seen.get("installed") or self._task.check_mode:
            return seen
        place = f"{Path(args['path']).parent}/.wheels-{arguments['hash']}"
        self._send(folder, names, place)
        done: dict[str, Any] = self._execute_module(module_args={**arguments, "wheels": place}, task_vars=task_vars)
        return done

    def _send(self, folder: Path, names: list[str], place: str) -> None:
        try:
            data = archive(folder, names)
        except OSError as error:
            raise AnsibleActionFail(f"{error}; run apply again to create the wheels") from error
        where = shlex.quote(place)
        command = f"rm -rf {where} && mkdir -p {where} && tar -x --no-same-owner -f - -C {where}"
        done = self._low_level_execute_command(command, in_data=data)
        if done["rc"] != 0:
            raise AnsibleActionFail(
                f"the wheels could not be written to {place}: {done.get('stderr') or done.get('stdout')}"
            )
