"""Trials: the program that reads a file tries the new one first, in a namespace of its own."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_files import Files

TRIAL_SPEC: dict[str, dict[str, Any]] = {
    "command": {"type": "list", "elements": "str", "required": True},
    "files": {"type": "list", "elements": "path", "required": True},
    "while_running": {"type": "str"},
    "up": {"type": "str"},
    "inconclusive": {"type": "str"},
    "scratch": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "default": []},
        },
    },
    "address": {"type": "str"},
    "hint": {"type": "str", "default": "Correct the setting and run again"},
}
# A daemon that takes longer than this to read its configuration is accepted: the start of the real one decides.
# A check of sudo's or sshd's files has no start after it, so it gets all the time that a busy host may take.
TRIAL_SECONDS = 60.0
# Some mistakes end a daemon only after it has reported that it is up. It must run on for so long, and for as long as it
# took to come up: on a busy machine everything takes longer.
STEADY_SECONDS = 0.3
LINES = 5
BEGUN = "gpucluster: the trial begins"
# The failure of a program that writes to a folder which only its trial must not change proves nothing about its files.
READ_ONLY = "Read-only file system"


def run_trials(module: AnsibleModule, files: Files) -> None:
    """Try the files that would change; a program that refuses them fails the task, and nothing was changed."""
    items = {item["path"]: item for item in module.params["files"]}
    for trial in module.params["trials"]:
        concerned = [items[path] for path in trial["files"] if path in items]
        changed = [item for item in concerned if files.differs(item)]
        # Check mode creates no directory, so nothing could be laid over it.
        ready = not module.check_mode or all(Path(item["path"]).parent.is_dir() for item in changed)
        if changed and ready and _is_concerned(module, trial):
            _try(module, files, trial, changed)


def _is_concerned(module: AnsibleModule, trial: dict[str, Any]) -> bool:
    """Whether the program is there, and its unit runs: where nothing runs, the start itself is the trial."""
    if not module.get_bin_path(trial["command"][0], opt_dirs=["/usr/sbin", "/sbin"]):
        return False
    unit = trial["while_running"]
    return not unit or module.run_command(["systemctl", "is-active", "--quiet", unit])[0] == 0


def _try(module: AnsibleModule, files: Files, trial: dict[str, Any], changed: list[dict[str, Any]]) -> None:
    # In memory, and for root only: some of the files hold secrets.
    scratch = Path(tempfile.mkdtemp(prefix="gpucluster-trial-", dir="/run"))
    try:
        mounts = _stage(files, trial, changed, scratch)
        script = ["set -e"]
        if trial["address"]:
            # The names of this host must have an address, or the daemon does not find where to listen.
            script += ["ip link set lo up", f"ip address add {shlex.quote(trial['address'])}/32 dev lo"]
        script += [f"mount --bind {copy} {shlex.quote(str(place))}" for place, copy in mounts.items()]
        script += ["mount -o remount,bind,ro / || :", f"echo '{BEGUN}'", 'exec "$@"']
        # The end of the first process of a process namespace ends the others.
        spaces = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if trial["address"] else [])]
        argv = ["unshare", *spaces, "sh", "-c", "\n".join(script), "sh", *trial["command"]]
        code, output = _watch(argv, trial["up"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    begun, _, said = output.partition(f"{BEGUN}\n")
    name = trial["command"][0]
    if BEGUN not in output:
        module.warn(f"{name} could not try its new configuration: {begun.strip()}")
    elif code and READ_ONLY not in said and not (trial["inconclusive"] and re.search(trial["inconclusive"], said)):
        lines = [line.strip() for line in said.splitlines() if line.strip()][-LINES:]
        paths = ", ".join(item["path"] for item in changed)
        module.fail_json(
            msg=f"{name} refuses the new {paths}: {' | '.join(lines) or f'exit code {code}'}. Nothing was changed on "
            f"this host, and its services run as before. {trial['hint']}"
        )


def _stage(files: Files, trial: dict[str, Any], changed: list[dict[str, Any]], scratch: Path) -> dict[Path, Path]:
    """Copies of the directories, with the new files in them; returns the copy of each directory."""
    mounts: dict[Path, Path] = {}
    for item in changed:
        directory = Path(item["path"]).parent.resolve()
        if directory not in mounts:
            mounts[directory] = scratch / str(len(mounts))
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "--archive", str(directory), str(mounts[directory])], check=True)
        files.stage(item, mounts[directory] / Path(item["path"]).name)
    for wanted in trial["scratch"]:
        place = Path(wanted["path"])
        if place.is_dir():
            mounts[place] = scratch / str(len(mounts))
            mounts[place].mkdir()
            _own_as(place, mounts[place])
            for source in [place / name for name in wanted["files"] if (place / name).is_file()]:
                _own_as(source, Path(shutil.copy(source, mounts[place])))
    return mounts


def _own_as(source: Path, copy: Path) -> None:
    state = source.stat()
    os.chown(copy, state.st_uid, state.st_gid)
    copy.chmod(state.st_mode & 0o7777)


def _watch(argv: list[str], up: str | None) -> tuple[int, str]:
    """Run a program to its end, or until it has come up and stays up; returns its exit code (0: up) and output."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"},
        start_new_session=True,
    )
    assert process.stdout is not None
    begun = time.monotonic()
    output, deadline, steady, closed = b"", begun + TRIAL_SECONDS, False, False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(timeout=max(0.0, deadline - time.monotonic())):
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    closed = True
                    break
                output += part
            if up and not steady and re.search(up, output.decode(errors="replace")):
                now = time.monotonic()
                steady, deadline = True, now + max(STEADY_SECONDS, now - begun)
    # Who has closed its output is about to end, and its status decides.
    left = max(1.0, deadline - time.monotonic()) if closed else 0.0
    try:
        code = process.wait(timeout=left)
    except subprocess.TimeoutExpired:
        code = 0
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    return code, output.decode(errors="replace")
