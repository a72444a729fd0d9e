"""Making nodes of instances whose image has nothing in it yet: the daemon asks, a service of root's runs `join.yml`.

The daemon has no right to configure a host, so it writes a request, `<tail of the instance's id>-<node>.json`, into a
folder of its own, and finds the answer beside it as `.result.json`. Root believes nothing in a request that policy and
the inventory do not allow, follows no link in the daemon's folders, and gives nothing else of it to Ansible.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.autoscaler.daemon.logs import Log
from gpucluster.autoscaler.daemon.notify import notify
from gpucluster.autoscaler.policy import Policy
from gpucluster.errors import GpuClusterError, InputError
from gpucluster.paths import ansible_dir, write_private

INVENTORY = Path("/etc/gpucluster/inventory.yml")
WORK_DIRECTORY = Path("/var/lib/gpucluster-join")
FOLDER, KEY = "join", "id_ed25519"
_RESULT = ".result.json"
_NAME = re.compile(r"[a-z0-9]{6,60}-[a-z0-9-]{1,63}\.json")
_OCID = re.compile(r"ocid1\.instance\.[a-z0-9-]*\.[a-z0-9-]*\.[a-z0-9.]{6,200}")
_TAIL = 12
_MAX_BYTES = 4096
# Requests that arrive within so many seconds are carried out together; so many hosts in one run, so many runs at once.
WINDOW, BATCH, RUNS = 1.0, 64, 4
_POLL = 0.25
_KEPT_DAYS = 30

log = Log("join")


def tail(instance_id: str) -> str:
    """What is enough of an OCID to tell instances apart."""
    return instance_id[-_TAIL:]


@dataclass(frozen=True, slots=True)
class Request:
    """A new instance that is to become a node."""

    node: str
    pool: str
    instance_id: str
    address: str

    @property
    def stem(self) -> str:
        """The name of its files."""
        return f"{tail(self.instance_id)}-{self.node}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a request."""

    ok: bool
    message: str


# --- the daemon's side -----


class Requests:
    """The folder with requests and results, as the daemon sees it."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def ask(self, request: Request) -> None:
        """Write a request down. Asking again for the same is fine."""
        write_private(self._folder / f"{request.stem}.json", json.dumps(asdict(request)))

    def waiting(self) -> frozenset[str]:
        """The instances whose configuration was asked for and has not ended."""
        return frozenset(one.instance_id for name, one in self._requests() if not self._result(name).exists())

    def results(self) -> Mapping[str, Result]:
        """By instance, what ended."""
        found = {}
        for name, request in self._requests():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                raw = json.loads(self._result(name).read_text())
                found[request.instance_id] = Result(bool(raw["ok"]), str(raw["message"]))
        return found

    def remove(self, instance_id: str) -> None:
        """Forget a request and its result."""
        for name, request in self._requests():
            if request.instance_id == instance_id:
                # The request goes first: without it a result means nothing, and root does the work only once.
                (self._folder / name).unlink(missing_ok=True)
                self._result(name).unlink(missing_ok=True)

    def _result(self, name: str) -> Path:
        return self._folder / (name.removesuffix(".json") + _RESULT)

    def _requests(self) -> list[tuple[str, Request]]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            if path.is_file() and not path.name.endswith(_RESULT):
                with contextlib.suppress(OSError, GpuClusterError):
                    found.append((path.name, parse(path.read_bytes())))
        return found


# --- root's side: pure -----


def parse(raw: bytes) -> Request:
    """Read a request.

    Raises:
        InputError: it is none.
    """
    try:
        fields = json.loads(raw)
        texts = {name: fields[name] for name in ("node", "pool", "instance_id", "address")}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the request is not what it should be: {error!r}") from error
    if not all(isinstance(text, str) for text in texts.values()):
        raise InputError("the request has a member that is no text")
    return Request(**texts)


def check(request: Request, policy: Policy, inventory: Mapping[str, Any]) -> None:
    """Refuse what the policy and the inventory do not allow.

    Raises:
        InputError: says which.
    """
    pool = policy.pools.get(request.pool)
    if pool is None or pool.baked:
        raise InputError(f"{request.pool!r} is no pool whose nodes are configured here")
    if not pool.owns(request.node):
        raise InputError(f"{request.node!r} is no name of the pool {pool.name}")
    if not _OCID.fullmatch(request.instance_id):
        raise InputError(f"{request.instance_id!r} is no id of an instance")
    variables = _variables(inventory)
    try:
        address = ipaddress.IPv4Address(request.address)
        networks = [ipaddress.IPv4Network(str(one)) for one in _networks(variables)]
    except ValueError as error:
        raise InputError(f"not an address: {error}") from error
    if not any(address in network for network in networks):
        raise InputError(f"{address} is not in the private network of the cluster")
    if str(address) in {str(host.get("address")) for host in variables.get("gpucluster_hosts") or ()}:
        raise InputError(f"{address} belongs to a permanent host of the cluster")


def _variables(inventory: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (inventory.get("all") or {}).get("vars") or {}
    return found


def _networks(variables: Mapping[str, Any]) -> Sequence[str]:
    """Where new nodes may be: the private subnet if the inventory names it, else the networks that are trusted."""
    own = variables.get("private_subnet_cidr")
    return [own] if own else variables.get("base_trusted_networks") or ()


def pool_group(pool: str) -> str:
    """The Ansible group of a pool, as the operator's inventory names it."""
    return "pool_" + pool.replace("-", "_")


