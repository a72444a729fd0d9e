"""Runs inside a container of the base image: a plan on standard input, what the real Slurm made of it on the output.

Each node has a host name (its own UTS namespace) and an address (of the loopback device), so that slurmd runs on the
configuration as it is, once for each shape and all at a time. A plan for elastic nodes has its instances, too: a slurmd
that this program starts when Slurm's hook has asked for it. Of this repository it has tests/waiting.py alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S, wait_for

CONFIG = Path("/etc/slurm")
STATE = Path("/var/lib/slurm/slurmctld")
RUN = Path("/run/gpucluster-test")
SPOOL = Path("/var/spool/gpucluster-autoscaler")
HOOKS = Path("/opt/gpucluster/bin")
SLURMD_SPOOL = Path("/var/lib/slurm/slurmd")
#: Jobs wait here until this program lets its lock go: `flock --shared` on it.
GATE = RUN / "gate"
# 6817 and "it listens" in /proc/net/tcp.
_SLURMCTLD_PORT, _LISTENING = ":1AA1", "0A"
#: Root submits no jobs: the configuration refuses it.
AS_USER = ("runuser", "-u", "daemon", "--")
REASON = ("squeue", "--noheader", "--format=%r")


def call(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}\n{logs()}")
    return done.stdout


def logs() -> str:
    return "\n".join(f"== {file.name}\n{file.read_text()[-700:]}" for file in sorted(RUN.glob("*.log"))[:9])


def await_output(what: str, *argv: str, accept: Any = bool) -> None:
    """Wait until a command succeeds with an output that is right."""
    said = ""

    def right() -> bool:
        nonlocal said
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        return done.returncode == 0 and bool(accept(done.stdout))

    wait_for(what, right, interval=0.1, state=lambda: f"{said}\n{logs()}")


def start(name: str, *argv: str) -> subprocess.Popen[bytes]:
    with (RUN / f"{name}.log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def controller(files: dict[str, str]) -> subprocess.Popen[bytes]:
    """slurmctld with these files and nothing remembered; it answers when this returns."""
    for name, text in files.items():
        (CONFIG / name).write_text(text)
    shutil.rmtree(STATE, ignore_errors=True)
    for folder in (STATE, Path("/run/slurmctld"), Path("/var/log/slurm")):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "slurm", "slurm")
    # A configuration that Slurm refuses is refused at once, by every one of its programs.
    call("scontrol", "show", "hostlist", "a,b")
    call("slurmd", "-C")
    return start_slurmctld("slurmctld")


def start_slurmctld(name: str) -> subprocess.Popen[bytes]:
    """It answers when this returns. The scripts' process of one before has its socket a moment longer."""
    wait_for("the port of slurmctld is free", lambda: not slurmctld_listens(), interval=0.1, state=logs)
    daemon = start(name, "slurmctld", "-D")
    await_output("slurmctld answers", "scontrol", "ping", accept=lambda text: "UP" in text)
    return daemon


def slurmctld_listens() -> bool:
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(_SLURMCTLD_PORT) and row[3] == _LISTENING for row in rows)


def nodes() -> dict[str, dict[str, str]]:
    """What `scontrol show node` reports of each node."""
    found = {}
    for line in call("scontrol", "--oneliner", "show", "node").splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        found[facts["NodeName"]] = facts
    return found


def idle_nodes() -> dict[str, dict[str, str]]:
    """What Slurm reports of all nodes, once each is idle. It is one answer: in the next a slow node is silent."""
    found: dict[str, dict[str, str]] = {}

    def all_idle() -> bool:
        found.update(nodes())
        return {facts["State"] for facts in found.values()} == {"IDLE"}

    wait_for("every node is idle", all_idle, interval=0.1, state=lambda: f"{found}\n{logs()}")
    return found


