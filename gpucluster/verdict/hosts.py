"""Checks of hosts, users, shares and logins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.advisories import evaluate
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Reaction, Scope, Status
from gpucluster.text import count
from gpucluster.verdict.expectation import Expectation, cluster_check, every_host

APPLY = "Run: gpucluster apply"
_ABSENT = "absent"


def _result(failure: str, good: str, **evidence: Any) -> CheckOutcome:
    return CheckOutcome(Status.FAIL if failure else Status.PASS, failure or good, evidence)


@cluster_check(
    "hosts answer", "hostname", scope=Scope.HOST, subjects=every_host,
    remedy="See what answers under its address: gpucluster ssh HOST",
)  # fmt: skip
def _host_answers(seen: Measurements, _expected: Expectation, host: str) -> CheckOutcome:
    name = str(seen["hostname"])
    return _result("" if name == host else f"has the host name {name}", name)


@cluster_check(
    "the home share is one file system", "home_fs", "home_token_seen", scope=Scope.HOST, reaction=Reaction.DRAIN,
    subjects=lambda expected: expected.hosts if expected.home_mount_path else (),
    remedy=f"Look at `systemctl status` of the mount on the host. {APPLY}",
)  # fmt: skip
def _home_share(seen: Measurements, _expected: Expectation, _host: str) -> CheckOutcome:
    mount = seen["home_fs"]
    if not mount["mounted"]:
        return CheckOutcome(Status.FAIL, "not mounted")
    failure = "" if seen["home_token_seen"] else "does not have the file that the controller wrote"
    return _result(failure, f"{mount['source']}", source=mount["source"])


def _no_users(expected: Expectation, _subject: str) -> str:
    return "" if expected.people else "there are no users yet"


@cluster_check(
    "users have accounts", "user_ids", scope=Scope.HOST, reaction=Reaction.DRAIN, applies=_no_users,
    subjects=every_host,
    remedy=f"Look at `journalctl -u sssd` on the host. {APPLY}",
)  # fmt: skip
def _users_resolve(seen: Measurements, expected: Expectation, _host: str) -> CheckOutcome:
    ids: Mapping[str, str] = seen["user_ids"]
    unknown = [person for person in expected.people if not ids[person]]
    failures = [f"does not know {', '.join(unknown)}"] if unknown else []
    for person, gid in expected.people.items():
        group = ids[person].partition(":")[2]
        if ids[person] and group != str(gid):
            failures.append(f"{person} is in group {group}, not {gid}")
    return _result("; ".join(failures), count(len(expected.people), "user"))


@cluster_check(
    "hosts know the groups of the directory", "group_ids", scope=Scope.HOST, reaction=Reaction.DRAIN,
    subjects=lambda expected: expected.hosts if expected.directory_groups else (),
    remedy="On the controller: sudo gpucluster-agent directory check. On the host: journalctl -u sssd",
)  # fmt: skip
def _directory_groups(seen: Measurements, expected: Expectation, _host: str) -> CheckOutcome:
    """Of a directory that exists nothing else is known: its users come and go."""
    ids: Mapping[str, str] = seen["group_ids"]
    unknown = [name for name in expected.directory_groups if not ids[name]]
    return _result(
        f"does not know {', '.join(unknown)}" if unknown else "", count(len(expected.directory_groups), "group")
    )


@cluster_check(
    "users have the same ids on all hosts", "all_user_ids", applies=_no_users,
    subjects=lambda expected: ("",) if expected.whole else (),
    remedy=f"Remove what is in /etc/passwd of a host under the same name. {APPLY}",
)  # fmt: skip
def _users_agree(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    by_host: Mapping[str, Mapping[str, str]] = seen["all_user_ids"]
    failures = []
    for person in expected.people:
        ids = sorted({known[person] for known in by_host.values() if known[person]})
        if len(ids) > 1:
            failures.append(f"{person} has different ids: {', '.join(ids)}")
    return _result("; ".join(failures), f"{', '.join(expected.people)} on {count(len(by_host), 'host')}")


@cluster_check(
    "users reach no service of the cloud's own", "cloud_services", scope=Scope.HOST, subjects=every_host,
    remedy=f"{APPLY}, or on the host: sudo gpucluster-metadata",
)  # fmt: skip
def _cloud_services(seen: Measurements, _expected: Expectation, _host: str) -> CheckOutcome:
    """Who reaches the metadata service has the instance's identity; who reaches the boot volume has what is on it."""
    reached, by_root = seen["cloud_services"]["nobody"], seen["cloud_services"]["root"]
    if reached:
        return CheckOutcome(Status.FAIL, f"any user reaches the {' and the '.join(reached)}")
    # What root does not reach either is not evidence about the rules.
    good = "neither metadata nor boot volume"
    return CheckOutcome(Status.PASS, good if by_root else f"{good}; root does not reach the metadata either")


@cluster_check(
    "firewalls are open to the cluster's hosts", "firewall", scope=Scope.HOST, subjects=every_host,
    remedy="See `journalctl -u gpucluster-firewall` on the host",
)  # fmt: skip
def _firewall(seen: Measurements, _expected: Expectation, _host: str) -> CheckOutcome:
    state, words = seen["firewall"]["state"], seen["firewall"]["words"]
    return _result("" if state == "open" else words or "gpucluster-firewall has not run", words or state)


