"""A wrong cluster.yml: each row is one error, the exact place it must be shown at (§), and words that must be in it."""
# A row of the tables is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.spec import loads
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import KEY, LOCAL, MARK, OCI, marked, public_key

SHORT_RSA = public_key("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 128)
LIAR = KEY.replace("ssh-ed25519", "ssh-rsa", 1)
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----"

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "nothing for a section": ("  timezone: UTC", "", "", ""),
    "open list": ("[127.0.0.0/8]", "[127.0.0.0/8", "", ""),
    # --- home
    "relative path": ("mount_path: /mnt/home", "mount_path: §mnt/home", "storage.home.mount_path", "absolute path"),
    "slash at the end": ("mount_path: /mnt/home", "mount_path: §/mnt/home/", "storage.home.mount_path", "without a slash at the end"),
    "two slashes": ("mount_path: /mnt/home", "mount_path: §/mnt//home", "storage.home.mount_path", "absolute path"),
    "dots": ("mount_path: /mnt/home", "mount_path: §/mnt/../etc", "storage.home.mount_path", "must not contain . or .."),
    "blank in a path": ("mount_path: /mnt/home", "mount_path: §/mnt/my home", "storage.home.mount_path", "absolute path"),
    "root": ("mount_path: /mnt/home", "mount_path: §/", "storage.home.mount_path", "absolute path"),
    "home of the login user": ("mount_path: /mnt/home", "mount_path: §/home", "storage.home.mount_path", "belongs to the system"),
    "under etc": ("mount_path: /mnt/home", "mount_path: §/etc/home", "storage.home.mount_path", "belongs to the system"),
    "dots in the export": ("export_path: /mnt/home", "export_path: §/a/./b", "storage.home.export_path", "must not contain . or .."),
    # --- containers, releases, clusters without a scheduler
    "runtime twice": ("software:", "containers: {runtimes: [docker, §docker]}\nsoftware:", "containers.runtimes[1]", "docker occurs twice"),
    "unknown runtime": ("software:", "containers: {runtimes: [§podman]}\nsoftware:", "containers.runtimes[0]", 'must be enroot or docker or containerd; got "podman"'),
    "nobody pulls": ("software:", "containers: {runtimes: [enroot], §pull: [a/b]}\nsoftware:", "containers.pull", "needs docker or containerd among the runtimes"),
    "image with a space": ("software:", 'containers: {runtimes: [docker], pull: [§"a b"]}\nsoftware:', "containers.pull[0]", "must be the name of an image"),
    "no days of retention": ("software:", "monitoring: {retention_days: §0}\nsoftware:", "monitoring.retention_days", "at least 1; got 0"),
    "retention of no size": ("software:", "monitoring: {retention_gb: §0}\nsoftware:", "monitoring.retention_gb", "at least 1; got 0"),
    "Slurm asked too often": ("software:", "monitoring: {slurm_interval: §1}\nsoftware:", "monitoring.slurm_interval", "at least 10; got 1"),
    "a hang too soon": ("software:", "monitoring: {hang_seconds: §5}\nsoftware:", "monitoring.hang_seconds", "at least 30; got 5"),
    "a silent hang too soon": ("software:", "monitoring: {silent_hang_seconds: §59}\nsoftware:", "monitoring.silent_hang_seconds", "at least 60; got 59"),
    "idle too soon": ("software:", "monitoring: {idle_minutes: §4}\nsoftware:", "monitoring.idle_minutes", "at least 5; got 4"),
    "what never follows a hang": ("software:", "monitoring: {on_hang: §kill}\nsoftware:", "monitoring.on_hang", 'must be tell or requeue or cancel; got "kill"'),
    "what never follows a hang of a partition": ("software:", "monitoring: {on_hang_by_partition: {compute: §stop}}\nsoftware:", "monitoring.on_hang_by_partition.compute", 'must be tell or requeue or cancel; got "stop"'),
    "a hang in no partition": ("software:", "monitoring: {on_hang_by_partition: {§big: tell}}\nsoftware:", "monitoring.on_hang_by_partition.big", 'there is no partition "big". Known are: '),
    "idle jobs that end before they are idle": ("software:", "monitoring: {idle_minutes: 60, end_idle_jobs_minutes: §30}\nsoftware:", "monitoring.end_idle_jobs_minutes", "30 is less than monitoring.idle_minutes, which is 60"),
    "a requeue without checks": ("software:", "checks: {enabled: false}\nmonitoring: {on_hang: §requeue}\nsoftware:", "monitoring.on_hang", "the health service does this, and checks.enabled is false"),
    "stacks without checks": ("software:", "checks: {enabled: false}\nmonitoring: {hang_stacks: §true}\nsoftware:", "monitoring.hang_stacks", "the health service does this, and checks.enabled is false"),
    "stacks of no kind": ("software:", "monitoring: {hang_stacks: §py-spy}\nsoftware:", "monitoring.hang_stacks", 'must be true or false; got "py-spy"'),
    "monitoring on a node": ("software:", "monitoring: {host: §compute-1}\nsoftware:", "monitoring.host", "must be controller, or login-<n>"),
    "monitoring on a login node without any": ("software:", "monitoring: {host: §login-1}\nsoftware:", "monitoring.host", "there is no login node 1: this cluster has no login nodes"),
    "monitoring on a login node that is not there": ("software:", "login: {count: 2, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}\nmonitoring: {host: §login-3}\nsoftware:", "monitoring.host", "there is no login node 3: login.count is 2. Write controller or login-1 to login-2"),
    "no file of Alertmanager": ("software:", "monitoring: {alertmanager_file: §nowhere.yml}\nsoftware:", "monitoring.alertmanager_file", 'there is no file "nowhere.yml"'),
    "empty file of Alertmanager": ("software:", "monitoring: {alertmanager_file: §/dev/null}\nsoftware:", "monitoring.alertmanager_file", "is empty"),
    # --- backups
    "no certificate of backups": ("software:", "backup: {certificate: §nowhere.pem}\nsoftware:", "backup.certificate", 'there is no file "nowhere.pem"'),
    "certificate of backups that is none": ("software:", "backup: {certificate: §/dev/null}\nsoftware:", "backup.certificate", "is not a certificate in PEM"),
    "backups by month": ("software:", "backup: {schedule: §monthly}\nsoftware:", "backup.schedule", "must be hourly, daily, weekly, or days of the week and times of the day"),
    "backups at 25 o'clock": ("software:", 'backup: {schedule: §"25:00"}\nsoftware:', "backup.schedule", "must be hourly, daily, weekly"),
    "a schedule of two lines": ("software:", 'backup: {schedule: §"daily\\nExec=x"}\nsoftware:', "backup.schedule", "must be hourly, daily, weekly"),
    "no backup stays": ("software:", "backup: {keep: §0}\nsoftware:", "backup.keep", "at least 1; got 0"),
    "all backups stay": ("software:", "backup: {keep: §366}\nsoftware:", "backup.keep", "at most 365; got 366"),
    "relative directory of backups": ("software:", "backup: {directory: §backups}\nsoftware:", "backup.directory", "must be an absolute path"),
    "directory of backups with dots": ("software:", "backup: {directory: §/mnt/../etc}\nsoftware:", "backup.directory", "must not contain . or .."),
    "directory of backups that does not last": ("software:", "backup: {directory: §/tmp/demo}\nsoftware:", "backup.directory", "does not last"),
    "repository with a password": ("slurm:\n", "containers: {docker_repository: {url: §'https://a:b@m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}}\nslurm:\n", "containers.docker_repository.url", "must be a URL without a password"),
    "short fingerprint": ("slurm:\n", "containers: {docker_repository: {url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: §621E9F35}}\nslurm:\n", "containers.docker_repository.key_fingerprint", "must be the fingerprint of a key"),
    "two repositories of a system": ("slurm:\n", "nvidia: {repositories: [{system: Debian-12, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}, {system: §Debian-12, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}]}\nslurm:\n", "nvidia.repositories[1].system", "Debian-12 occurs twice"),
    "repository of an unknown system": ("slurm:\n", "nvidia: {repositories: [{system: §Fedora-40, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}]}\nslurm:\n", "nvidia.repositories[0].system", "Fedora-40"),
    "short checksum": ("timezone: UTC", "timezone: UTC\n  checksums: {a.deb: §abc}", "software.checksums.a.deb", "must be a SHA-256"),
    "file in a folder": ("timezone: UTC", f"timezone: UTC\n  checksums: {{§../a: {'0' * 64}}}", "software.checksums.../a", "is not the name of a file"),
    "version in words": ("timezone: UTC", "timezone: UTC\n  versions: {enroot: §newest}", "software.versions.enroot", "must be a version"),
    "branch in words": ("software:", "nvidia: {driver_branch: §open}\nsoftware:", "nvidia.driver_branch", "must be the number of a driver branch"),
    "colon in a full name": ("full_name: Alice Example", 'full_name: §"Alice: Example"', "users.people[0].full_name", "must not contain a colon"),
    "no key": ("      generate_key: true\n", "", "users.people[1]", "bob has no ssh key and could not log in. Add"),
    "key and key": ("      generate_key: true", f"      generate_key: §true\n      ssh_public_keys: [{KEY}]", "users.people[1].generate_key", "bob has a key already"),
    "no name": ("- name: bob\n      generate", "- §generate", "users.people[1].name", "is missing"),
    "text for a person": ("- name: bob\n      generate_key: true", "- §bob", "users.people[1]", "must be keys with values"),
    # --- keys
    "no base64": (f"- {KEY}", "- §ssh-ed25519 AAAA* alice", "users.people[0].ssh_public_keys[0]", "not base64"),
    "cut off": (f"- {KEY}", f"- §{KEY[:52]}", "users.people[0].ssh_public_keys[0]", "cut off"),
    "type alone": (f"- {KEY}", "- §ssh-ed25519", "users.people[0].ssh_public_keys[0]", "the type is there, the key is not"),
    "another type inside": (f"- {KEY}", f"- §{LIAR}", "users.people[0].ssh_public_keys[0]", "begins with ssh-rsa but holds a key of type ssh-ed25519"),
    "short RSA": (f"- {KEY}", f"- §{SHORT_RSA}", "users.people[0].ssh_public_keys[0]", "an RSA key of 1024 bits"),
    "DSA": (f"- {KEY}", "- §ssh-dss AAAA", "users.people[0].ssh_public_keys[0]", "a DSA key"),
    "certificate": (f"- {KEY}", "- §ssh-ed25519-cert-v01@openssh.com AAAA", "users.people[0].ssh_public_keys[0]", "a certificate"),
    "options": (f"- {KEY}", f"- §no-pty {KEY}", "users.people[0].ssh_public_keys[0]", "options"),
    "nonsense": (f"- {KEY}", "- §hello", "users.people[0].ssh_public_keys[0]", "not a public key. It begins with one of"),
    "empty key": (f"- {KEY}", '- §" "', "users.people[0].ssh_public_keys[0]", "the key is empty"),
    "private key": (f"- {KEY}", f"- §|\n          {PRIVATE}\n          b3Bl\n", "users.people[0].ssh_public_keys[0]", "a PRIVATE key. Never give it to anyone"),
    "two keys in one": (f"- {KEY}", f"- §|\n          {KEY}\n          {KEY}\n", "users.people[0].ssh_public_keys[0]", "more than one line"),
    "no such key file": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§nowhere.pub]", "users.people[0].ssh_public_key_files[0]", "there is no file"),
    "home of nobody": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§~nobody-at-all/x.pub]", "users.people[0].ssh_public_key_files[0]", "no user with the home directory"),
    "device as key file": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§/dev/zero]", "users.people[0].ssh_public_key_files[0]", "is not a file"),
    "operator's key": ("software:", "ssh: {public_keys: [§hello]}\nsoftware:", "ssh.public_keys[0]", "the key is not a public key"),
    "private key alone": ("software:", "ssh: {private_key_file: §x}\nsoftware:", "ssh.private_key_file", "a private key without a public one"),
    "default in another partition": ("    max_count: 4", "    max_count: 4\n    partition: gpu\nslurm: {default_partition: §cpu}\nx:", "", ""),
    # --- checks
    "no check": ("storage:", "checks: {off: [mounts, §gpu_cout]}\nstorage:", "checks.off[1]", "there is no check gpu_cout. Did you mean gpu_count"),
    "no check and none like it": ("storage:", "checks: {off: [§xyz]}\nstorage:", "checks.off[0]", "There are: "),
    "checks all the time": ("storage:", "checks: {interval: §1}\nstorage:", "checks.interval", "at least 10; got 1"),
    "nothing may be drained": ("storage:", "checks: {max_drained_percent: §0}\nstorage:", "checks.max_drained_percent", "at least 1; got 0"),
    "no such repair": ("storage:", "checks: {repair: §reset}\nstorage:", "checks.repair", "must be none or reboot"),
    "reports of hosts without checks": ("storage:", "checks: {enabled: false, report_hosts: §true}\nstorage:", "checks.report_hosts", "the autoscaler reports"),
    "a repair without checks": ("storage:", "checks: {enabled: false, repair: §reboot}\nstorage:", "checks.repair", "Slurm reboots nodes"),
    "more than all": ("storage:", "checks: {max_drained_percent: §101}\nstorage:", "checks.max_drained_percent", "at most 100; got 101"),
    "half in the shadow": ("storage:", "checks: {shadow: §1}\nstorage:", "checks.shadow", "true or false"),
    "two opinions on the default": ("    count: 2", "    count: 2\n    default: true", "", ""),
}  # fmt: skip
# Rows that need more than one replacement have tests of their own.
for _special in ("nothing for a section", "two opinions on the default", "open list", "default in another partition"):
    del ROWS[_special]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ((("shape: BM.GPU4.8", "shape: BM.GPU.MI300X.8"),), "pools.compute.shape", "has AMD GPUs"),
        (
            (("count: 2", "count: 2\n    gpus: {mig: [{mig_devices: {3g.20gb: 2}}]}"),),
            "pools.compute.gpus.mig",
            "can't divide a GPU of this machine",
        ),
        (
            (("name: demo", "name: demo\nscheduler: kubernetes"),),
            "cloud.local.gpus",
            "pods of the local cloud can't use",
        ),
    ],
)
def test_gpus_of_this_machine_are_nvidias_whole_ones_for_slurm(
    changes: tuple[tuple[str, str], ...], path: str, words: str
) -> None:
    text = LOCAL.replace("  provider: local\n", "  provider: local\n  local: {gpus: real}\n")
    loads(text)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (found,) = [found for found in findings(text) if found[2] == path]
    assert words in found[3]