def new_hosts(
    requests: Sequence[Request], inventory: Mapping[str, Any], *, key: Path, known_hosts: Path
) -> dict[str, Any]:
    """The second inventory: the new hosts in the groups `joining` and pool_<pool>, and the controller as ourselves."""
    children = (inventory.get("all") or {}).get("children") or {}
    controllers = (children.get("controller") or {}).get("hosts") or {}
    users = {str(one.get("ansible_user")) for one in controllers.values() if one and one.get("ansible_user")}
    pools = {str(one.get("name")): one for one in _variables(inventory).get("slurm_pools") or ()}
    groups: dict[str, Any] = {
        "controller": {"hosts": {name: {"ansible_connection": "local"} for name in controllers}},
        "joining": {"hosts": {}},
    }
    for request in requests:
        user = (pools.get(request.pool) or {}).get("login_user") or next(iter(sorted(users)), "")
        options = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={known_hosts / tail(request.instance_id)}"
        groups["joining"]["hosts"][request.node] = {
            "ansible_host": request.address,
            "private_ip": request.address,
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": f"{options} -o IdentitiesOnly=yes -o ConnectTimeout=10",
            "instance_id": request.instance_id,
            **({"ansible_user": user} if user else {}),
        }
        groups.setdefault(pool_group(request.pool), {"hosts": {}})["hosts"][request.node] = {}
    return {"all": {"children": groups}}


_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=\d+\s+unreachable=(\d+)\s+failed=(\d+)")
_FATAL = re.compile(r"^fatal: \[([^\]\s]+)[^\]]*\]: \S+ => (.*)$")
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*)\] \**$")


def judge(said: str, returncode: int, nodes: Sequence[str]) -> dict[str, Result]:
    """By node, what ansible-playbook's output says of it. A node that the recap does not name has failed."""
    fatal: dict[str, str] = {}
    recap: dict[str, bool] = {}
    task = ""
    for line in said.splitlines():
        if match := _TASK.match(line):
            task = match.group(1)
        elif match := _FATAL.match(line):
            fatal.setdefault(match.group(1), f"{task}: {_reason(match.group(2))}")
        elif match := _RECAP.match(line):
            recap[match.group(1)] = match.group(2) == match.group(3) == "0"
    last = " ".join(said.split())[-300:]
    results = {}
    for node in nodes:
        words = fatal.get(node) or next(iter(fatal.values()), "") or f"ansible-playbook ended with {returncode}: {last}"
        results[node] = Result(True, "configured") if recap.get(node) else Result(False, words)
    return results


def _reason(raw: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        fields = json.loads(raw)
        if "censored" in fields:
            return "the details are hidden, for they may hold secrets"
        for key in ("stderr", "msg", "module_stderr", "stdout"):
            if fields.get(key):
                return " ".join(str(fields[key]).split())[:400]
    return " ".join(raw.split())[:400]


# --- root's side: files -----


class _Folder:
    """A folder that another user owns: no link in it is followed, and nothing but short regular files is read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._owner = os.fstat(descriptor)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[_Folder]:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield cls(descriptor)
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        return sorted(os.listdir(self._descriptor))

    def read(self, name: str) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=self._descriptor), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise InputError(f"{name} is no short regular file")
            return stream.read(_MAX_BYTES)

    def write(self, name: str, text: str) -> None:
        """Write a file that belongs to the folder's owner, whole or not at all."""
        part = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, 0o600, dir_fd=self._descriptor), "w") as stream:
                if os.geteuid() == 0:
                    os.fchown(stream.fileno(), self._owner.st_uid, self._owner.st_gid)
                stream.write(text)
            os.rename(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self._descriptor)
            raise