def jobs(wanted: dict[str, list[str]]) -> dict[str, str]:
    """One batch job for each node, all at a time; what each reported: host, processors, GPUs."""
    script = "echo $(hostname) $SLURM_CPUS_ON_NODE $SLURM_GPUS_ON_NODE"
    outputs = {node: RUN / f"{node}.out" for node in wanted}
    for node, options in wanted.items():
        call(*AS_USER, "sbatch", f"--nodelist={node}", f"--output={outputs[node]}", f"--wrap={script}", *options)
    await_output("the jobs have ended", "squeue", "--noheader", accept=lambda text: not text.strip())
    return {node: file.read_text().strip() if file.exists() else "no output" for node, file in outputs.items()}


def prepare(plan: dict[str, Any]) -> None:
    RUN.mkdir()
    RUN.chmod(0o1777)
    CONFIG.mkdir(exist_ok=True)
    if "hooks" in plan:
        build_network(plan)
    else:
        # On the loopback device a prefix is local as a whole: every node has an address without an interface.
        call("ip", "address", "add", plan["controller"] + "/24", "dev", "lo")
    with Path("/etc/hosts").open("a") as hosts:
        hosts.writelines(f"{address} {name}\n" for name, address in plan["hosts"].items())
    key = Path("/etc/munge/munge.key")
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for path in (key, Path("/run/munge")):
        path.parent.mkdir(exist_ok=True)
        if path != key:
            path.mkdir(exist_ok=True)
        shutil.chown(path, "munge", "munge")
    start("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--num-threads=4")
    await_output("munge answers", "munge", "-n")
    for node in plan["nodes"]:
        Path("/var/lib/slurm/slurmd", node).mkdir(parents=True)
    for minor, name in enumerate(plan["devices"]):
        device = Path(name)
        device.parent.mkdir(exist_ok=True)
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(195, minor))
    for name in plan["emulated_files"]:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def build_network(plan: dict[str, Any]) -> None:
    """A network namespace for each node: an elastic one has the address that it is seen to come from."""
    # The engine gives the controller's name to the loopback device.
    Path("/etc/hosts").write_text("127.0.0.1 localhost\n")
    call("ip", "link", "add", "nodes", "type", "bridge")
    call("ip", "address", "add", plan["controller"] + "/24", "dev", "nodes")
    call("ip", "link", "set", "nodes", "up")
    for number, node in enumerate(plan["nodes"]):
        call("ip", "netns", "add", node)
        call("ip", "link", "add", f"node{number}", "type", "veth", "peer", "name", "eth0", "netns", node)
        call("ip", "link", "set", f"node{number}", "master", "nodes", "up")
        call("ip", "-netns", node, "address", "add", plan["hosts"][node] + "/24", "dev", "eth0")
        call("ip", "-netns", node, "link", "set", "eth0", "up")
        call("ip", "-netns", node, "link", "set", "lo", "up")


def install_hooks(text: str) -> None:
    """As the role does it."""
    SPOOL.mkdir(parents=True)
    shutil.chown(SPOOL, "slurm", "slurm")
    HOOKS.mkdir(parents=True)
    # The interpreter of the hooks, as user data provides it.
    interpreter = Path(text.partition("\n")[0].removeprefix("#!").split()[0])
    interpreter.parent.mkdir(parents=True, exist_ok=True)
    interpreter.symlink_to("/usr/bin/python3")
    for name in ("resume", "suspend", "resume-fail"):
        (HOOKS / name).write_text(text)
        (HOOKS / name).chmod(0o755)
    # A stand-in for the one that waits for the autoscaler, which is not here.
    (HOOKS / "prolog").symlink_to("/bin/true")


def records(kind: str) -> list[dict[str, Any]]:
    """What the hooks wrote down, oldest first."""
    return [record for file in sorted(SPOOL.glob("*.json")) if (record := json.loads(file.read_text()))["kind"] == kind]


def asked_for(kind: str) -> list[str]:
    """The nodes in all records of a kind."""
    lists = [record["nodes"] for record in records(kind)]
    return call("scontrol", "show", "hostnames", ",".join(lists)).split() if lists else []


def await_records(kind: str, wanted: set[str]) -> None:
    wait_for(
        f"there is a {kind} for all of {sorted(wanted)}",
        lambda: wanted <= set(asked_for(kind)),
        interval=0.2,
        state=lambda: f"{records(kind)}\n{logs()}\n{nodes()}",
    )


