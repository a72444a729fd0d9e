"""Runs inside a container of the base image: a plan on standard input, what the real Slurm made of it on the output.

Each node has a host name (its own UTS namespace) and an address (of the loopback device), so that slurmd runs on the
configuration as it is, once for each shape and all at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CONFIG = Path("/etc/slurm")
STATE = Path("/var/lib/slurm/slurmctld")
RUN = Path("/run/gpucluster-test")


def call(*argv: str, timeout: float = 30) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}\n{logs()}")
    return done.stdout


def logs() -> str:
    return "\n".join(f"== {file.name}\n{file.read_text()[-1500:]}" for file in sorted(RUN.glob("*.log"))[:6])


def until(what: str, *argv: str, accept: Any = bool, seconds: float = 30) -> str:
    """The output of a command, asked for until it is right."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0 and accept(done.stdout):
            return done.stdout
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: {done.stdout}{done.stderr}\n{logs()}")
        time.sleep(0.1)


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
    daemon = start("slurmctld", "slurmctld", "-D")
    until("slurmctld does not answer", "scontrol", "ping", accept=lambda text: "UP" in text)
    return daemon


def nodes() -> dict[str, dict[str, str]]:
    """What `scontrol show node` says of each node."""
    found = {}
    for line in call("scontrol", "--oneliner", "show", "node").splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        found[facts["NodeName"]] = facts
    return found


def jobs(wanted: dict[str, list[str]]) -> dict[str, str]:
    """One batch job for each node, all at a time; what each said: host, processors, GPUs."""
    script = "echo $(hostname) $SLURM_CPUS_ON_NODE $SLURM_GPUS_ON_NODE"
    outputs = {node: RUN / f"{node}.out" for node in wanted}
    for node, options in wanted.items():
        call("sbatch", f"--nodelist={node}", f"--output={outputs[node]}", f"--wrap={script}", *options)
    until("the jobs do not end", "squeue", "--noheader", accept=lambda text: not text.strip())
    return {node: file.read_text().strip() if file.exists() else "no output" for node, file in outputs.items()}


def prepare(plan: dict[str, Any]) -> None:
    RUN.mkdir()
    CONFIG.mkdir(exist_ok=True)
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
    until("munge does not answer", "munge", "-n")
    for node in plan["nodes"]:
        Path("/var/lib/slurm/slurmd", node).mkdir(parents=True)
    for minor, name in enumerate(plan["devices"]):
        device = Path(name)
        device.parent.mkdir(exist_ok=True)
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(195, minor))
    for name in plan["emulated_files"]:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def main() -> None:
    plan = json.load(sys.stdin)
    prepare(plan)
    result: dict[str, Any] = {"version": call("slurmctld", "-V").split()[-1], "seconds": {}}
    began = time.monotonic()

    daemon = controller(plan["real"])
    result["real"] = nodes()
    result["gres"] = {
        node: subprocess.run(["slurmd", "-G", "-N", node], capture_output=True, text=True, check=False).stderr
        for node in plan["with_gpus"]
    }
    daemon.terminate()
    daemon.wait(timeout=20)
    result["seconds"]["real"] = round(time.monotonic() - began, 1)
    began = time.monotonic()

    daemon = controller(plan["emulated"])
    everyone = [
        start(node, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec slurmd -D', node) for node in plan["nodes"]
    ]
    until(
        "not every node is idle",
        *("sinfo", "--noheader", "--Node", "--format=%T"),
        accept=lambda text: set(text.split()) == {"idle"},
    )
    result["emulated"] = nodes()
    result["seconds"]["idle"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    result["jobs"] = jobs(plan["jobs"])
    result["seconds"]["jobs"] = round(time.monotonic() - began, 1)
    for child in (*everyone, daemon):
        child.kill()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