def at(path: str, text: str) -> tuple[int, int]:
    """Where the one error with that path was found."""
    (place,) = [found[:2] for found in findings(text) if found[2] == path]
    return place


def test_what_is_missing_is_shown_at_its_section() -> None:
    assert at("network.vcn_cidr", LOCAL.replace("  vcn_cidr: 10.77.0.0/16\n", "")) == (5, 1)
    assert at("pools.compute.shape", LOCAL.replace("    shape: BM.GPU4.8\n", "")) == (19, 3)
    assert at("users.people[1]", LOCAL.replace("      generate_key: true\n", "")) == (37, 7)
    assert at("cloud", LOCAL.replace("cloud:\n  provider: local\n", "")) == (1, 1)


def test_every_fault_is_told_at_once_in_the_order_of_the_file() -> None:
    text = LOCAL
    for old, new in [
        ("name: demo", "name: Demo"),
        ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: x"),
        ("[127.0.0.0/8]", "[0.0.0.0/0]"),
        ("ocpus: 4\n", 'ocpus: "4"\n'),
        ("count: 2", "count: 2\n    count: 3"),
        ("shape: BM.GPU4.8", "shape: BM.GPU5.8"),
        ("name: alice", "name: root"),
        (KEY, "ssh-ed25519"),
        ("timezone: UTC", "timezone: Nowhere/Land\n  tz: x"),
    ]:
        assert old in text
        text = text.replace(old, new, 1)
    paths = [path for _, _, path, _ in findings(text)]
    assert paths == [
        "name",
        "network.vcn_cidr",
        "network.ssh_allowed_cidrs[0]",
        "controller.ocpus",
        "pools.compute.shape",
        "pools.compute.count",
        "users.people[0].name",
        "users.people[0].ssh_public_keys[0]",
        "software.timezone",
        "software.tz",
    ]


