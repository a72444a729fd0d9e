"""How the controller is asked for what `status` and `plan` read. `ssh` is a double: it runs the command here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.operations import configuration_record
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.workspace.saved_state import SavedHost, SavedState
from tests.spec.spec_texts import LOCAL, MINIMAL
from tests.workspace.known_hosts import save_controller

# The last argument is the command. `sudo -n` and slurm's programs are doubles beside it.
SSH = '#!/bin/sh\necho "$@" >> "$0.log"\nfor command; do :; done\nexec sh -c "$command"\n'
# What is done on the host that is the last word before `--`.
FAR = '#!/bin/sh\nwhile [ "$1" != -- ]; do last=$1; shift; done\necho "at $last"; shift\nexec sh -c "$*"\n'
SUDO = '#!/bin/sh\nshift\nexec "$@"\n'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    _program(folder, "ssh", SSH)
    _program(folder, "sudo", SUDO)
    return folder


def _program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def controller(tmp_path: Path, programs: Path) -> ControllerConnection:
    save_controller(tmp_path, "demo-controller")
    paths = ClusterPaths(tmp_path / ".gpucluster")
    return ControllerConnection(
        spec=loads(LOCAL, "cluster.yml"),
        paths=paths,
        locate=lambda **_: SavedState(paths).hosts(),
        bastion=lambda: pytest.fail("no bastion"),
        on_event=ignore,
    )


def test_slurms_nodes_are_read_and_the_connection_has_no_more_time_than_the_command(
    controller: ControllerConnection, programs: Path
) -> None:
    _program(programs, "sinfo", "#!/bin/sh\necho compute-1/idle/compute\n")
    assert controller.slurm_nodes() == [{"node": "compute-1", "state": "idle", "partition": "compute"}]
    assert "-o ConnectTimeout=30 " in (programs / "ssh.log").read_text()
    controller.ask("true", timeout=29.5)
    assert "-o ConnectTimeout=29 " in (programs / "ssh.log").read_text()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "sinfo",
            "#!/bin/sh\necho 'slurm_load_partitions: no' >&2\nexit 1\n",
            "Slurm gives no answer: slurm_load_part",
        ),
        ("timeout", "#!/bin/sh\nexit 124\n", "slurmctld is not reached"),
        ("timeout", "#!/bin/sh\nexit 127\n", "it is not installed yet"),
        ("ssh", "#!/bin/sh\necho 'connect to host: No route' >&2\nexit 255\n", "can't be reached: connect to host: No"),
    ],
)
def test_no_answer_is_an_error_with_the_reason(
    controller: ControllerConnection, programs: Path, name: str, text: str, says: str
) -> None:
    _program(programs, name, text)
    with pytest.raises(ToolError, match=says):
        controller.slurm_nodes()


def test_a_controller_that_hangs_is_an_error(controller: ControllerConnection, programs: Path) -> None:
    _program(programs, "ssh", "#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(ToolError, match=r"does not answer within 0\.2 s"):
        controller.ask("true", timeout=0.2)


def test_the_record_is_private_and_read_as_it_was_written(
    controller: ControllerConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_READ", "_WRITE"):
        command = getattr(configuration_record, name)
        monkeypatch.setattr(configuration_record, name, command.replace("/var/lib/gpucluster", str(tmp_path / "lib")))
    record = ConfigurationRecord(controller)
    assert record.read() is None
    record.write({"complete": True, "variables": {"text": "it's; $HOME"}})
    assert record.read() == {"complete": True, "variables": {"text": "it's; $HOME"}}
    (file,) = (tmp_path / "lib").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{ half")
    assert record.read() is None


def test_a_record_that_can_not_be_written_is_an_error_and_the_old_one_stays(
    controller: ControllerConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").write_text("a file where the folder should be")
    command = configuration_record._WRITE.replace("/var/lib/gpucluster", str(tmp_path / "lib"))
    monkeypatch.setattr(configuration_record, "_WRITE", command)
    with pytest.raises(ToolError, match="can't store"):
        ConfigurationRecord(controller).write({"complete": False})
    assert (tmp_path / "lib").read_text().startswith("a file")


def test_ssh_login_takes_a_login_node_that_answers(tmp_path: Path, programs: Path) -> None:
    # The first does not answer: ssh ends with 255.
    _program(programs, "ssh", '#!/bin/sh\nfor word; do [ "$word" != demo-login-1 ] || exit 255; done\n')
    names = ["demo-controller", "demo-login-1", "demo-login-2", "compute-1"]

    def connection(*hosts: str) -> ControllerConnection:
        found = tuple(SavedHost(name, "10.0.0.9", None) for name in hosts)
        paths = ClusterPaths(tmp_path / ".gpucluster")
        return ControllerConnection(
            spec=loads(LOCAL),
            paths=paths,
            locate=lambda **_: found,
            bastion=lambda: pytest.fail("no bastion"),
            on_event=ignore,
        )

    assert connection(*names).ssh_argv("login", ["true"])[-3:] == ["demo-login-2", "--", "true"]
    # Where no other is left, ssh itself reports why.
    assert connection("demo-controller", "demo-login-1").ssh_argv("login")[-1] == "demo-login-1"
    with pytest.raises(InputError, match="there is no host login"):
        connection("demo-controller", "compute-1").ssh_argv("login")


PODS = """\
echo "demo-controller kube-system coredns-1 ReplicaSet"
echo "compute-e1 user-ada train-0 <none>"
echo "compute-e1 kube-system kube-proxy-7 DaemonSet"
echo "compute-2 user-ada other Job"
"""


@pytest.mark.parametrize(
    ("scheduler", "said", "asked"),
    [
        ("slurm", ["jobs run on nodes that are removed now; their owners were notified: 7"], "squeue"),
        ("kubernetes", ["pods run on nodes that are removed now; they end with them: user-ada/train-0"], "kubectl"),
    ],
)
def test_a_stopped_autoscaler_names_what_runs_on_its_nodes(
    tmp_path: Path, programs: Path, scheduler: str, said: list[str], asked: str
) -> None:
    _program(programs, "sudo", '#!/bin/sh\necho "$@" >> "$0.log"\nexec "$@"\n')
    for name, text in {"rm": "", "systemctl": "", "squeue": "echo 7", "scontrol": "", "kubectl": PODS}.items():
        _program(programs, name, f'#!/bin/sh\necho {name} >> "{programs}/asked.log"\n{text}\n')
    text = LOCAL if scheduler == "slurm" else f"{MINIMAL}scheduler: kubernetes\n"
    events: list[Event] = []
    spec = loads(text, "cluster.yml")
    controller = ControllerConnection(
        spec=spec,
        paths=ClusterPaths(tmp_path / ".gpucluster"),
        locate=lambda **_: (SavedHost(f"{spec.name}-controller", "10.0.0.9", None),),
        bastion=lambda: pytest.fail("no bastion"),
        on_event=events.append,
    )
    controller.stop_autoscaler(["compute-e1"], "the cluster is being removed")
    assert [each.message for each in events] == said
    # An API server that does not answer hinders nothing.
    _program(programs, "kubectl", "#!/bin/sh\nexit 1\n")
    assert {"squeue", "kubectl"} & set((programs / "asked.log").read_text().split()) == {asked}
    events.clear()
    controller.stop_autoscaler(["compute-e1"], "the cluster is being removed")
    assert [each.message for each in events] == (said if scheduler == "slurm" else [])


def test_an_elastic_node_is_reached_from_the_controller(tmp_path: Path, programs: Path) -> None:
    """A program in the place of ssh runs what the far side would: the words arrive as they were given."""
    _program(
        programs,
        "ssh",
        '#!/bin/sh\nwhile [ "$1" != -- ]; do last=$1; shift; done; echo "at $last"; shift; sh -c "$*"\n',
    )
    spec = loads(
        LOCAL.replace(
            "pools:\n",
            "pools:\n  burst: {shape: VM.Standard.E5.Flex, ocpus: 1, memory_gb: 8, count: 0, max_count: 2}\n",
        )
    )
    found = (SavedHost("demo-controller", "10.0.0.9", None),)
    paths = ClusterPaths(tmp_path / ".gpucluster")
    connection = ControllerConnection(
        spec=spec, paths=paths, locate=lambda **_: found, bastion=lambda: pytest.fail("no bastion"), on_event=ignore
    )
    argv = connection.ssh_argv("cpu-e2", ["echo", "'a  b'; echo $((1 + 1))"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["at demo-controller", "at cpu-e2", "a  b", "2"]
    assert connection.ssh_argv("cpu-e2")[-3:] == ["ssh", "-t", "cpu-e2"]
    for other in ("cpu-e0", "cpu-e999", "cpu-ex", "other-e1"):
        with pytest.raises(InputError, match=f"there is no host {other}"):
            connection.ssh_argv(other)
