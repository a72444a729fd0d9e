"""systemd units: enabled, running, and running with their current configuration; or stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:  # without Ansible's library as well: gpucluster_unchanged
    from ansible.module_utils.basic import AnsibleModule

UNIT_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "follows": {"type": "list", "elements": "path", "default": []},
    "reload": {"type": "bool", "default": False},
    "answers": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["started", "enabled", "stopped"], "default": "started"},
}
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "NeedDaemonReload",
    "DropInPaths",
    "InactiveExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
)
# A unit of type `simple` counts as started before its program has read its configuration.
SETTLE_SECONDS = 0.3
# A busy systemd gives no answer about some units and reports no error. It is asked so often.
SHOW_TRIES = 5
UP = ("active", "reloading")
ENABLED = ("enabled", "static", "generated", "alias", "indirect", "enabled-runtime")


def full_name(name: str) -> str:
    """The name with its suffix."""
    return name if "." in name else f"{name}.service"


class UnitFailed(Exception):
    """A unit does not start, or does not stay up; with the end of its journal."""


class Systemd:
    """The commands of systemctl that the modules need."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def run(self, *words: str, timeout: float | None = None) -> str:
        """Run systemctl.

        Raises:
            UnitFailed: it failed.
        """
        argv = ["timeout", str(int(timeout) + 1)] if timeout else []
        # Without the compatibility with init scripts, which takes longer than the rest and is not needed.
        environment = {"SYSTEMCTL_SKIP_SYSV": "1"}
        code, out, err = self.module.run_command([*argv, "systemctl", *words], environ_update=environment)
        if code != 0:
            units = [word for word in words if "." in word]
            raise UnitFailed(f"systemctl {' '.join(words)}: {err.strip() or out.strip()}{self.journal(units)}")
        return str(out)

    def show(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The properties of units, by the requested name.

        Raises:
            UnitFailed: systemd does not answer about each of them.
        """
        out = ""
        for attempt in range(SHOW_TRIES):
            if attempt:
                time.sleep(SETTLE_SECONDS)
            out = self.run("show", f"--property={','.join(PROPERTIES)}", *names)
            blocks = [block for block in out.strip().split("\n\n") if block]
            states = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
            if len(states) == len(names) and all("LoadState" in state for state in states):
                return dict(zip(names, states))
        said = f"{len(states)} of {len(names)} units: {out[-300:]}"
        raise UnitFailed(f"systemctl show {' '.join(names)} describes {said}")

    def journal(self, units: list[str]) -> str:
        """The last lines of the journal of units, for an error message, also of one that has started again."""
        lines = []
        for unit in units:
            _code, out, _err = self.module.run_command(
                ["journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=20", f"--unit={unit}"]
            )
            if out.strip():
                lines.append(f"\njournal of {unit}: " + " | ".join(out.split("\n")).strip(" |"))
        return "".join(lines)


def is_stale(state: dict[str, str], unit: dict[str, Any]) -> bool:
    """Whether a file is newer than the unit's last start (or reload, if a reload is enough), or did not exist then."""
    if "StartedWithout" in state:
        return True
    if not unit["follows"]:
        return False
    # A reload changes the state of the unit; the time of its start stays the same.
    read_at = "StateChangeTimestampMonotonic" if unit.get("reload") else "InactiveExitTimestampMonotonic"
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(state[read_at] or 0) / 1e6
    start = time.time() - age
    return any(Path(file).exists() and Path(file).stat().st_mtime > start for file in unit["follows"])


def has_new_drop_in(state: dict[str, str], unit: dict[str, Any]) -> bool:
    """Whether systemd has not read a drop-in: it does not detect the first drop-in of a unit itself."""
    known = state.get("DropInPaths", "").split()
    return any(
        file.startswith("/etc/systemd/system/") and ".d/" in file and file not in known and Path(file).exists()
        for file in unit["follows"]
    )


def observe(systemd: Systemd, units: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The states of the units, after a daemon-reload if it is needed."""
    states = systemd.show(list(units))
    unread = {name for name in units if has_new_drop_in(states[name], units[name])}
    outdated = any(state["NeedDaemonReload"] == "yes" or state["LoadState"] == "not-found" for state in states.values())
    if not systemd.module.check_mode and (unread or outdated):
        systemd.run("daemon-reload")
        states = systemd.show(list(units))
    missing = [
        name
        for name, state in states.items()
        if state["LoadState"] == "not-found" and units[name]["state"] != "stopped"
    ]
    if missing and not systemd.module.check_mode:
        raise UnitFailed(f"systemd does not know {', '.join(missing)}; is the package installed?")
    for name in unread:
        states[name]["StartedWithout"] = "yes"
    return states


def settle(systemd: Systemd, units: dict[str, dict[str, Any]], names: list[str], timeout: int) -> None:
    """Fail unless the units still run after a moment, and answer where a command asks for that.

    Args:
        names: of the units that were started.
        timeout: seconds until a unit answers.

    Raises:
        UnitFailed: one does not.
    """
    time.sleep(SETTLE_SECONDS)
    require_up(systemd, names)
    until = time.monotonic() + timeout
    for name in names:
        command = units[name].get("answers")
        while command and systemd.module.run_command(["timeout", str(timeout), *command])[0] != 0:
            require_up(systemd, [name])
            if time.monotonic() > until:
                raise UnitFailed(f"{name} gives no answer to {' '.join(command)}{systemd.journal([name])}")
            time.sleep(SETTLE_SECONDS)


def require_up(systemd: Systemd, names: list[str]) -> None:
    """Fail unless the units run.

    Raises:
        UnitFailed: one does not.
    """
    fallen = {name: state for name, state in systemd.show(names).items() if state["ActiveState"] not in UP}
    if fallen:
        words = ", ".join(f"{name} is {state['ActiveState']} ({state['SubState']})" for name, state in fallen.items())
        raise UnitFailed(f"{words} right after its start{systemd.journal(list(fallen))}")


def run_units(
    module: AnsibleModule, wanted: list[dict[str, Any]], timeout: int, restore: Callable[[], list[str]] = list
) -> dict[str, list[str]]:
    """Enable, start, restart and stop the units as requested; returns the changes.

    Args:
        restore: puts the files of before back, and returns their paths; called if a unit ran with them and does not run
            with the new ones.
    """
    systemd = Systemd(module)
    units = {full_name(unit["name"]): unit for unit in wanted}
    verbs: dict[str, list[str]] = {}
    try:
        return _run_units(systemd, units, verbs, timeout)
    except UnitFailed as failed:
        undone = "" if module.check_mode else _go_back(systemd, units, verbs, timeout, restore)
        module.fail_json(msg=f"{undone}{failed}")
        raise


def _run_units(
    systemd: Systemd, units: dict[str, dict[str, Any]], verbs: dict[str, list[str]], timeout: int
) -> dict[str, list[str]]:
    states = observe(systemd, units)
    on = [name for name, unit in units.items() if unit["state"] == "started"]
    off = [name for name, unit in units.items() if unit["state"] == "stopped"]
    enabled = [name for name in units if name not in off and states[name].get("UnitFileState", "") not in ENABLED]
    started = [name for name in on if states[name]["ActiveState"] not in UP]
    restarted = [name for name in on if name not in started and is_stale(states[name], units[name])]
    stopped = [name for name in off if is_on(states[name])]
    if not systemd.module.check_mode:
        if stopped:
            systemd.run("disable", "--now", "--quiet", *stopped, timeout=timeout)
        # Else it stays among the failed units, also without its file.
        failed = [name for name in off if name not in stopped and states[name]["ActiveState"] == "failed"]
        if failed:
            systemd.run("reset-failed", *failed)
        if enabled:
            systemd.run("enable", "--quiet", *enabled)
        reloaded = [name for name in restarted if units[name].get("reload")]
        verbs["restart"] = [name for name in restarted if name not in reloaded]
        verbs["reload"] = reloaded
        start(systemd, units, states, {**verbs, "start": started}, timeout)
    return {"enabled": enabled, "started": started, "restarted": restarted, "stopped": stopped}


def _go_back(
    systemd: Systemd,
    units: dict[str, dict[str, Any]],
    verbs: dict[str, list[str]],
    timeout: int,
    restore: Callable[[], list[str]],
) -> str:
    """Let the units that ran before run again with the files of before; returns what to tell about it."""
    ran = [name for names in verbs.values() for name in names]
    restored = restore() if ran else []
    if not restored:
        return ""
    names = ", ".join(ran)
    told = f"{names} did not come up with new files; the files of before are in place again ({', '.join(restored)})"
    try:
        systemd.run("daemon-reload")
        # A unit that failed may have hit its start limit; one that failed to reload may still run.
        systemd.run("reset-failed", *ran)
        for verb, names in verbs.items():
            if names:
                systemd.run("reload-or-restart" if verb == "reload" else verb, *names, timeout=timeout)
        settle(systemd, units, ran, timeout)
    except UnitFailed as failed:
        return f"{told}, and it does not come up with them either ({failed}). First: "
    return f"{told}, and it runs with them. Correct the configuration and run again. "


def is_on(state: dict[str, str]) -> bool:
    """Whether a unit runs, or will run after the next boot."""
    return state["ActiveState"] in UP or state.get("UnitFileState", "") == "enabled"


def start(
    systemd: Systemd,
    units: dict[str, dict[str, Any]],
    states: dict[str, dict[str, str]],
    verbs: dict[str, list[str]],
    timeout: int,
) -> None:
    """Restart, reload and start units, by the verb, and check that they stay up."""
    failed = [name for name in verbs["start"] if states[name]["ActiveState"] == "failed"]
    if failed:
        # A unit that failed before may hit its start limit.
        systemd.run("reset-failed", *failed)
    # Stale units first, because others may need them; `start` joins a start that is in progress.
    for verb, names in verbs.items():
        if names:
            systemd.run(verb, *names, timeout=timeout)
    touched = [name for names in verbs.values() for name in names]
    if touched:
        settle(systemd, units, touched, timeout)