def await_refusal(job: str) -> None:
    """Wait until the scheduler has tried a job, found no nodes for it, and gone over the whole queue once more."""
    await_output(
        "the scheduler has tried the job", *REASON, f"--jobs={job}", accept=lambda text: text.strip() != "None"
    )
    cycles = scheduler_cycles()
    # It looks at the queue when something happens: this job is the newest, and another request comes after it.
    call("scontrol", "update", f"jobid={job}", "comment=look again")
    wait_for("the scheduler looks again", lambda: scheduler_cycles() > cycles, interval=0.1, state=logs)


def scheduler_cycles() -> int:
    """How often the main scheduler has gone over the queue."""
    main = call("sdiag").partition("Main schedule statistics")[2].partition("Backfilling stats")[0]
    (count,) = (line.split()[-1] for line in main.splitlines() if "Total cycles" in line)
    return int(count)


def submit(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AS_USER, "sbatch", "--parsable", *options], capture_output=True, text=True, check=False)


def allocated() -> dict[str, list[str]]:
    """The nodes of each job that has some."""
    lines = [line.split() for line in call("squeue", "--noheader", "--format=%i %N").splitlines()]
    return {line[0]: call("scontrol", "show", "hostnames", line[1]).split() for line in lines if len(line) > 1}


def elastic(plan: dict[str, Any]) -> dict[str, Any]:
    """Jobs that need nodes which are not there, from the request to the node's end."""
    install_hooks(plan["hooks"])
    gate = GATE.open("wb")
    fcntl.flock(gate, fcntl.LOCK_EX)
    # The controller's file is not for slurmd here: it has to fetch all of them.
    controller(plan["files"])
    result: dict[str, Any] = {"before": nodes(), "topology": call("scontrol", "show", "topology")}
    everyone = [launch(node) for node in plan["static"]]
    static = f"--nodes={','.join(plan['static'])}"
    await_output("the static nodes are idle", "sinfo", "--noheader", static, "--format=%T", accept=is_idle)
    jobs = []
    for options in plan["submit"]:
        jobs.append(submit(*options).stdout.strip())
        given = ("squeue", "--noheader", f"--jobs={jobs[-1]}", "--format=%N")
        await_output("the job has nodes", *given, accept=str.strip)
    refused = submit(*plan["too_large"])
    result["refused"] = [refused.returncode, refused.stderr]
    # There are nodes enough for it, but not in one pool.
    late = submit(*plan["submit"][0]).stdout.strip()
    await_refusal(late)
    result["jobs"] = allocated()
    call("scontrol", "update", f"jobid={late}", "admincomment=gpucluster: no capacity, next try at 15:42")
    shell = RUN / "squeue.sh"
    shell.write_text(plan["files"]["squeue.sh"])
    result["squeue"] = call("sh", "-c", f". {shell}; squeue --jobs={late}")
    result["own_format"] = call(
        "sh", "-c", f"export SQUEUE_FORMAT=%i; . {shell}; squeue --noheader --jobs={late}"
    ).split()
    result["format_option"] = call("sh", "-c", f". {shell}; squeue --noheader --jobs={late} --format=%i").split()
    call("scancel", late)

    wanted = {node for names in result["jobs"].values() for node in names} - set(plan["static"])
    await_records("resume", wanted)
    result["resume"] = records("resume")
    before = nodes()
    call("scontrol", "reconfigure")
    # It has become another process by that.
    call("scontrol", "shutdown", "slurmctld")
    await_output("slurmctld has ended", "sh", "-c", "! pidof slurmctld", accept=lambda _text: True)
    start_slurmctld("slurmctld-again")
    after = nodes()
    result["kept"] = {node: [before[node]["State"], after[node]["State"]] for node in sorted(wanted)}
    everyone += [launch(node) for node in sorted(wanted)]

    def ran() -> dict[str, list[str]]:
        outputs = {job: RUN / f"{job}.out" for job in jobs}
        return {job: file.read_text().split() if file.exists() else [] for job, file in outputs.items()}

    def all_ran() -> bool:
        result["ran"] = ran()
        return all(len(hosts) >= len(result["jobs"][job]) for job, hosts in result["ran"].items())

    wait_for("each job has run on its nodes", all_ran, interval=0.2, state=lambda: f"{ran()}\n{logs()}\n{nodes()}")
    # A node that is powered down, seconds after its job, has no instance any more.
    result["after"] = nodes()
    gate.close()
    await_output("the jobs have ended", "squeue", "--noheader", accept=lambda text: not text.strip())
    result["cached"] = sorted(file.name for file in (RUN / "disks" / min(wanted) / "spool/conf-cache").iterdir())
    await_records("suspend", wanted)
    result["suspended"] = asked_for("suspend")
    for child in everyone:
        child.kill()
    return result


