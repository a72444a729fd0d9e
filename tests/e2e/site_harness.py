"""A cluster of a test's own on a local cloud of its own: built and used through the command, removed at the end.

Its addresses are free ones (tests/addresses.py), so that clusters of other tests and a demo cluster do not meet it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import EXIT_UNCONFIRMED
from gpucluster.localcloud import control
from gpucluster.localcloud.engine import containers as engine
from gpucluster.localcloud.engine import link_local
from gpucluster.localcloud.engine.protocol import LABEL_HOME
from gpucluster.ssh.sockets import Sockets
from tests.addresses import free_range
from tests.event_lines import PASSES_ON, require_valid
from tests.localcloud.faults import set_faults
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
#: In the text of a cluster.yml: the first two numbers of the addresses of its VCN.
NET = "10.NET"
#: A section of cluster.yml. 127.0.0.0/8 is this machine.
NETWORK = f"""\
network:
  vcn_cidr: {NET}.0.0/16
  public_subnet_cidr: {NET}.0.0/24
  private_subnet_cidr: {NET}.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
"""
#: For a command that builds: a cluster takes as many minutes as the machine is busy.
PATIENCE_TO_BUILD_S = 6 * PATIENCE_S
#: A login that shares no connection with earlier ones: a user who is refused now must not get in through an open one.
ALONE = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
#: How long ssh waits for a connection: the configuration that `apply` writes gives up after 10 s, for users.
_CONNECT = ("-o", f"ConnectTimeout={PATIENCE_S / 2:.0f}")
#: A job that runs until it is cancelled.
ENDLESS = "exec sleep 86400"
#: Warnings about the machine that runs the tests: the containers share its disk, which may be full, and its kernel.
#: Clusters with Kubernetes have the release of Debian 12, 1.20, which has known faults, too.
_OF_THIS_MACHINE = ("root_file_system", "known_faults")


def all_pass(result: dict[str, Any]) -> bool:
    """Whether each check of a result has passed or has nothing to check."""
    bad = [check for check in result["checks"] if check["status"] not in ("pass", "skip")]
    return all(check["check"] in _OF_THIS_MACHINE and check["status"] == "warn" for check in bad)


#: What an apply prints that leaves the tasks out.
UNCHANGED = "no host has changed since the last apply: only users and accounts were updated (--all-tasks updates all)"


class Site:
    """A folder with a cluster.yml, a local cloud of its own, and the command. It is removed when the block ends.

    Args:
        cluster_yml: its text, with `NET` where the addresses of the VCN begin.
        bakes: images are baked, which only a destroy removes.
    """

    def __init__(self, cluster_yml: str, *, bakes: bool = False) -> None:
        self._held = contextlib.ExitStack()
        self.net = self._held.enter_context(free_range())
        self._bakes = bakes
        self.folder = Path(tempfile.mkdtemp(prefix="gpucluster-e2e-"))
        self.file = self.folder / "cluster.yml"
        self.write(cluster_yml)
        self.home = self.folder / "cloud"
        #: The host at which users log in; empty: the controller.
        self.entry = ""
        self.env = {**os.environ, "GPUCLUSTER_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Site:
        return self

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Replace the faults of this local cloud; without arguments there are none."""
        set_faults(self.home, faults)

    def __exit__(self, *_: object) -> None:
        try:
            if self._bakes and containers(self.home):
                self.run("destroy", "--delete-data")
        finally:
            self._remove()

    def _remove(self) -> None:
        """Remove what is left, without asking the cluster: it may be half of one."""
        with self._held:
            control.stop(self.home)
            label = f"{LABEL_HOME}={self.home}"
            for container in engine.listing(label):
                engine.terminate(container.name, home=self.home)
            for network in engine.networks(label):
                engine.remove_network(network)
            link_local.set_paths(self.home, {})
            # Connections that were shared end with their hosts.
            if sockets := Sockets(self.folder / ".gpucluster").folder():
                shutil.rmtree(sockets)
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the file

    def write(self, cluster_yml: str) -> None:
        """Write cluster.yml. `NET` in the text becomes the addresses of this cluster."""
        self.file.write_text(cluster_yml.replace(NET, self.net))

    def change(self, old: str, new: str) -> None:
        """Change what is in cluster.yml."""
        text = self.file.read_text()
        assert old in text, text
        self.write(text.replace(old, new))

    # ---- the command

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpucluster", "--file", str(self.file), "--output", "json", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._argv(*words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *words: str, timeout: float = PATIENCE_TO_BUILD_S) -> tuple[int, list[dict[str, Any]]]:
        done = subprocess.run(
            self._argv(*words),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if words[0] not in PASSES_ON:
            require_valid(events)
        return done.returncode, events

    def plain(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command as a user types it."""
        argv = [sys.executable, "-m", "gpucluster", "--file", str(self.file), *words]
        return subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=PATIENCE_TO_BUILD_S, check=False
        )

    def good(self, *words: str) -> dict[str, Any]:
        code, events = self.run(*words)
        assert code == 0, self._why(words, events)
        assert events[-1]["kind"] == "result"
        data: dict[str, Any] = events[-1]["data"]
        return data

    @staticmethod
    def _why(words: Sequence[str], events: Sequence[Any]) -> str:
        """The error first: some readers see one line."""
        return f"{' '.join(words)}: {events[-1].get('message', '') if events else 'no event'}\n{events[-8:]}"

    def good_and_said(self, *words: str) -> tuple[dict[str, Any], list[str]]:
        """The result of a command, and its messages beside those of phases and tasks."""
        code, events = self.run(*words)
        assert code == 0, self._why(words, events)
        return events[-1]["data"], [event["message"] for event in events if event["kind"] == "log"]

    def confirmed(self, *words: str) -> list[dict[str, Any]]:
        """The results of a change of users, the last one with the answer of each host.

        A host that is busy for some seconds does not confirm a change, and the hint is to ask again.
        """
        results: list[dict[str, Any]] = []

        def by_all() -> bool:
            code, events = self.run(*words)
            assert code in (0, EXIT_UNCONFIRMED), self._why(words, events)
            data = events[-1]["data"]
            results.append(data if code == 0 else data["done"])
            return code == 0

        wait_for(f"each host confirms: {' '.join(words)}", by_all, state=lambda: results)
        return results

    # ---- on the hosts: ssh as `apply` has configured it, without the command, which takes a second of processor time

    def ssh(
        self, host: str, command: str, *options: str, who: str = "", stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """A command on a host.

        Args:
            options: of ssh; ALONE for a new login.
            who: a user with a key of their own; the user of the image if it is empty, who has root's rights.
        """
        argv = ["ssh", "-F", str(self.folder / ".gpucluster" / "ssh" / "config"), *_CONNECT, *options]
        argv += ["-i", str(self.key(who)), "-l", who] if who else []
        argv += [host, "--", command]
        # A command of several jobs waits for as many nodes as these bring.
        patience = PATIENCE_TO_BUILD_S
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=patience, check=False)

    def key(self, name: str) -> Path:
        """The private key of a user; one is made for a user who has none."""
        file = self.folder / ".gpucluster" / "ssh" / f"{name}_ed25519"
        if not file.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
        return file

    def root(self, host: str, script: str) -> str:
        """What a script of root's prints on a host; it must end well."""
        done = self.ssh(host, "sudo sh -s", stdin=script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def boot(self, host: str) -> str:
        """What is another text after the next boot of a host; empty while it does not answer."""
        return self.ssh(host, "systemctl show -p UserspaceTimestampMonotonic --value", *ALONE).stdout.strip()

    def require_order(self, *hosts: str) -> None:
        """systemd of these hosts can start all of their units in order.

        Of a circle it leaves out one unit with all that need it, another one at each boot.
        """
        for host in hosts:
            found = self.root(host, "systemd-analyze verify --man=no default.target 2>&1 | grep -i cycle || true")
            assert found == "", f"{host}: {found}"

    @property
    def host_names(self) -> list[str]:
        """The hosts that the last apply knew; the controller is the first."""
        saved = json.loads((self.folder / ".gpucluster" / "hosts.json").read_text())
        return [str(host["name"]) for host in saved["hosts"]]

    @property
    def controller(self) -> str:
        return self.host_names[0]

    def as_alice(self, command: str, stdin: str = "") -> str:
        """Run a command as alice, logged in as `apply` prints at its end."""
        done = self.ssh(self.entry or self.controller, command, who="alice", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # ---- Slurm

    def until(self, what: str, condition: Callable[[], object], *, patience: float = PATIENCE_S) -> None:
        """Wait for something on this cluster; a failure shows its nodes and jobs.

        A command of the condition that fails means "not yet": a service may not answer at one of many questions.
        """
        wait_for(what, condition, patience=patience, interval=0.5, state=self._state, ignore=AssertionError)

    def _state(self) -> str:
        """What explains why something does not happen. The most telling first: some readers see only the beginning."""
        stopped = "systemctl list-units --all --plain --no-legend --state=failed,activating,deactivating"
        dead = "systemctl is-active mariadb slapd munge slurmdbd slurmctld gpucluster-state | tr '\\n' ' '"
        slurm = "sudo sinfo -N -o '%N %T %E'; sudo squeue -a -o '%i %u %T %r %N'"
        done = self.ssh(self.controller, f"{dead}; {stopped}; systemctl list-jobs --no-legend; {slurm}")
        errors = [line for line in self._log() if " ERROR " in line or "rebooted itself" in line]
        return "\n".join([done.stdout + done.stderr, *errors[-5:]])

    def _log(self) -> list[str]:
        """The lines of the local cloud's log."""
        file = self.home / "log" / "server.log"
        return file.read_text(errors="replace").splitlines() if file.exists() else []

    def knows(self, host: str, user: str) -> None:
        """Wait until a host knows a user. SSSD that gave up on a busy machine does not ask again for a minute."""
        entry = f"getent passwd {user}; true"
        self.until(f"{host} knows {user}", lambda: self.root(host, entry).startswith(f"{user}:"))

    def state_of(self, job: str) -> str:
        """The state of a job; empty when Slurm has forgotten it, and not when slurmctld has not answered."""

        def asked() -> tuple[str]:
            done = self.ssh(self.controller, f"sudo squeue -h -j {job} -o %T")
            assert done.returncode == 0 or "Invalid job id" in done.stderr, done.stdout + done.stderr
            return (done.stdout.strip(),)

        return wait_for(f"squeue answers about job {job}", asked, interval=0.5, ignore=AssertionError)[0]

    def runs(self, job: str) -> None:
        """Wait until a job runs, which may need nodes that are launched for it."""
        self.until(f"job {job} runs", lambda: self.state_of(job) == "RUNNING", patience=3 * PATIENCE_S)

    def has_saved(self, host: str, name: str) -> bool:
        """Whether the queue that slurmctld of a host has saved has a job of this name: it saves some time later."""
        saved = "/var/lib/slurm/slurmctld/job_state"
        return self.root(host, f"grep -q {name} {saved} && echo yes || true") == "yes"

    def over(self, job: str) -> None:
        """Wait until a job is over, which may need nodes that are launched for it."""
        ends = ("", "COMPLETED", "CANCELLED", "FAILED")
        self.until(f"job {job} is over", lambda: self.state_of(job) in ends, patience=3 * PATIENCE_S)

    def accounted(self, job: str) -> str:
        """State and number of nodes of a job that has ended well, which the accounting has some time after its end."""

        def ended() -> str:
            found = self.as_alice(f"sacct -X -n -j {job} -o State,AllocNodes")
            return found if "COMPLETED" in found else ""

        what = f"job {job} is COMPLETED in the accounting"
        return wait_for(what, ended, interval=0.5, state=self._state, ignore=AssertionError)


def worked_example(name: str) -> str:
    """The text of `inventories/<name>/cluster.yml`, in free addresses."""
    text = (ROOT / "inventories" / name / "cluster.yml").read_text()
    found = re.search(r"^  vcn_cidr: ([0-9]+\.[0-9]+)\.", text, re.MULTILINE)
    assert found
    return text.replace(f"{found.group(1)}.", f"{NET}.")


def container_of(site: Site, host: str) -> str:
    """The name of the container of a host. One of an instance pool has another name, which the cloud gives it."""
    (found,) = [name for name in container_names(site.home) if f"-{host}-" in name]
    return found


def container_of_instance(site: Site, ocid: str) -> str:
    """The name of the container of an instance: it has the end of the OCID in it."""
    (found,) = [name for name in container_names(site.home) if ocid.endswith(name.rpartition("-")[2])]
    return found


def container_names(home: Path) -> list[str]:
    """The names of the containers of a local cloud, gpucluster-HOST-ID: in one call, for one of them may just go."""
    return [each.name for each in engine.listing(f"{LABEL_HOME}={home}")]


def containers(home: Path) -> list[str]:
    """The containers of a local cloud, by their ids."""
    return _listed("ps", "-a", home=home)


def networks(home: Path) -> list[str]:
    return _listed("network", "ls", home=home)


def _listed(*words: str, home: Path) -> list[str]:
    argv = ["podman", *words, "-q", "--filter", f"label={LABEL_HOME}={home}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


@contextlib.contextmanager
def _patience(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a command that prints nothing more, so that a reader reads its end."""
    timer = threading.Timer(PATIENCE_TO_BUILD_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Lines of a running command up to the first that holds `wanted`."""
    assert process.stdout is not None
    lines: list[str] = []
    with _patience(process):
        while line := process.stdout.readline():
            lines.append(line)
            if wanted in line:
                return lines
    process.kill()
    process.wait()
    pytest.fail(f"{wanted!r} was never said: {''.join(lines[-20:])}")


def read_events(process: subprocess.Popen[str], count: int) -> int:
    """Read a running command's events until so many were read, or it has ended. Returns how many they were.

    Those of checks do not count: they come all at once.
    """
    assert process.stdout is not None
    read = 0
    with _patience(process):
        while read < count and (line := process.stdout.readline()):
            read += line.startswith("{") and json.loads(line)["kind"] != "check"
    return read


def rest_of(process: subprocess.Popen[str]) -> str:
    """What a command prints until it ends. Unlike `communicate` it has all that follows the last line that was read."""
    assert process.stdout is not None
    with _patience(process), process.stdout:
        said = process.stdout.read()
        process.wait()
    return said


def kill(process: subprocess.Popen[str]) -> None:
    """End a command as a crash of the machine would."""
    assert process.stdout is not None
    process.kill()
    process.wait()
    process.stdout.close()  # programs that it has started may still write