@cluster_check(
    "each node's own drives are one file system", "local_disk", scope=Scope.HOST, reaction=Reaction.DRAIN,
    subjects=lambda expected: tuple(expected.local_drives),
    remedy="See `lsblk`, and the log of cloud-init (/var/log/cloud-init-output.log), on the host",
)  # fmt: skip
def _own_drives(seen: Measurements, expected: Expectation, host: str) -> CheckOutcome:
    disk: Mapping[str, Any] = seen["local_disk"]
    mounted, drives = disk["mounted"], expected.local_drives[host]
    if not mounted and disk["state"] == _ABSENT and expected.hardware_emulated:
        return CheckOutcome(Status.SKIP, "the hardware is emulated: there is no drive")
    if not mounted:
        return CheckOutcome(Status.FAIL, str(disk["words"] or f"nothing is mounted at {disk['path']}"))
    if disk["fstype"] != "xfs":
        return CheckOutcome(Status.FAIL, f"{disk['fstype']} is mounted at {disk['path']}")
    drives_text = f"{disk['drives']} of {drives} drives"
    return _result(drives_text if disk["drives"] < drives else "", drives_text)


@cluster_check(
    "RDMA interfaces have addresses", "rdma_addresses", scope=Scope.HOST, reaction=Reaction.DRAIN,
    subjects=lambda expected: expected.rdma_addressed,
    remedy="See `ip address`, and the log of cloud-init (/var/log/cloud-init-output.log), on the host",
)  # fmt: skip
def _rdma_addresses(seen: Measurements, expected: Expectation, _host: str) -> CheckOutcome:
    state, words = seen["rdma_addresses"]["state"], seen["rdma_addresses"]["words"]
    if state == _ABSENT and expected.hardware_emulated:
        return CheckOutcome(Status.SKIP, "the hardware is emulated: there is no RDMA interface")
    return _result("" if state == "addressed" else words or "its user data did not run", words or state)


@cluster_check(
    "nodes reach each other by ssh", "mesh", scope=Scope.NODE,
    applies=lambda expected, _node: "" if expected.people else "there is no user who could log in",
    subjects=lambda expected: expected.nodes if expected.scheduler == "none" else (),
    remedy=f"Try it as the user: ssh NODE hostname. {APPLY}",
)  # fmt: skip
def _mesh(seen: Measurements, expected: Expectation, _node: str) -> CheckOutcome:
    """Each node reaches the next one, and the last one the first. So a user can reach all nodes from any of them."""
    following, reached, error = (seen["mesh"][key] for key in ("next", "reached", "error"))
    if following and reached == following:
        return CheckOutcome(Status.PASS, f"{following}, as {next(iter(expected.people))}")
    return CheckOutcome(Status.FAIL, f"to {following or 'the next'}: {error or f'{reached} answered'}")


@cluster_check(
    "login nodes reach Slurm", "slurm_error", scope=Scope.HOST,
    subjects=lambda expected: expected.login if expected.scheduler == "slurm" else (),
    remedy=f"See `sinfo` and `journalctl -u munge` on the login node. {APPLY}",
)  # fmt: skip
def _login_slurm(seen: Measurements, _expected: Expectation, _host: str) -> CheckOutcome:
    return _result(str(seen["slurm_error"]), "sinfo answers")


@cluster_check(
    "only operators log in to the controller", "ssh_groups", "user_groups",
    subjects=lambda expected: ("",) if expected.login else (),
    remedy=f"Look at AllowGroups of `sshd -T` on the controller. {APPLY}",
)  # fmt: skip
def _controller_logins(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    admitted, groups = seen["ssh_groups"], seen["user_groups"]
    users = [person for person in expected.people if expected.operators not in groups[person]]
    failures = [f"its ssh server lets {each} in" for each in users if not admitted or set(admitted) & set(groups[each])]
    good = f"of {count(len(expected.people), 'user')}, {len(expected.people) - len(users)}"
    return _result("; ".join(failures), good, ssh_groups=list(admitted))


@cluster_check(
    "hosts run no version with a known fault", "versions", scope=Scope.HOST, subjects=every_host,
    remedy="See what to do: gpucluster exposure",
)  # fmt: skip
def _known_faults(seen: Measurements, expected: Expectation, _host: str) -> CheckOutcome:
    """Of a Slurm that was built, `slurm_advisories` says it once for the cluster."""
    try:
        versions = evaluate.host_versions(seen["versions"])
    except ValueError as error:
        return CheckOutcome(Status.UNKNOWN, str(error))
    found = [
        fault
        for fault in versions.faults(expected.today)
        if fault.standing is evaluate.Standing.KNOWN and not (fault.product == "slurm" and expected.slurm_version)
    ]
    evidence = {"versions": seen["versions"]}
    if found:
        return CheckOutcome(
            Status.WARN, "; ".join(f"{each.product} {each.version}: {each.title}" for each in found), evidence
        )
    return CheckOutcome(Status.PASS, f"none is known of {count(len(versions.installed), 'version')}", evidence)


CHECKS = (
    _host_answers,
    _home_share,
    _users_resolve,
    _directory_groups,
    _users_agree,
    _cloud_services,
    _firewall,
    _known_faults,
    _login_slurm,
    _controller_logins,
    _own_drives,
    _rdma_addresses,
    _mesh,
)
