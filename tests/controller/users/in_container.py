"""Runs inside a container of the base image: a real slapd, and the users program in one process.

One JSON object a line on standard input, one answer a line on standard output. It ends with its standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

# Where the container has the program, and tests/waiting.py.
sys.path[:0] = ["/usr/local/bin/gpucluster-agent", "/usr/local/lib/gpucluster-tests"]

from tests.waiting import PATIENCE_S, wait_for  # noqa: E402 - it is found there

SLAPD_CONF = Path("/etc/ldap/test.conf")
CONFIG = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' EQUALITY octetStringMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY MAY ( sshPublicKey $ uid ) )
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload ppolicy
MODULES
authz-regexp "^gidNumber=0[+]uidNumber=0,cn=peercred,cn=external,cn=auth$" "cn=manager,SUFFIX"
disallow bind_anon
TLSCACertificateFile CERTIFICATE
TLSCertificateFile CERTIFICATE
TLSCertificateKeyFile PRIVATE
database mdb
suffix "SUFFIX"
rootdn "cn=manager,SUFFIX"
directory /var/lib/ldap/test
maxsize 1073741824
dbnosync
index objectClass,uid,cn,uidNumber,gidNumber,memberUid eq
overlay ppolicy
ppolicy_default "cn=users,ou=policies,SUFFIX"
"""
#: SSSD sends its password by TLS only.
LOOPBACK = "ldaps://127.0.0.1"
#: ssh gives up after some seconds where the product calls it. Of two equal options the first one counts.
SSH = f"""#!/bin/sh
exec /usr/bin/ssh -oConnectTimeout={PATIENCE_S:.0f} "$@"
"""
CERTIFICATE, CERTIFICATE_KEY = "/etc/ldap/test.pem", "/etc/ldap/test.key"
children: list[subprocess.Popen[bytes]] = []


def until(what: str, *argv: str) -> None:
    """Wait until a program ends well."""

    def answer() -> bool:
        subprocess.run(argv, capture_output=True, text=True, check=True)
        return True

    def said() -> str:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    wait_for(what, answer, ignore=subprocess.CalledProcessError, state=said)


def make_certificate() -> None:
    words = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=ctl")
    files = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", CERTIFICATE_KEY, "-out", CERTIFICATE)
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)


def start_slapd(config: dict[str, Any], access: str, modules: str = "moduleload argon2") -> None:
    data = Path("/var/lib/ldap/test")
    shutil.rmtree(data, ignore_errors=True)
    for folder in (data, Path("/run/slapd")):
        folder.mkdir(parents=True, exist_ok=True)
    SLAPD_CONF.write_text(
        CONFIG.replace("SUFFIX", config["suffix"])
        .replace("MODULES", modules)
        .replace("CERTIFICATE", CERTIFICATE)
        .replace("PRIVATE", CERTIFICATE_KEY)
        + access
    )
    children.append(subprocess.Popen(["slapd", "-d", "0", "-f", str(SLAPD_CONF), "-h", f"{config['uri']} {LOOPBACK}"]))


def start(config: dict[str, Any], *, slurm: bool, access: str, lookup: dict[str, str]) -> str:
    Path("/etc/gpucluster").mkdir()
    Path("/etc/gpucluster/directory.json").write_text(json.dumps(config))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/etc/hosts").write_text("127.0.0.1 localhost\n127.0.0.2 node-1\n192.0.2.1 ctl\n")
    make_certificate()
    start_slapd(config, access)
    start_node()
    until("slapd answers", "ldapwhoami", "-Q", "-Y", "EXTERNAL", "-H", config["uri"])
    be_patient()
    if slurm:
        start_lookup(config, lookup)
        start_slurm(config["slurm"]["cluster"], config["slurm"]["account"])
    return "up"


