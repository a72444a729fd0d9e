"""The join service: runs as root, and configures new instances of pools without a baked image with `join.yml`.

It reads the requests in the daemon's folder (`join_requests`), refuses those that the policy and the inventory do not
allow (`join_inventory`), runs one playbook for all that arrived together (`join_arrivals`), and writes the results. It
follows no link in the daemon's folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.autoscaler.daemon import join_key
from gpucluster.autoscaler.daemon.join_arrivals import PATIENCE, SETTLE, WINDOW, Arrival, answering, due, overdue
from gpucluster.autoscaler.daemon.join_inventory import check, new_hosts, parse_results
from gpucluster.autoscaler.daemon.join_requests import FOLDER, RESULT, JoinRequest, JoinResult, parse
from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.policy import JOIN_PUBLIC_KEY, Policy
from gpucluster.controller import join_files
from gpucluster.errors import GpuClusterError, InputError
from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.node_agent.notify import notify
from gpucluster.paths import ansible_dir, write_private
from gpucluster.text import count

INVENTORY = Path("/etc/gpucluster/inventory.yml")
WORK_DIRECTORY = join_files.FOLDER
KEY = join_files.KEY
_NAME = re.compile(r"[a-z0-9]{6,60}-[a-z0-9-]{1,63}\.json")
_MAX_BYTES = 4096
# So many hosts in one run; so many runs at once.
BATCH, RUNS = 64, 4
_POLL = 0.25
# ansible-playbook with what makes its workers cheaper. A program here: this folder imports nothing of that one.
_PLAYBOOK = ("-P", "-m", "gpucluster.configuration.ansible_playbook")
_KEPT_DAYS = 30

log = DaemonLog("join")


class JoinService:
    """Root's service: reads requests, runs the playbook for all that arrived together, writes the results.

    Args:
        config: the policy, read again for each batch. `state`: the daemon's folder. `work`: our own folder (0700),
            with the key that opens new nodes. `public_key`: where its public half is published for the daemon.
        playbooks: the folder with join.yml and ansible.cfg; by default those of this gpucluster.
        answers: which of some addresses can be logged in to.
        settle, window: seconds, as in `join_arrivals`. `runs`: playbooks at the same time.
    """

    def __init__(
        self,
        config: Path,
        state: Path,
        *,
        inventory: Path = INVENTORY,
        work: Path = WORK_DIRECTORY,
        public_key: Path = JOIN_PUBLIC_KEY,
        playbooks: Path | None = None,
        answers: Callable[[Collection[str]], Collection[str]] = answering,
        settle: float = SETTLE,
        window: float = WINDOW,
        patience: float = PATIENCE,
        runs: int = RUNS,
    ) -> None:
        self._config, self._state, self._inventory, self._work = config, state, inventory, work
        self._key, self._public_key = work / KEY, public_key
        self._playbooks = playbooks or ansible_dir()
        self._answers = answers
        self._settle, self._window, self._patience = settle, window, patience
        self._waiting: dict[str, Arrival] = {}
        self._free = threading.Semaphore(runs)
        self._kept_home = threading.Lock()
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._stop = threading.Event()

    def stop(self, *_: object) -> None:
        """Take no more requests. systemd ends playbooks that run; the next service runs them again."""
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped. No error of a request or of a run ends the service.

        Raises:
            GpuClusterError: there is no key for new nodes, and none can be created.
        """
        for folder in (self._work, self._work / "known_hosts"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._forget_hosts()
        join_key.make(self._key, self._public_key)
        notify("READY=1")
        while not self._stop.wait(_POLL):
            notify("WATCHDOG=1")
            try:
                self.serve_once()
            except Exception as error:  # of any kind: it is logged, and the next round may succeed
                log.error(f"the requests could not be read: {error}", trace=not isinstance(error, GpuClusterError))
                self._stop.wait(5)
        notify("STOPPING=1")

    def serve_once(self) -> None:
        """Read new requests, and start a run where hosts answer. Waits only while too many runs are active."""
        names = self._names()
        self._waiting = {stem: arrival for stem, arrival in self._waiting.items() if f"{stem}.json" in names}
        self._read([name for name in names if name.removesuffix(".json") not in self._waiting])
        if self._waiting:
            self._knock()
            self._start_due()

    def _read(self, names: Sequence[str]) -> None:
        """Take in good requests, and refuse the others."""
        if not names:
            return
        policy, inventory = Policy.load(self._config), self._read_inventory()
        for name in names:
            stem = name.removesuffix(".json")
            try:
                with Folder.open(self._state / FOLDER) as folder:
                    request = parse(folder.read(name, _MAX_BYTES))
                if request.stem != stem:
                    raise InputError("the request does not match the name of its file")
                check(request, policy, inventory)
            except (InputError, OSError) as error:
                self._refuse(stem, error)
            else:
                self._waiting[stem] = Arrival(request, time.monotonic())

    def _refuse(self, stem: str, error: Exception) -> None:
        log.warning(f"refused a request: {error}", file=f"{stem}.json")
        self._answer(stem, JoinResult(False, str(error)))

    def _knock(self) -> None:
        """Note which hosts answer now, and give up those that have not answered for too long."""
        silent = [arrival for arrival in self._waiting.values() if arrival.answered_at is None]
        answering = self._answers([arrival.request.address for arrival in silent]) if silent else ()
        now = time.monotonic()
        for arrival in silent:
            if arrival.request.address in answering:
                arrival.answered_at = now
        for arrival in overdue(self._waiting.values(), now, patience=self._patience):
            request = arrival.request
            words = f"sshd at {request.address} has not answered for {count(int(self._patience), 'second')}"
            log.warning(f"{request.node}: {words}", node=request.node, pool=request.pool, instance=request.instance_id)
            self._answer(request.stem, JoinResult(False, words))
            del self._waiting[request.stem]

    def _start_due(self) -> None:
        arrivals = due(self._waiting.values(), time.monotonic(), settle=self._settle, window=self._window)
        if not arrivals:
            return
        # Read again: what was allowed when the request came may be minutes old.
        policy, inventory = Policy.load(self._config), self._read_inventory()
        requests = []
        for arrival in arrivals:
            del self._waiting[arrival.request.stem]
            try:
                check(arrival.request, policy, inventory)
                requests.append(arrival.request)
            except InputError as error:
                self._refuse(arrival.request.stem, error)
        for first in range(0, len(requests), BATCH):
            self._start(requests[first : first + BATCH], policy, inventory)

    def _names(self) -> list[str]:
        """The files of requests that have no result and are not being configured."""
        try:
            with Folder.open(self._state / FOLDER) as folder:
                names = folder.names()
        except FileNotFoundError:
            return []
        present = set(names)
        with self._lock:
            return [
                name
                for name in names
                if _NAME.fullmatch(name)
                and not name.endswith(RESULT)
                and name.removesuffix(".json") + RESULT not in present
                and name.removesuffix(".json") not in self._active
            ]

    def _read_inventory(self) -> Mapping[str, Any]:
        import yaml

        try:
            inventory = yaml.safe_load(self._inventory.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise InputError(f"can't read the inventory: {error}", where=str(self._inventory)) from error
        return inventory if isinstance(inventory, Mapping) else {}

    def _start(self, requests: Sequence[JoinRequest], policy: Policy, inventory: Mapping[str, Any]) -> None:
        while not self._free.acquire(timeout=_POLL):
            notify("WATCHDOG=1")
            if self._stop.is_set():
                return
        with self._lock:
            self._active |= {request.stem for request in requests}
        threading.Thread(target=self._batch, args=(requests, policy, inventory), daemon=True).start()

    def _batch(self, requests: Sequence[JoinRequest], policy: Policy, inventory: Mapping[str, Any]) -> None:
        nodes = [request.node for request in requests]
        began = time.monotonic()
        try:
            results = self._play(requests, policy, inventory)
        except Exception as error:  # of any kind: nodes that wait for an answer get one
            log.error(f"the configuration of new nodes failed: {error}", nodes=nodes, trace=True)
            results = {node: JoinResult(False, str(error)) for node in nodes}
        finally:
            self._free.release()
        for request in requests:
            result = results[request.node]
            report: Callable[..., None] = log.info if result.ok else log.warning
            report(
                f"{request.node}: {result.message}",
                node=request.node,
                pool=request.pool,
                instance=request.instance_id,
                seconds=round(time.monotonic() - began, 1),
            )
            with contextlib.suppress(OSError):
                self._answer(request.stem, result)
        with self._lock:
            self._active -= {request.stem for request in requests}

    def _play(
        self, requests: Sequence[JoinRequest], policy: Policy, inventory: Mapping[str, Any]
    ) -> dict[str, JoinResult]:
        import yaml

        folder = self._work / f"run-{secrets.token_hex(6)}"
        folder.mkdir(mode=0o700)
        # What a run has compiled serves the next one. Of several at the same time, one has that folder.
        keeps = self._kept_home.acquire(blocking=False)
        try:
            hosts = new_hosts(requests, policy, inventory, key=self._key, known_hosts=self._work / "known_hosts")
            write_private(folder / "new.yml", yaml.safe_dump(hosts))
            programs = Path(sys.executable).parent
            # `timeout` ends the playbook's whole process group, with its workers and their ssh.
            argv = ["timeout", "--kill-after=10", f"{policy.times.join_deadline:g}", sys.executable, *_PLAYBOOK,
                    "-i", str(self._inventory), "-i", str(folder / "new.yml"), "join.yml"]  # fmt: skip
            home = self._work / "ansible" if keeps else folder / "home"
            environment = self._environment(folder, programs, home)
            result = process.run(argv, env=environment, cwd=self._playbooks, check=False)
            output = process.without_colour(result.stdout + result.stderr)
            return parse_results(output, result.returncode, [request.node for request in requests])
        finally:
            if keeps:
                self._kept_home.release()
            shutil.rmtree(folder, ignore_errors=True)

    def _environment(self, folder: Path, programs: Path, home: Path) -> dict[str, str]:
        return {
            "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._work),
            "LANG": "C.UTF-8",
            "ANSIBLE_CONFIG": str(self._playbooks / "ansible.cfg"),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _answer(self, stem: str, result: JoinResult) -> None:
        with Folder.open(self._state / FOLDER) as folder:
            state = folder.status()
            # The daemon, whose folder it is, deletes the result.
            owner = (state.st_uid, state.st_gid) if os.geteuid() == 0 else None
            folder.write(stem + RESULT, json.dumps(asdict(result)).encode(), 0o600, owner)

    def _forget_hosts(self) -> None:
        """Remove host keys of instances that are long gone, and folders of runs that were killed."""
        old = time.time() - _KEPT_DAYS * 86400
        for file in (self._work / "known_hosts").iterdir():
            if file.stat().st_mtime < old:
                file.unlink(missing_ok=True)
        for left in self._work.glob("run-*"):
            shutil.rmtree(left, ignore_errors=True)