def test_a_section_without_anything() -> None:
    text = LOCAL.replace("software:\n  timezone: UTC\n", "software:\n")
    (found,) = findings(text)
    assert found[2:] == ("software", "has no value. Software of every machine.")


# id: (what stands in OCI, what instead, path, words)
OCI_ROWS = {
    "gpus of this machine": ("  provider: oci\n", "  provider: oci\n  §local: {gpus: real}\n", "cloud.local", "has no meaning with provider oci. Delete it"),
    "distributions that differ": ("    image: {ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}\n", '    image: {operating_system: Debian, version: "12"}\nslurm: {release: §distribution}\n', "slurm.release", "controller Ubuntu-24 with Slurm 23.11, pools.h100 Debian-12 with Slurm 22.05"),
    "distribution that is too old": ('version: "24.04"}\npools:', 'version: "22.04"}\nslurm: {release: §distribution}\npools:', "slurm.release", "Ubuntu-22 has Slurm 21.08, and the oldest that can be configured is 22.05"),
    "no region": ("  region: us-ashburn-1\n", "", "cloud.region", "is missing: provider oci needs it. Add `region: us-ashburn-1`"),
    "no compartment": ("  compartment_id: ocid1.compartment.oc1..exampleuniqueid\n", "", "cloud.compartment_id", "is missing"),
    "null compartment": ("ocid1.compartment.oc1..exampleuniqueid", "§null", "cloud.compartment_id", "is missing"),
    "compartment": ("ocid1.compartment.oc1..exampleuniqueid", "§my-compartment", "cloud.compartment_id", "OCID of a compartment"),
    "another OCID": ("ocid1.compartment.oc1..exampleuniqueid", "§ocid1.vcn.oc1..x", "cloud.compartment_id", "OCID of a compartment"),
    "region": ("us-ashburn-1", "§Ashburn", "cloud.region", "name of a region"),
    "no ssh": ("ssh:\n  public_key_file: operator.pub\n", "", "ssh.public_key_file", "is missing: provider oci needs it"),
    "null key": ("operator.pub", "§null", "ssh.public_key_file", "is missing"),
    "no image": ('  image: {operating_system: Canonical Ubuntu, version: "24.04"}', "  boot_volume_gb: 100", "controller.image", "is missing: provider oci needs it"),
    "generated key": (f"ssh_public_keys: [{KEY}]", "generate_key: §true", "users.people[0].generate_key", "for provider local only"),
    "no key file": ("operator.pub", "§nowhere.pub", "ssh.public_key_file", "there is no file"),
    "private key file": ("operator.pub", "§private", "ssh.public_key_file", "is a PRIVATE key. Never give it to anyone"),
    "putty key file": ("operator.pub", "§putty.ppk", "ssh.public_key_file", "is a PRIVATE key"),
    "another format": ("operator.pub", "§other.pub", "ssh.public_key_file", "ssh-keygen -i"),
    "binary": ("operator.pub", "§binary.pub", "ssh.public_key_file", "is not text"),
    "empty file": ("operator.pub", "§empty.pub", "ssh.public_key_file", "holds no key"),
    "two keys": ("operator.pub", "§two.pub", "ssh.public_key_file", "contains 2 keys; the operator has one"),
    "wrong line": ("operator.pub", "§broken.pub", "ssh.public_key_file", "broken.pub line 3 is not a public key"),
    "folder": ("operator.pub", "§folder.pub", "ssh.public_key_file", "is not a file"),
    "large file": ("operator.pub", "§large.pub", "ssh.public_key_file", "too large for a public key"),
    "name without .pub": ("operator.pub", "§operator", "ssh.public_key_file", "the name of the private key does not follow"),
    "no private file": ("operator.pub", "operator.pub\n  private_key_file: §nowhere", "ssh.private_key_file", "there is no file nowhere"),
    "another pair": ("operator.pub", "operator.pub\n  private_key_file: §mine", "ssh.private_key_file", "is neither in `public_key_file` nor in `public_keys`"),
    "a name too long": ("operator.pub", "§" + "x" * 300 + ".pub", "ssh.public_key_file", "can't be read"),
    "a file as folder": ("operator.pub", "§operator.pub/x.pub", "ssh.public_key_file", "can't be read"),
}  # fmt: skip