def start_node() -> None:
    """Another host: this one, by another name and an ssh server."""
    ssh = Path("/usr/local/bin/ssh")
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    key = "/etc/gpucluster/key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    allowed = Path("/root/.ssh/authorized_keys")
    allowed.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(f"{key}.pub", allowed)
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-A"], check=True, capture_output=True)
    keys = [" ".join(file.read_text().split()[:2]) for file in Path("/etc/ssh").glob("ssh_host_*_key.pub")]
    Path("/etc/ssh/ssh_known_hosts").write_text("".join(f"node-1 {key}\n" for key in keys))
    daemon("sshd", "/usr/sbin/sshd", "-D", "-e", "-o", "UsePAM=no", "-o", "ListenAddress=127.0.0.2")
    # Before that, a signal to read its keys again would end it.
    until("sshd listens", "grep", "-m1", "Server listening", "/run/sshd.log")


def start_lookup(config: dict[str, Any], files: dict[str, str]) -> None:
    """The system's own view of users: SSSD, which binds with the entry of the controller."""
    # The name is that of the inventory in tests/ansible/render.py.
    status, said = request('{"operation": "base_tree", "arguments": {"hosts": {"demo-controller": "ocid"}}}')
    assert status == 0, said
    password = json.loads(Path(config["hosts_file"]).read_text())["hosts"]["demo-controller"]["password"]
    for path, text in files.items():
        server = re.sub("ldap_uri = .*", f"ldap_uri = {LOOPBACK}", text)
        Path(path).write_text(server.replace("PASSWORD", password).replace("CERTIFICATE", CERTIFICATE))
        Path(path).chmod(0o600)
    names = Path("/etc/nsswitch.conf")
    names.write_text("passwd: files sss\ngroup: files sss\nhosts: files\n")
    start_sssd()


def start_sssd() -> str:
    """Start SSSD, or start it again. Its cache stays."""
    subprocess.run(["pkill", "-x", "sssd"], check=False)
    until("SSSD has ended", "sh", "-c", "! pgrep -l -r R,S,D,T sssd")
    for socket in Path("/var/lib/sss/pipes").glob("*"):
        if socket.is_socket():
            socket.unlink()
    daemon("sssd", "sssd", "-i", "--logger=stderr")
    here = " && ".join(f"test -S /var/lib/sss/pipes/{name}" for name in ("nss", "ssh", "pam"))
    until("SSSD answers", "sh", "-c", f"{here} || {{ find /var/lib/sss/pipes; tail -n 20 /run/sssd.log; false; }}")
    return "up"


def daemon(name: str, *argv: str) -> None:
    with Path(f"/run/{name}.log").open("wb") as log:
        children.append(subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL))


