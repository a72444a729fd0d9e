"""GPU nodes without a scheduler, for real: a list of hosts, ssh between them, Docker, and containers without root.

Two nodes in a cluster network, and a plain one of another system. The bundle around containerd is a double
(tests/doubles/nerdctl), in a mirror that is a folder; Docker, containerd, its user namespaces, sessions and units are
real. The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from tests.doubles.nerdctl import OCI, bundle
from tests.e2e.containers_harness import MPI_IMAGE
from tests.e2e.site_harness import (
    PATIENCE_TO_BUILD_S,
    ROOT,
    Site,
    all_pass,
    containers,
    networks,
    worked_example,
)
from tests.mirror import Mirror
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

# Not the pinned version: the mirror's own list states the checksum of its file then.
VERSION = "2.99.0"
SOFTWARE = f"  mirror: mirror\n  versions: {{nerdctl: {VERSION}}}\n"
# What plans of the other example show. `software` is the last of its file.
ONE_NODE = worked_example("seed-001-single-node").rstrip() + "\n" + SOFTWARE
PLAIN_POOL = """\
  plain:
    shape: BM.GPU4.8
    count: 1
    rdma: false
    boot_volume_gb: 200
    image: {operating_system: Oracle Linux, version: "9"}
"""
# alice may use Docker, which gives root's rights, and bob may not. `users` is the last of the file.
CLUSTER_YML = (
    worked_example("seed-000-static")
    .replace("\nslurm:\n", f"{PLAIN_POOL}\nslurm:\n")
    .replace("runtimes: [docker]", "runtimes: [docker, containerd]")
    .rstrip()
    + "\n    - {name: bob, uid: 10002, generate_key: true}\n"
    + f"software:\n  timezone: Asia/Tokyo\n  denied_modules: [rxrpc]\n{SOFTWARE}"
)
CONTROLLER, PLAIN = "seed-000-controller", "plain-1"
NODES = ("gpu-1", "gpu-2", PLAIN)
UNITS = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb", "slapd", "sssd")
IMAGE = "registry.example/marker:1"
DATA = "/mnt/localdisk/containers/containerd"
MAKE_IMAGE = f"""
set -e
root=$(mktemp -d)
for program in /bin/sh /bin/cat /bin/id; do
    cp --parents -L $program $(ldd $program | grep -o '/[^ ]*') $root
done
mkdir -p $root/proc $root/sys $root/dev $root/etc $root/run
echo inside > $root/marker
python3 - $root {IMAGE} ~/marker.tar
rm -r $root
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(ONE_NODE) as made:
        bundle(Mirror(made.folder / "mirror"), VERSION)
        yield made


def image_of(site: Site, host: str) -> bytes:
    """A root file system with a shell, of the host's own files, as `docker import` takes it."""
    script = (
        "set -e; d=$(mktemp -d); mkdir -p $d/bin $d/etc; cp /bin/dash $d/bin/sh; cp /bin/cat $d/bin/cat;"
        "for f in /bin/dash /bin/cat; do ldd $f | grep -o '/[^ ]*' | while read l; do"
        ' mkdir -p "$d$(dirname $l)"; cp -n $l "$d$l"; done; done;'
        "echo inside > $d/etc/marker; tar -C $d -c .; rm -r $d"
    )
    packed = _bytes(site, host, script)
    with tarfile.open(fileobj=io.BytesIO(packed)) as image:
        assert "./etc/marker" in image.getnames()
    return packed


def _bytes(site: Site, host: str, command: str, stdin: bytes = b"") -> bytes:
    argv = ["ssh", "-F", str(site.folder / ".gpucluster" / "ssh" / "config")]
    argv += ["-o", f"ConnectTimeout={PATIENCE_S / 2:.0f}", host, command]
    return subprocess.run(argv, input=stdin, capture_output=True, timeout=PATIENCE_S, check=True).stdout


