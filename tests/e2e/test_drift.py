"""Drift on a cluster of the local cloud, with the real Terraform, systemd, dpkg, Slurm and slapd: nothing where the
cluster works as it should, and each thing that is changed by hand.

The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import pipeline_steps
from tests.e2e import budget
from tests.e2e.site_harness import ENDLESS, NETWORK, PATIENCE_TO_BUILD_S, Site, container_of_instance
from tests.localcloud.api_harness import Api
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(3 * PATIENCE_TO_BUILD_S)]

CONTROLLER, NODE, ELASTIC = "drift-controller", "compute-1", "burst-e1"
CLUSTER_YML = f"""\
version: 1
name: drift
cloud: {{provider: local}}
{NETWORK}\
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, state_volume_gb: 50}}
pools:
  compute: {{shape: BM.GPU4.8, count: 1}}
  burst: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 0, max_count: 1, idle_timeout: 3600}}
containers: {{runtimes: []}}
monitoring: {{enabled: true}}
logs: {{keep_days: 30}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
    - {{name: olga, full_name: Olga Example, groups: [privilege], generate_key: true}}
"""
PASSWORD = "hunter2-Zq8"
PLANTED = "a-line-of-the-test"
#: What a look must not change on a host: all configuration and programs, with the times of files; what apply recorded.
FILES = (
    "find /etc /usr/local /opt/gpucluster /home /root /var/lib/gpucluster/applied.json /var/lib/gpucluster-directory "
    "-xdev ! -path '*/__pycache__*' ! -path '*/.ssh*' -printf '%p %m %U %G %T@ %s\\n' | sort; "
    "find /etc /usr/local -xdev -type f -exec sha256sum {} + | sort; "
    # Without what each login makes and ends.
    "systemctl list-unit-files --no-legend --no-pager | grep -v transient; grep -v ' /run/' /proc/self/mounts | sort"
)
#: And of what is on the controller alone.
SERVICES = (
    "slapcat -f /etc/ldap/gpucluster.conf 2>/dev/null; scontrol show partition; scontrol show reservation; "
    "scontrol -o show node | sed 's/CPULoad=[^ ]*//; s/FreeMem=[^ ]*//'; "
    "sacctmgr -n -P list associations format=cluster,account,user,maxsubmit"
)
SUFFIX = "dc=drift,dc=local"
PEOPLE = f"ou=people,{SUFFIX}"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        yield made


@pytest.fixture(scope="module")
def api(site: Site) -> Api:
    return Api(site.home, engine="podman")


def drift(site: Site) -> tuple[int, dict[str, Any]]:
    """The exit code, and the result."""
    code, events = site.run("drift")
    assert events[-1]["kind"] == "result", events[-3:]
    data = events[-1]["data"]
    assert "findings" in data, events[-1]
    return code, data


def named(data: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    return {(each["area"], each["where"], each["what"], each["name"]) for each in data["findings"]}


def clean(site: Site) -> None:
    code, data = drift(site)
    assert not data["findings"], data["findings"]
    assert not data["unseen"], data["unseen"]
    assert code == 0
    assert data["hosts"] == [CONTROLLER, NODE]


def world(site: Site, api: Api) -> dict[str, list[str]]:
    """All that a look could change: hosts, services, state, cloud."""
    seen = {host: site.root(host, FILES) for host in (CONTROLLER, NODE)}
    seen["services"] = site.root(CONTROLLER, SERVICES)
    state = site.folder / ".gpucluster" / "terraform.tfstate"
    seen["state"] = state.read_text() if state.exists() else _states(site)
    compartment = api.tenancy
    vcns = api.network.list_vcns(compartment).data
    seen["cloud"] = json.dumps(
        [
            str(listed)
            for listed in (
                api.compute.list_instances(compartment).data,
                api.block.list_volumes(compartment_id=compartment).data,
                api.compute.list_volume_attachments(compartment).data,
                *(api.network.list_security_lists(compartment_id=compartment, vcn_id=each.id).data for each in vcns),
            )
        ]
    )
    # The state has secrets, which no failure of a test may show.
    seen["state"] = hashlib.sha256(seen["state"].encode()).hexdigest()
    return {name: text.splitlines() for name, text in seen.items()}


def changes(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {line}" for name in before for line in sorted({*before[name]} ^ {*after[name]})]


def _states(site: Site) -> str:
    files = sorted((site.folder / ".gpucluster").rglob("*.tfstate"))
    assert files
    return "".join(file.read_text() for file in files)


def test_a_fresh_cluster_has_no_drift_and_a_look_changes_nothing(site: Site, api: Api) -> None:
    site.good("apply")
    # It is completing for a moment after the jobs by which apply has checked it.
    site.until("the node is idle", lambda: site.root(CONTROLLER, f"sinfo -h -n {NODE} -o %T") == "idle")
    before = world(site, api)
    with budget.held(site, "drift"):
        clean(site)
    assert changes(before, world(site, api)) == []
    # And apply has nothing to do afterwards.
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]


def test_a_pipeline_plans_applies_that_plan_and_finds_no_drift(site: Site, tmp_path: Path) -> None:
    """The steps of docs/how-to/pipelines/github.yml, which tests/cli/test_pipelines.py tries for their refusals."""
    path = f"{Path(sys.executable).parent}:{site.env['PATH']}"
    env = {**site.env, "PATH": path, "GPUCLUSTER_FILE": str(site.file)}
    env |= {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    identity = ["-c", "user.name=ci", "-c", "user.email=ci@example.org"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "a"], cwd=tmp_path, check=True)
    for job, name in (("plan", "Plan"), ("apply", "Apply"), ("drift", "Drift")):
        [step] = [each for each in pipeline_steps.steps("github", job) if each.name == name]
        done = pipeline_steps.run(step, tmp_path, env)
        assert done.returncode == 0, (name, done.stdout[-2000:], done.stderr[-2000:])
    assert (tmp_path / "plan.md").read_text() == (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert json.loads((tmp_path / "cluster.plan").read_text())["cluster"] == "drift"


def test_what_a_cluster_does_by_itself_is_none(site: Site) -> None:
    job = site.as_alice(f"sbatch --parsable -p burst -o /dev/null --wrap '{ENDLESS}'")
    site.runs(job)
    assert ELASTIC in site.root(CONTROLLER, f"squeue -h -j {job} -o %N")
    clean(site)
    site.root(CONTROLLER, f"scancel {job}")

    site.good("rotate", "all", "--yes")
    clean(site)

    site.good("user", "add", "bob", "--full-name", "Bob Example")
    site.good("group", "add", "lab")
    site.confirmed("group", "add-member", "lab", "bob")
    site.root(CONTROLLER, f"printf '{PASSWORD}\\n{PASSWORD}\\n' | ldappasswd -Y EXTERNAL -Q -H "
              f"ldapi://%2Frun%2Fslapd%2Fldapi -T /dev/stdin uid=bob,{PEOPLE} || true")  # fmt: skip
    clean(site)


def test_a_drain_by_the_health_service_is_none(site: Site) -> None:
    """Only what is really wrong on the node is said: its share is not mounted."""

    def reason() -> str:
        return site.root(CONTROLLER, f"sinfo -h -n {NODE} -o %E")

    site.root(NODE, "umount --lazy /mnt/home; /usr/local/lib/gpucluster/health-check || true")
    site.until("it is drained", lambda: "gpucluster: check failed: mounts" in reason())
    code, data = drift(site)
    assert (code, named(data)) == (10, {("hosts", NODE, "mount", "/mnt/home")})
    site.root(NODE, "mount /mnt/home")
    site.until(
        "it is back", lambda: not site.root(NODE, "/usr/local/lib/gpucluster/health-check") and reason() == "none"
    )
    clean(site)


def _open_port(api: Api) -> str:
    """A rule in a security list of the cluster, as by the console; returns the name of the list."""
    import oci

    models = oci.core.models
    (vcn,) = api.network.list_vcns(api.tenancy).data
    lists = api.network.list_security_lists(compartment_id=api.tenancy, vcn_id=vcn.id).data
    found = next(each for each in lists if "private" in each.display_name)
    rule = models.IngressSecurityRule(protocol="6", source="203.0.113.0/24")
    api.network.update_security_list(
        found.id,
        models.UpdateSecurityListDetails(ingress_security_rules=[*found.ingress_security_rules, rule]),
    )
    return str(found.display_name)


def _orphan(api: Api, identity: str) -> None:
    import oci

    details = oci.core.models.CreateVolumeDetails(
        compartment_id=api.tenancy,
        availability_domain=api.domain,
        display_name="drift-by-hand",
        size_in_gbs=50,
        freeform_tags={"gpucluster": "drift", "gpucluster-id": identity},
    )
    made = api.block.create_volume(details).data.id
    wait_for("the volume is there", lambda: api.block.get_volume(made).data.lifecycle_state == "AVAILABLE")


LDIF = f"""\
dn: uid=mallory,{PEOPLE}
objectClass: inetOrgPerson
objectClass: posixAccount
uid: mallory
cn: Mallory
sn: Mallory
uidNumber: 10900
gidNumber: {{gid}}
homeDirectory: /mnt/home/mallory
loginShell: /bin/bash
"""
CHANGES = f"""\
dn: uid=bob,{PEOPLE}
changetype: modify
replace: loginShell
loginShell: /bin/sh

dn: cn=privilege,ou=groups,{SUFFIX}
changetype: modify
add: memberUid
memberUid: bob
"""
BY_HAND: dict[tuple[str, str, str, str], tuple[str, str]] = {
    ("hosts", NODE, "file", "/etc/security/limits.d/90-gpucluster.conf"): (
        NODE, f"echo '# {PASSWORD}' >> /etc/security/limits.d/90-gpucluster.conf",
    ),
    ("hosts", CONTROLLER, "file", "/etc/slurm/slurmdbd.conf"): (CONTROLLER, "chmod 644 /etc/slurm/slurmdbd.conf"),
    ("hosts", NODE, "unmanaged file", "/etc/sudoers.d/by-hand"): (
        NODE, "echo 'bob ALL=(ALL) ALL' > /etc/sudoers.d/by-hand",
    ),
    ("hosts", NODE, "unmanaged file", "/etc/passwd"): (NODE, "useradd --system by-hand"),
    ("hosts", NODE, "file", "/usr/local/sbin/gpucluster-firewall"): (NODE, "rm -f /usr/local/sbin/gpucluster-firewall"),
    ("hosts", NODE, "unit", "gpucluster-proc.service"): (NODE, "systemctl stop gpucluster-proc.service"),
    ("hosts", CONTROLLER, "unit", "gpucluster-health.service"): (
        CONTROLLER, "systemctl stop gpucluster-health; systemctl disable gpucluster-health 2> /dev/null",
    ),
    ("hosts", NODE, "package", "sssd-tools"): (NODE, "dpkg --purge --force-depends sssd-tools"),
    ("slurm", "slurmctld", "partition", "compute state"): (
        CONTROLLER, "scontrol update partitionname=compute state=down",
    ),
    ("slurm", "slurmctld", "node", f"{NODE} Weight"): (CONTROLLER, f"scontrol update nodename={NODE} weight=7"),
    ("slurm", "slurmctld", "config", "SlurmctldDebug"): (CONTROLLER, "scontrol setdebug debug"),
    ("slurm", "slurmctld", "reservation", "mine"): (
        CONTROLLER,
        f"scontrol create reservation reservationname=mine starttime=now duration=60 users=alice nodes={NODE}",
    ),
    ("directory", "directory", "entry", "user mallory"): (CONTROLLER, "mallory"),
    ("directory", "directory", "entry", "user bob"): (CONTROLLER, "changes"),
    ("directory", "directory", "entry", "group privilege"): (CONTROLLER, ""),
    ("accounts", "accounting", "association", "eve"): (
        CONTROLLER, "sacctmgr --immediate add user eve account=default",
    ),
}  # fmt: skip
#: Consequences that are told as well.
ALSO = {("accounts", "accounting", "association", "mallory")}


def _ldap(site: Site, program: str, text: str) -> None:
    site.root(CONTROLLER, f"{program} -Q -Y EXTERNAL -H ldapi://%2Frun%2Fslapd%2Fldapi <<'END'\n{text}\nEND")


def test_what_is_changed_by_hand_is_found_and_named(site: Site, api: Api) -> None:
    identity = site.good("output")["outputs"]["identity"]["id"]
    _open_port(api)
    _orphan(api, identity)
    (attached,) = [
        each.id for each in api.compute.list_volume_attachments(api.tenancy).data if each.lifecycle_state == "ATTACHED"
    ]
    api.compute.detach_volume(attached)
    wait_for(
        "the volume is detached",
        lambda: api.compute.get_volume_attachment(attached).data.lifecycle_state == "DETACHED",
    )
    for host, command in BY_HAND.values():
        if command == "mallory":
            gid = site.root(CONTROLLER, "getent group people | cut -d : -f 3")
            _ldap(site, "ldapadd", LDIF.format(gid=gid))
        elif command == "changes":
            _ldap(site, "ldapmodify", CHANGES)
        elif command:
            site.root(host, command)
    code, data = drift(site)
    assert code == 10
    assert data["unseen"] == []
    found = named(data)
    cloud = {each for each in found if each[0] == "cloud"}
    assert found - cloud - ALSO == set(BY_HAND), data["findings"]
    assert {(each[1].rpartition(".")[0], each[3]) for each in cloud if each[2] == "resource"} == {
        ("module.network.oci_core_security_list", "ingress_security_rules"),
        ("module.state_volume[0].oci_core_volume_attachment", ""),
    }
    assert [each[1] for each in cloud if each[2] == "volume"] == ["drift-by-hand"]
    assert len(cloud) == 3
    text = json.dumps(data)
    assert PASSWORD not in text
    assert all(each["fix"] and each["expected"] != each["seen"] for each in data["findings"]), data["findings"]
    (rule,) = [each for each in data["findings"] if each["name"] == "ingress_security_rules"]
    assert "203.0.113.0/24" in rule["seen"]
    shown = site.plain("drift")
    assert shown.returncode == 10
    report = shown.stdout[shown.stdout.index("\ncloud\n") + 1 :].splitlines()
    assert len(report) <= 24
    assert max(map(len, report)) <= 80


def test_what_the_findings_name_puts_it_right(site: Site, api: Api) -> None:
    """First what apply does not do, by the commands that the findings name."""
    _, data = drift(site)
    for each in data["findings"]:
        if each["name"] == "/etc/passwd":
            site.root(each["where"], "userdel by-hand")
        elif each["what"] == "unmanaged file":
            site.root(each["where"], f"rm {each['name']}")
        fix = each["fix"].rpartition(": ")[2]
        if fix.startswith("gpucluster apply") or each["area"] == "cloud":
            continue
        if each["name"] == "mallory":
            assert each["area"] == "accounts", "that goes with the entry"
        else:
            words = shlex.split(fix)
            assert words[0] == "gpucluster", fix
            more = ["--shell", "/bin/bash"] if each["name"] == "user bob" else []
            if words[1] in ("user", "group"):
                site.confirmed(*words[1:], *more)
            else:
                done = site.plain(*words[1:], *more)
                assert done.returncode == 0, (fix, done.stdout, done.stderr)
    (volume,) = [each for each in api.block.list_volumes(compartment_id=api.tenancy).data
                 if (each.display_name, each.lifecycle_state) == ("drift-by-hand", "AVAILABLE")]  # fmt: skip
    api.block.delete_volume(volume.id)
    site.good("apply", "--yes")
    clean(site)


def test_a_host_that_is_off_is_named_and_one_that_does_not_answer_is_not_clean(site: Site, api: Api) -> None:
    saved = json.loads((site.folder / ".gpucluster" / "hosts.json").read_text())["hosts"]
    (instance,) = [host["booted"] for host in saved if host["name"] == NODE]
    container = container_of_instance(site, instance)

    def ssh(verb: str) -> None:
        subprocess.run(["podman", "exec", container, "systemctl", verb, "ssh.service"], check=True, capture_output=True)

    ssh("stop")
    # An open connection would go on.
    config = str(site.folder / ".gpucluster" / "ssh" / "config")
    subprocess.run(["ssh", "-F", config, "-O", "exit", NODE], check=False, capture_output=True)
    code, data = drift(site)
    ssh("start")
    assert (code, data["findings"], data["hosts"]) == (11, [], [CONTROLLER]), data
    assert [(each["area"], each["where"]) for each in data["unseen"]] == [("hosts", NODE)]

    _collect(site, f"logger -t planted {PLANTED}")
    api.compute.instance_action(instance, "STOP")
    wait_for("it is off", lambda: api.compute.get_instance(instance).data.lifecycle_state == "STOPPED")
    code, data = drift(site)
    assert code == 10
    assert [(each["what"], each["name"], each["seen"]) for each in data["findings"]] == [
        ("instance", "state", "STOPPED")
    ], data
    assert NODE in {each["where"] for each in data["unseen"]}
    _kept_lines(site)
    api.compute.instance_action(instance, "START")
    wait_for("it runs", lambda: api.compute.get_instance(instance).data.lifecycle_state == "RUNNING")
    # For Slurm it may have been idle all the time: a node has minutes to answer. And sshd answers before all runs. The
    # name of a host that is off is not in the configuration of ssh: drift writes it again.
    site.until("it is seen again", lambda: drift(site)[1]["unseen"] == [])
    booted = ("running", "degraded")
    site.until("it has booted", lambda: site.ssh(NODE, "systemctl is-system-running").stdout.strip() in booted)
    site.until("it takes jobs", lambda: site.root(CONTROLLER, f"sinfo -h -n {NODE} -o %T") == "idle")
    clean(site)
    # The next round goes on behind the last line, in the journal of another boot.
    _collect(site, f"logger -t planted after {PLANTED}")
    lines = site.good("logs", NODE, "--kept", "--grep", rf"planted\[\d+\]: (after )?{PLANTED}")["lines"]
    assert [line.partition(": ")[2] for line in lines] == [PLANTED, f"after {PLANTED}"]


def _collect(site: Site, on_node: str) -> None:
    """Let a node do something, and the controller read its journal afterwards."""
    site.root(NODE, f"{on_node}; journalctl --sync")
    # A round of the timer may run, which had asked before.
    site.root(CONTROLLER, "systemctl stop gpucluster-logs.service; systemctl start gpucluster-logs.service")


def _kept_lines(site: Site) -> None:
    """A host that is off is shown from what the controller has kept."""
    found = site.good("logs", NODE, "--grep", rf"planted\[\d+\]: {PLANTED}", "--since", "-1d")
    assert [line.partition(": ")[2] for line in found["lines"]] == [PLANTED]
    assert found["collected"] > 0
    assert {CONTROLLER, NODE} <= set(site.good("logs", "--kept")["kept"])
    assert site.root(CONTROLLER, "stat -c %a /var/lib/gpucluster/logs") == "700"
    assert "gpucluster_logs_silent_hosts" in site.root(CONTROLLER, "cat /var/lib/gpucluster/metrics/logs.prom")


def test_the_controller_looks_by_itself(site: Site) -> None:
    def looked() -> dict[str, str]:
        # A look of the timer may run, which had asked before.
        site.root(CONTROLLER, "systemctl stop gpucluster-drift.service; systemctl start gpucluster-drift.service")
        text = site.root(CONTROLLER, "cat /var/lib/gpucluster/metrics/drift.prom")
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    assert site.root(CONTROLLER, "systemctl is-active gpucluster-drift.timer") == "active"
    found = {name: value for name, value in looked().items() if "timestamp" not in name}
    assert set(found.values()) == {"0"}, (found, site.root(CONTROLLER, "journalctl -n 30 -u gpucluster-drift"))
    counted = 'gpucluster_drift_findings{{area="{}",host="{}"}}'
    places = (("hosts", CONTROLLER), ("hosts", NODE), ("slurm", ""), ("directory", ""), ("accounts", ""))
    assert {counted.format(*place) for place in places} <= set(found)

    site.root(NODE, "echo '# by hand' >> /etc/security/limits.d/90-gpucluster.conf")
    site.root(CONTROLLER, "scontrol update partitionname=compute state=drain")
    found = looked()
    assert found[counted.format("hosts", NODE)] == "1"
    assert found[counted.format("slurm", "")] == "1"
    file = "/etc/security/limits.d/90-gpucluster.conf"
    said = f"{NODE}: file {file}: expected as apply left it, seen other content"
    # The journal has it some time after the service has said it.
    written = "journalctl --no-pager -n 30 -o cat -u gpucluster-drift"
    site.until("the journal names it", lambda: said in site.root(CONTROLLER, written))
    # Before apply, which runs a job there.
    site.root(CONTROLLER, "scontrol reconfigure")
    site.good("apply", "--yes")
    assert looked()[counted.format("hosts", NODE)] == "0"
    # A host that does not answer is not known. It has no finding, and that is not 0.
    site.root(NODE, "mv /usr/local/bin/gpucluster-agent /usr/local/bin/gpucluster-agent.away")
    found = looked()
    site.root(NODE, "mv /usr/local/bin/gpucluster-agent.away /usr/local/bin/gpucluster-agent")
    assert counted.format("hosts", NODE) not in found
    assert found[f'gpucluster_drift_unknown{{area="hosts",host="{NODE}"}}'] == "1"