def start_slurm(cluster: str, account: str) -> None:
    """Accounting on a database of its own, and a controller with one node that is never there."""
    subprocess.run(["ip", "address", "add", "192.0.2.1/24", "dev", "lo"], check=True)
    sql = Path("/run/sql")
    for folder, owner in ((sql, "mysql"), (Path("/run/mysqld"), "mysql"), (Path("/run/munge"), "munge")):
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, owner, owner)
    for folder in (Path("/run/slurmdbd"), Path("/run/slurmctld"), Path("/run/slurm-state")):
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, "slurm", "slurm")
    key = Path("/etc/munge/munge.key")
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    shutil.chown(key, "munge", "munge")
    daemon("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--num-threads=2")
    make = [
        "mariadb-install-db",
        "--user=mysql",
        f"--datadir={sql}",
        "--skip-test-db",
        "--auth-root-authentication-method=socket",
    ]
    subprocess.run(make, check=True, capture_output=True)
    quick = ("--innodb-flush-log-at-trx-commit=0", "--skip-networking", "--innodb-log-file-size=8M")
    daemon(
        "mariadbd",
        "mariadbd",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={sql}",
        "--socket=/run/mysqld/mysqld.sock",
        *quick,
    )
    until("the database answers", "mariadb", "--execute=select 1")
    rights = "create database slurm_acct_db; create user slurm@localhost identified via unix_socket; "
    subprocess.run(["mariadb", f"--execute={rights}grant all on slurm_acct_db.* to slurm@localhost"], check=True)
    settings = Path("/etc/slurm")
    settings.mkdir(exist_ok=True)
    database = settings / "slurmdbd.conf"
    database.write_text(
        "DbdHost=ctl\nSlurmUser=slurm\nPidFile=/run/slurmdbd/slurmdbd.pid\nLogFile=/run/slurmdbd/log\n"
        "MessageTimeout=100\nStorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\nStorageLoc=slurm_acct_db\n"
    )
    database.chmod(0o600)
    shutil.chown(database, "slurm", "slurm")
    (settings / "slurm.conf").write_text(
        f"ClusterName={cluster}\nSlurmctldHost=ctl(192.0.2.1)\nSlurmUser=slurm\nStateSaveLocation=/run/slurm-state\n"
        "SlurmctldPidFile=/run/slurmctld/slurmctld.pid\nSlurmctldLogFile=/run/slurmctld/log\nSelectType=select/cons_tres\n"
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=ctl\nProctrackType=proctrack/linuxproc\n"
        "AccountingStorageEnforce=associations,limits,qos\nAccountingStorageTRES=gres/gpu\nGresTypes=gpu\n"
        # The longest without a warning.
        "MessageTimeout=100\n"
        "NodeName=far State=FUTURE\nPartitionName=main Nodes=ALL Default=YES\n"
    )
    (settings / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    until("munge answers", "munge", "-n")
    daemon("slurmdbd", "runuser", "-u", "slurm", "--", "slurmdbd", "-D")
    until("slurmdbd answers", "sacctmgr", "--noheader", "list", "clusters")
    subprocess.run(["sacctmgr", "--immediate", "add", "cluster", cluster], check=True, capture_output=True)
    words = ("add", "account", account, f"cluster={cluster}", "description=all", "organization=demo")
    subprocess.run(["sacctmgr", "--immediate", *words], check=True, capture_output=True)

    daemon("slurmctld", "slurmctld", "-D")
    until("slurmctld answers", "squeue")


def request(text: str) -> list[Any]:
    requests, entry = (
        importlib.import_module(f"gpucluster.controller.users.{name}") for name in ("requests", "__main__")
    )
    return list(requests.answer(entry.make, text))


def be_patient() -> None:
    """Let the program of this process wait for hosts, SSSD and Slurm longer than it does on a controller."""
    users = "gpucluster.controller.users"
    vars(importlib.import_module(f"{users}.hosts")).update(_PATIENCE_SECONDS=PATIENCE_S, _SECONDS=2 * PATIENCE_S)
    vars(importlib.import_module(f"{users}.nss"))["_KNOWN_SECONDS"] = PATIENCE_S
    vars(importlib.import_module(f"{users}.slurm")).update(
        _SECONDS=PATIENCE_S, _JOBS_END_SECONDS=PATIENCE_S, _RECORDED_SECONDS=PATIENCE_S
    )


def patience(seconds: float) -> str:
    """How long hosts wait for SSSD."""
    hosts = importlib.import_module("gpucluster.controller.users.hosts")
    vars(hosts)["_PATIENCE_SECONDS"] = seconds
    return "set"


def until_ends_well(what: str, argv: list[str]) -> str:
    until(what, *argv)
    return "so it is"


def run(argv: list[str], text: str) -> list[Any]:
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, errors="replace", timeout=3 * PATIENCE_S, check=False
    )
    return [done.returncode, done.stdout, done.stderr]


WORK = {
    "start": start,
    "start_sssd": start_sssd,
    "patience": patience,
    "request": request,
    "run": run,
    "until": until_ends_well,
}


def main() -> None:
    for line in sys.stdin:
        words = json.loads(line)
        try:
            said = {"answer": WORK[words.pop("do")](**words)}  # type: ignore[operator]
        except Exception:
            said = {"fault": traceback.format_exc()}
        sys.stdout.write(json.dumps(said) + "\n")
    for child in children:
        child.kill()


if __name__ == "__main__":
    main()