class Service:
    """Root's service: looks for requests, runs the playbook for all that came together, writes the results.

    Args:
        config: the policy, read again for each batch. `state`: the daemon's folder. `work`: our own (0700).
        playbooks: the folder with join.yml and ansible.cfg; those of this gpucluster, unless another is given.
        window, runs: see above.
    """

    def __init__(
        self,
        config: Path,
        state: Path,
        *,
        inventory: Path = INVENTORY,
        work: Path = WORK_DIRECTORY,
        playbooks: Path | None = None,
        window: float = WINDOW,
        runs: int = RUNS,
    ) -> None:
        self._config, self._state, self._inventory, self._work = config, state, inventory, work
        self._playbooks = playbooks or ansible_dir()
        self._window = window
        self._free = threading.Semaphore(runs)
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._stop = threading.Event()

    def stop(self, *_: object) -> None:
        """Take no more requests. Playbooks that run are ended by systemd, and done again by the next service."""
        self._stop.set()

    def run(self) -> None:
        """Serve until told to stop. No fault of a request or of a run ends the service."""
        for folder in (self._work, self._work / "known_hosts"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
        self._forget_hosts()
        notify("READY=1")
        while not self._stop.wait(_POLL):
            notify("WATCHDOG=1")
            try:
                if self._new_names():
                    self._stop.wait(self._window)
                    self.look()
            except Exception as error:
                log.error(f"a look at the requests failed: {error}", trace=not isinstance(error, GpuClusterError))
                self._stop.wait(5)
        notify("STOPPING=1")

    def look(self) -> None:
        """Refuse what is wrong and start a run for the rest; waits only for a run to be free."""
        names = self._new_names()
        if not names:
            return
        policy = Policy.load(self._config)
        inventory = self._read_inventory()
        good: list[Request] = []
        for name in names:
            try:
                with _Folder.open(self._state / FOLDER) as folder:
                    request = parse(folder.read(name))
                if f"{request.stem}.json" != name:
                    raise InputError("the request is not what its name says")
                check(request, policy, inventory)
            except (InputError, OSError) as error:
                log.warning(f"refused a request: {error}", file=name)
                self._answer(name.removesuffix(".json"), Result(False, str(error)))
            else:
                good.append(request)
        for first in range(0, len(good), BATCH):
            self._start(good[first : first + BATCH], policy, inventory)

    def _new_names(self) -> list[str]:
        try:
            with _Folder.open(self._state / FOLDER) as folder:
                names = folder.names()
        except FileNotFoundError:
            return []
        there = set(names)
        with self._lock:
            return [
                name
                for name in names
                if _NAME.fullmatch(name)
                and not name.endswith(_RESULT)
                and name.removesuffix(".json") + _RESULT not in there
                and name.removesuffix(".json") not in self._active
            ]

    def _read_inventory(self) -> Mapping[str, Any]:
        import yaml

        try:
            found = yaml.safe_load(self._inventory.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise InputError(f"can't read the inventory: {error}", where=str(self._inventory)) from error
        return found if isinstance(found, Mapping) else {}

    def _start(self, requests: Sequence[Request], policy: Policy, inventory: Mapping[str, Any]) -> None:
        while not self._free.acquire(timeout=_POLL):
            notify("WATCHDOG=1")
            if self._stop.is_set():
                return
        with self._lock:
            self._active |= {request.stem for request in requests}
        threading.Thread(target=self._batch, args=(requests, policy, inventory), daemon=True).start()

    def _batch(self, requests: Sequence[Request], policy: Policy, inventory: Mapping[str, Any]) -> None:
        nodes = [request.node for request in requests]
        began = time.monotonic()
        try:
            results = self._play(requests, inventory, policy.times.join_deadline)
        except Exception as error:
            log.error(f"the configuration of new nodes failed: {error}", nodes=nodes, trace=True)
            results = {node: Result(False, str(error)) for node in nodes}
        finally:
            self._free.release()
        for request in requests:
            result = results[request.node]
            say: Callable[..., None] = log.info if result.ok else log.warning
            say(
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

    def _play(self, requests: Sequence[Request], inventory: Mapping[str, Any], patience: float) -> dict[str, Result]:
        import yaml

        folder = self._work / f"run-{secrets.token_hex(6)}"
        folder.mkdir(mode=0o700)
        try:
            with _Folder.open(self._state / "ssh") as keys:
                write_private(folder / KEY, keys.read(KEY).decode())
            hosts = new_hosts(requests, inventory, key=folder / KEY, known_hosts=self._work / "known_hosts")
            write_private(folder / "new.yml", yaml.safe_dump(hosts))
            programs = Path(sys.executable).parent
            # `timeout` ends the playbook's whole process group, its workers and their ssh included
            argv = ["timeout", "--kill-after=10", f"{patience:g}", str(programs / "ansible-playbook"),
                    "-i", str(self._inventory), "-i", str(folder / "new.yml"), "join.yml"]  # fmt: skip
            done = process.run(argv, env=self._environment(folder, programs), cwd=self._playbooks, check=False)
            said = process.without_colour(done.stdout + done.stderr)
            return judge(said, done.returncode, [request.node for request in requests])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _environment(self, folder: Path, programs: Path) -> dict[str, str]:
        return {
            "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._work),
            "LANG": "C.UTF-8",
            "ANSIBLE_CONFIG": str(self._playbooks / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _answer(self, stem: str, result: Result) -> None:
        with _Folder.open(self._state / FOLDER) as folder:
            folder.write(stem + _RESULT, json.dumps(asdict(result)))

    def _forget_hosts(self) -> None:
        """Host keys of instances that are long gone, and what runs that were killed left behind."""
        old = time.time() - _KEPT_DAYS * 86400
        for file in (self._work / "known_hosts").iterdir():
            if file.stat().st_mtime < old:
                file.unlink(missing_ok=True)
        for left in self._work.glob("run-*"):
            shutil.rmtree(left, ignore_errors=True)