def is_idle(text: str) -> bool:
    return set(text.split()) == {"idle"}


def launch(node: str) -> subprocess.Popen[bytes]:
    """A slurmd that knows nothing but where the controller is, with directories of its own."""
    own = RUN / "disks" / node
    for folder in ("spool", "run", "tmp"):
        (own / folder).mkdir(parents=True)
    (own / "tmp").chmod(0o1777)
    for target in (SLURMD_SPOOL, Path("/run/slurm")):
        target.mkdir(parents=True, exist_ok=True)
    # A step of PMIx has a folder in /tmp with the same name on each of its nodes: one node would remove the other's.
    mounts = " && ".join(
        f"mount --bind {own}/{folder} {target}"
        for folder, target in (("spool", SLURMD_SPOOL), ("run", "/run/slurm"), ("tmp", "/tmp"))
    )
    script = f'{mounts} && hostname "$0" && exec "$@"'
    # -b: an instance has booted since it was asked for; a slurmd here has the uptime of the machine below.
    argv = ("slurmd", "-D", "-b", "--conf-server", socket.gethostname(), f"--instance-id=ocid1.instance.test..{node}")
    return start(node, "ip", "netns", "exec", node, "unshare", "--uts", "sh", "-c", script, node, *argv)


def main() -> None:
    plan = json.load(sys.stdin)
    prepare(plan)
    result: dict[str, Any] = {"version": call("slurmctld", "-V").split()[-1]}
    result |= kind(plan)(plan)
    json.dump(result, sys.stdout)