@pytest.fixture
def key_files(tmp_path: Path) -> Path:
    (tmp_path / "operator.pub").write_text(KEY)
    (tmp_path / "operator").write_text(KEY)
    (tmp_path / "mine").write_text("secret")
    (tmp_path / "mine.pub").write_text(public_key("ssh-ed25519", bytes(32), comment="mine"))
    (tmp_path / "private").write_text(f"{PRIVATE}\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "putty.ppk").write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    (tmp_path / "other.pub").write_text("---- BEGIN SSH2 PUBLIC KEY ----\n")
    (tmp_path / "binary.pub").write_bytes(b"\xff\xfe\0")
    (tmp_path / "empty.pub").write_text("# nothing\n")
    (tmp_path / "two.pub").write_text(f"{KEY}\n{KEY}\n")
    (tmp_path / "broken.pub").write_text(f"{KEY}\n\nsecret words\n")
    (tmp_path / "folder.pub").mkdir()
    (tmp_path / "large.pub").write_text("x" * 70_000)
    return tmp_path


@pytest.mark.parametrize("row", OCI_ROWS.values(), ids=OCI_ROWS.keys())
def test_faults_with_provider_oci(key_files: Path, row: tuple[str, str, str, str]) -> None:
    old, new, path, words = row
    assert old in OCI
    text = OCI.replace(old, new, 1)
    line = column = None
    if MARK in text:
        text, line, column = marked(text)
    (found,) = findings(text, str(key_files / "cluster.yml"))
    assert found[2] == path
    assert words in found[3]
    assert "secret" not in found[3], "what a file holds must not be shown"
    if line is not None:
        assert found[:2] == (line, column)


def test_a_key_file_that_may_not_be_read(key_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    (found,) = findings(OCI, str(key_files / "cluster.yml"))
    assert found[3].endswith("operator.pub can't be read: Permission denied")