def as_bob(site: Site, script: str, stdin: str = "") -> str:
    """What a user does: log in to the controller, and on to the node."""
    done = site.ssh(CONTROLLER, f"ssh -o BatchMode=yes {PLAIN} {shlex.quote(script)}", who="bob", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_preflight_and_plan_create_nothing(site: Site) -> None:
    found = site.good("preflight")
    assert [finding for finding in found["findings"] if finding["level"] == "error"] == []
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 3
    changes = {change["address"]: change["action"] for change in events[-1]["data"]["changes"]}
    assert set(changes.values()) == {"create"}
    rdma = ("oci_core_cluster_network", "oci_core_compute_cluster")
    assert not [address for address in changes if any(kind in address for kind in rdma)]
    assert containers(site.home) == []


def test_apply_builds_nodes_as_in_the_file_and_nothing_of_a_scheduler(site: Site) -> None:
    site.write(CLUSTER_YML)
    result = site.good("apply")
    checks = {check["name"]: check["status"] for check in result["checks"]}
    assert all_pass(result), result["checks"]
    assert checks["nodes reach each other by ssh"] == "pass"
    assert checks["users have accounts"] == "pass"
    for host in (CONTROLLER, *NODES):
        running = site.ssh(host, f"systemctl is-active {' '.join(UNITS)}").stdout.split()
        assert set(running) == {"inactive"}, (host, running)
        deny = "systemctl is-active gpucluster-denied-modules; grep -h ^install /etc/modprobe.d/gpucluster-denied.conf"
        assert site.ssh(host, deny).stdout.split("\n")[:2] == ["active", "install rxrpc /bin/false"], host
    assert "nfs" not in site.ssh("gpu-1", "findmnt --noheadings --output FSTYPE").stdout
    assert len(containers(site.home)) == 4
    said = site.plain("ssh", PLAIN, "--", "readlink /etc/localtime; cloud-init status; id -un")
    assert said.stdout.split() == ["/usr/share/zoneinfo/Asia/Tokyo", "status:", "done", "opc"], said.stderr


def test_the_second_apply_changes_nothing(site: Site) -> None:
    result = site.good("apply")
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_the_list_of_hosts_and_the_mesh(site: Site) -> None:
    assert site.as_alice("cat /etc/gpucluster/hostlist").split() == list(NODES)
    assert site.as_alice("cat /etc/gpucluster/hostfile").splitlines() == [f"{node} slots=8" for node in NODES]
    hop = "ssh -o BatchMode=yes gpu-1 ssh -o BatchMode=yes gpu-2 'hostname; id -un; id -u'"
    assert site.as_alice(hop).split() == ["gpu-2", "alice", "10001"]


def test_only_a_member_of_privilege_runs_a_container_in_docker(site: Site) -> None:
    _bytes(site, "gpu-1", "sudo docker import - local/marker", image_of(site, "gpu-1"))
    ssh = "ssh -o BatchMode=yes gpu-1"
    assert site.as_alice(f"{ssh} docker run --rm --network none local/marker /bin/cat /etc/marker") == "inside"
    assert "permission denied" in as_bob(site, "docker ps 2>&1 || true").lower()


def test_mpirun_spans_containers_of_two_nodes_as_the_page_documents(site: Site) -> None:
    """The page's own commands. Left out are GPUs and RDMA devices, which no node of the local cloud has."""
    page = (ROOT / "docs" / "how-to" / "container-runtimes.md").read_text()
    section = page.partition("\n## mpirun over containers")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    blocks = ["\n".join(line[4:] for line in block.splitlines()) for block in found]
    server, mpirun = (block.replace("\\\n", " ") for block in blocks)
    for word, here in {
        "--gpus all ": "", "--device=/dev/infiniband ": "", " IMAGE ": " local/mpi ", "-np 16": "-np 4",
        "gpu-1:8,gpu-2:8": "gpu-1:2,gpu-2:2", "python train.py": "ranks",
    }.items():  # fmt: skip
        assert word in server + mpirun, word
        server, mpirun = server.replace(word, here), mpirun.replace(word, here)
    run = server.partition(" local/mpi ")[0].replace(" -d", " --rm", 1)
    for node in ("gpu-1", "gpu-2"):
        site.as_alice(f"ssh -o BatchMode=yes {node} bash -s", stdin=MPI_IMAGE)
    other = site.as_alice("ssh -o BatchMode=yes gpu-2 sh -s", stdin=server)
    listens = "ssh -o BatchMode=yes gpu-2 ss -Hltn 'sport = :12345'"
    try:
        site.until("the server of the mesh listens", lambda: site.as_alice(listens))
        said = site.as_alice("ssh -o BatchMode=yes gpu-1 bash -s", stdin=f"{run} local/mpi sh -c {shlex.quote(mpirun)}")
    finally:
        site.as_alice(f"ssh -o BatchMode=yes gpu-2 docker rm --force {other}")
    wanted = [f"rank {rank} of 4 on gpu-{rank // 2 + 1}: sum 6" for rank in range(4)]
    assert sorted(said.splitlines()) == wanted


def test_a_user_runs_a_container_without_any_preparation(site: Site) -> None:
    as_bob(site, MAKE_IMAGE, stdin=OCI)
    assert as_bob(site, "id -nG; id -u").split() == ["people", "10002"]
    said = as_bob(site, f"nerdctl load -i marker.tar && nerdctl run --rm {IMAGE} /bin/sh -c 'id -u; cat /marker'")
    assert said.splitlines()[-2:] == ["0", "inside"], said


def test_what_containers_leave_lies_on_the_local_disk(site: Site) -> None:
    place = f"{DATA}/user-10002"
    assert as_bob(site, f"stat -c '%u %a' {place}").split() == ["10002", "700"]
    found = as_bob(site, f"find {place} -path '*io.containerd.*' -type f | head -1; find ~ -path '*containerd*'")
    assert found.startswith(place)
    assert len(found.splitlines()) == 1, found


def test_roots_containers_are_refused(site: Site) -> None:
    assert "password is required" in as_bob(site, "sudo -n nerdctl info 2>&1 || true")
    socket = "/run/gpucluster-containerd/containerd.sock"
    assert "permission denied" in as_bob(site, f"ctr -a {socket} version 2>&1 || true")


def test_the_usual_set_up_command_works_as_well(site: Site) -> None:
    said = as_bob(site, f"containerd-rootless-setuptool.sh install && nerdctl run --rm {IMAGE} /bin/cat /marker")
    assert "Your containerd runs" in said
    assert said.splitlines()[-1] == "inside"


def test_the_plan_is_empty_then(site: Site) -> None:
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]


def test_destroy_leaves_nothing(site: Site) -> None:
    site.good("destroy")
    assert containers(site.home) == []
    assert networks(site.home) == []