def kind(plan: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What a plan asks for."""
    by_key = {"hooks": elastic, "questions": answers, "reboots": reboots, "placements": placements}
    return next((function for key, function in by_key.items() if key in plan), catalogue)


def reboots(plan: dict[str, Any]) -> dict[str, Any]:
    """Two drained nodes, the second one with a job, that Slurm is asked to reboot. Only the first comes back in time.

    The program that reboots is a double: it writes the name of its node, and this program ends the slurmd and starts
    another one. `-b` makes that report a boot. What a host does when it reboots is not proven by it.
    """
    first, second = plan["nodes"]
    double, done = Path(plan["reboots"]["program"]), RUN / "rebooted"
    double.write_text(f"#!/bin/sh\nhostname >> {done}\n")
    double.chmod(0o755)
    daemons = {"controller": controller(plan["files"])} | {node: boot(node) for node in plan["nodes"]}
    await_output("every node is idle", "sinfo", "--noheader", "--Node", "--format=%T", accept=is_idle)
    job = submit(f"--nodelist={second}", "--exclusive", "--output=/dev/null", "--wrap=sleep 600").stdout.strip()
    running = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    await_output("the job runs", *running, accept=lambda text: text.strip() == "RUNNING")
    for node in plan["nodes"]:
        call("scontrol", "update", f"nodename={node}", "state=drain", f"reason={plan['reboots']['reason']}")
        call("scontrol", "reboot", node)
    result: dict[str, Any] = {}

    def await_state(name: str, node: str, accept: Callable[[set[str]], bool]) -> None:
        def right() -> bool:
            result[name] = line(node)
            # Of the same answer: a second one may have another state.
            return accept(set(result[name].partition(" State=")[2].split(maxsplit=1)[0].split("+")))

        wait_for(name, right, interval=0.2, state=lambda: f"{result}\n{logs()}")

    def told() -> list[str]:
        return done.read_text().split() if done.exists() else []

    def ran(*names: str) -> None:
        wait_for("the program has run", lambda: told() == [*names], interval=0.1, state=logs)

    await_state("issued", first, lambda words: words >= {"REBOOT_ISSUED", "DOWN"})
    ran(first)
    # The first node is told to reboot, and the second one waits for its job.
    result["told"], result["waits"] = told(), line(second)
    daemons[first].kill()
    daemons[first].wait()
    daemons[first] = boot(first)
    await_state("back", first, lambda words: not words & {"REBOOT_ISSUED", "DOWN", "NOT_RESPONDING"})
    call("scancel", job)
    await_state("issued after the job", second, lambda words: words >= {"REBOOT_ISSUED", "DOWN"})
    ran(first, second)
    daemons[second].kill()
    daemons[second].wait()
    # Until here nothing had to be done within a time: it begins to count for a node that has been told to reboot.
    config = CONFIG / "slurm.conf"
    config.write_text(config.read_text().replace(*plan["reboots"]["patience"]))
    call("scontrol", "reconfigure")
    await_state("given up", second, lambda words: "REBOOT_ISSUED" not in words)
    call("scontrol", "update", f"nodename={second}", "state=drain", f"reason={plan['reboots']['given_up']}")
    daemons[second] = boot(second)
    await_state("back late", second, lambda words: not words & {"DOWN", "NOT_RESPONDING"})
    result["told in the end"] = told()
    for each in daemons.values():
        each.kill()
    return result


def placements(plan: dict[str, Any]) -> dict[str, Any]:
    """Which nodes jobs get that are submitted one after the other, and keep them; and then one that gets none."""
    everyone = [controller(plan["files"]), *map(boot, plan["nodes"])]
    await_output("every node is idle", "sinfo", "--noheader", "--Node", "--format=%T", accept=is_idle)
    for options in plan["placements"]:
        job = submit("--exclusive", "--output=/dev/null", "--wrap=sleep 600", *options).stdout.strip()
        given = ("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        await_output("the job has nodes", *given, accept=str.strip)
    result = {
        "topology": call("scontrol", "show", "topology"),
        "jobs": [given for _job, given in sorted(allocated().items(), key=lambda item: int(item[0]))],
    }
    late = submit("--exclusive", "--output=/dev/null", "--wrap=true", *plan["never"])
    if late.returncode == 0:
        await_refusal(late.stdout.strip())
    result["never"] = allocated().get(late.stdout.strip(), [])
    for each in everyone:
        each.kill()
    return result


def boot(node: str) -> subprocess.Popen[bytes]:
    return start(node, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec slurmd -D -b', node)


def line(node: str) -> str:
    """What the health service reads of a node."""
    return call("scontrol", "--oneliner", "show", "node", node).strip()


def answers(plan: dict[str, Any]) -> dict[str, Any]:
    """What Slurm answers to each command: its status, and both outputs. No node is there, and no hook does anything."""
    HOOKS.mkdir(parents=True)
    for name in ("resume", "suspend", "resume-fail", "prolog"):
        (HOOKS / name).symlink_to("/bin/true")
    daemon = controller(plan["files"])
    done = [subprocess.run(words, capture_output=True, text=True, check=False) for words in plan["questions"]]
    daemon.kill()
    return {"answers": [[each.returncode, each.stdout + each.stderr] for each in done]}


def catalogue(plan: dict[str, Any]) -> dict[str, Any]:
    """A node of every shape."""
    result: dict[str, Any] = {}
    daemon = controller(plan["real"])
    result["real"] = nodes()
    result["gres"] = {
        node: subprocess.run(["slurmd", "-G", "-N", node], capture_output=True, text=True, check=False).stderr
        for node in plan["with_gpus"]
    }
    daemon.terminate()
    daemon.wait(timeout=PATIENCE_S)

    daemon = controller(plan["emulated"])
    everyone = [
        start(node, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec slurmd -D', node) for node in plan["nodes"]
    ]
    result["emulated"] = idle_nodes()
    result["jobs"] = jobs(plan["jobs"])
    for child in (*everyone, daemon):
        child.kill()
    return result


if __name__ == "__main__":
    main()
