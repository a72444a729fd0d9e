"""The agent divides the GPUs of a node: with a double of nvidia-smi (see smi.py), and real files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.mig import apply, plan
from gpucluster.node_agent.rules import mig
from tests.node_agent.checks.measured import NODE
from tests.node_agent.mig.smi import A100, H100, Card, Kind, Smi, uuid, write_minors

SEVEN = ",".join(f"1g.10gb:{start}" for start in range(7))
MIXED = "3g.40gb:4,2g.20gb:0,1g.10gb:2,1g.10gb:3"
PARTS = (SEVEN, MIXED, "")


class Place:
    """A node with three GPUs; the files of the second and the third are not in the order of nvidia-smi."""

    def __init__(self, root: Path, kind: Kind = H100) -> None:
        self.root = root
        self.smi = Smi(kind, [Card(0), Card(2), Card(1)])
        self.slept: list[float] = []
        write_minors(root, 3)

    def apply(self, parts: Sequence[str] = PARTS) -> list[str]:
        node = apply.MigNode(self.root, self.smi, self.slept.append)
        return apply.apply(node, expected(parts))

    def refused(self, parts: Sequence[str] = PARTS) -> str:
        with pytest.raises(plan.NotPossible) as found:
            self.apply(parts)
        # The check of the node reports the same.
        assert apply.last_words(self.root / mig.FOLDER.lstrip("/")) == str(found.value)
        return str(found.value)

    def links(self) -> dict[str, str]:
        folder = self.root / mig.FOLDER.lstrip("/")
        return (
            {file.name: os.readlink(file) for file in folder.iterdir() if file.is_symlink()} if folder.is_dir() else {}
        )

    def names(self) -> list[str]:
        return (self.root / mig.FOLDER.lstrip("/") / mig.NAMES).read_text().splitlines()


def expected(parts: Sequence[str]) -> NodeExpectation:
    return replace(NODE, gpus=3, gpu_model="h100", mig=tuple(parts))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_new_node_is_divided(place: Place) -> None:
    assert place.apply() == [
        "GPU 0: turn MIG mode on", f"GPU 0: make {SEVEN}", "GPU 1: turn MIG mode on", f"GPU 1: make {MIXED}",
    ]  # fmt: skip
    assert [(card.mode, len(card.made)) for card in place.smi.cards] == [
        ("Enabled", 7),
        ("Enabled", 4),
        ("Disabled", 0),
    ]


def test_the_links_lead_to_the_capabilities_of_each_instance(place: Place) -> None:
    place.apply()
    links = place.links()
    devices = mig.devices(PARTS, "h100")
    assert set(links) == {Path(each).name for device in devices for each in device.links}
    # The first: an instance of GPU 0 at slice 0, which the double calls 13: 3 + 13 * 9 is its number in mig-minors.
    assert [links[name] for name in ("gpu00", "compute00", "card00")] == [
        "/dev/nvidia-caps/nvidia-cap120", "/dev/nvidia-caps/nvidia-cap121", "/dev/nvidia0",
    ]  # fmt: skip
    # The large one of nvidia-smi's GPU 1, which is /dev/nvidia2: slice 4 is GPU instance 2.
    (large,) = [device.number for device in devices if device.type == "3g.40gb"]
    assert links[f"gpu{large:02}"] == f"/dev/nvidia-caps/nvidia-cap{3 + 2 * 135 + 2 * 9}"
    assert links[f"card{large:02}"] == "/dev/nvidia2"
    # The GPU that is not divided is the last, and has its own file only.
    assert links[f"gpu{len(devices) - 1:02}"] == "/dev/nvidia1"


def test_the_prolog_of_tasks_finds_the_uuid_of_each_number(place: Place) -> None:
    place.apply()
    devices = mig.devices(PARTS, "h100")
    wanted = [
        uuid((0, 2, 1)[device.gpu], *device.instance) if device.instance else "GPU-1" for device in devices
    ]  # fmt: skip
    assert place.names() == [f"{device.number} {name}" for device, name in zip(devices, wanted)]
    file = place.root / mig.FOLDER.lstrip("/") / mig.NAMES
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_second_run_changes_nothing(place: Place) -> None:
    place.apply()
    before, place.smi.calls = place.links(), []
    assert place.apply() == []
    assert (place.smi.calls, place.links()) == ([], before)


@pytest.mark.parametrize(("kind", "modes"), [(H100, 2), (A100, 0)], ids=["Hopper loses the mode", "Ampere keeps it"])
def test_after_a_boot_the_instances_are_made_again(tmp_path: Path, kind: Kind, modes: int) -> None:
    place = Place(tmp_path, kind)
    place.apply()
    place.smi.boot()
    done = place.apply()
    assert len([line for line in done if "turn MIG mode on" in line]) == modes
    assert [len(card.made) for card in place.smi.cards] == [7, 4, 0]


def test_another_division_replaces_the_instances(place: Place) -> None:
    place.apply()
    place.smi.calls = []
    place.apply((MIXED, MIXED, ""))
    # Compute instances first: the driver refuses to remove a GPU instance that has one. GPU 1 stays as it is.
    assert place.smi.calls == ["mig -i 0 -dci", "mig -i 0 -dgi", f"mig -i 0 -cgi {MIXED} -C"]
    assert len(place.links()) == 3 * 8 + 1


def test_an_instance_without_a_compute_instance_is_made_again(place: Place) -> None:
    place.apply()
    place.smi.cards[0].made[3].compute = False
    assert f"GPU 0: make {SEVEN}" in place.apply()
    assert all(each.compute for each in place.smi.cards[0].made)


def test_a_gpu_with_a_process_stays_as_it_is_and_so_do_the_others(place: Place) -> None:
    place.apply()
    before, place.smi.calls = place.links(), []
    place.smi.cards[1].processes = [(4711, "python3")]
    said = place.refused((MIXED, SEVEN, ""))
    assert said == "GPU 1 is in use and stays as it is (4711 (python3)): drain the node, and apply again"
    assert (place.smi.calls, place.links()) == ([], before)


def test_a_process_is_not_an_obstacle_where_nothing_changes(place: Place) -> None:
    place.apply()
    place.smi.cards[0].processes = [(4711, "python3")]
    assert place.apply() == []


def test_removed_from_the_pool_the_gpus_are_whole_again(place: Place) -> None:
    place.apply()
    assert "GPU 0: turn MIG mode off" in place.apply(())
    assert [(card.mode, card.made) for card in place.smi.cards] == [("Disabled", [])] * 3
    assert place.links() == {}
    # Once: what is divided by hand later stays.
    place.smi.cards[0].mode = "Enabled"
    assert place.apply(()) == []
    assert place.smi.cards[0].mode == "Enabled"


def test_gpus_that_were_divided_by_hand_stay(place: Place) -> None:
    place.smi.cards[0].mode = "Enabled"
    assert place.apply(()) == []
    assert place.smi.calls == []


def test_dcgm_is_stopped_for_a_new_mode_and_runs_again(place: Place) -> None:
    place.smi.active = ["nvidia-dcgm.service"]
    place.smi.cards[0].held_by = ["nvidia-dcgm.service"]
    place.apply()
    assert place.smi.calls[0] == "systemctl stop nvidia-dcgm.service"
    assert place.smi.calls[-1] == "systemctl start --no-block nvidia-dcgm.service"
    assert place.smi.active == ["nvidia-dcgm.service"]


def test_new_instances_alone_stop_no_service(place: Place) -> None:
    place.apply()
    place.smi.active = ["nvidia-dcgm.service"]
    place.smi.calls = []
    place.apply((MIXED, MIXED, ""))
    assert not [call for call in place.smi.calls if call.startswith("systemctl")]


def test_who_holds_a_gpu_for_a_moment_is_waited_for(place: Place) -> None:
    place.smi.cards[0].busy = 2
    place.apply()
    assert len(place.slept) == 2


def test_a_gpu_that_is_held_for_long_is_reported(place: Place) -> None:
    place.smi.active = ["nvidia-dcgm.service"]
    place.smi.cards[0].held_by = [""]
    said = place.refused()
    assert said.startswith("GPU 0: could not turn MIG mode on: In use by another client: ")
    assert "nvidia_drm" in said
    assert place.smi.active == ["nvidia-dcgm.service"]
    assert place.links() == {}


def test_a_mode_that_waits_for_a_restart_is_reported_at_once(place: Place) -> None:
    """As on Ampere where a GPU can't be reset: the status of nvidia-smi is 0."""
    place.smi.cards[0].resets = False
    said = place.refused()
    assert said == (
        "GPU 0: could not turn MIG mode on: the new MIG mode waits for a restart of the host (Not Supported)"
    )
    assert place.slept == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            "Unable to enable MIG Mode for GPU 00000000:07:00.0: Insufficient Permissions\nTerminating early due to "
            "previous errors.\n",
            "must run as root",
        ),
        ("Unable to enable MIG Mode for GPU 00000000:07:00.0: Not Supported\n", "has no MIG"),
        ("Failed to create GPU instances: Insufficient Resources\n", "no room"),
        ("Something new\n", "Something new"),
        ("", "nvidia-smi printed nothing"),
    ],
)
def test_a_refusal_reports_what_to_do(place: Place, answer: str, words: str) -> None:
    place.smi.refuses = answer
    assert words in place.refused()


def test_a_driver_that_does_not_answer_is_reported(place: Place) -> None:
    place.smi.dead = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert "couldn't communicate with the NVIDIA driver" in place.refused()


def test_a_gpu_that_can_not_be_divided_is_reported(place: Place) -> None:
    place.smi.cards[0].mode = "N/A"
    assert place.refused() == "GPU 0 can't be divided: nvidia-smi has 'N/A' as its MIG mode"


def test_a_lost_gpu_is_reported(place: Place) -> None:
    place.smi.cards.pop()
    assert place.refused() == "the driver sees 2 of 3 GPUs"


def test_an_old_driver_has_no_device_files(place: Place) -> None:
    (place.root / "proc/driver/nvidia-caps/mig-minors").write_text("config 1\n")
    assert "older than 450.80" in place.refused()
