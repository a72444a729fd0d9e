"""What GPUs are divided into, from outputs in the forms of NVIDIA's MIG User Guide (driver 580)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpucluster.node_agent.mig import collect
from gpucluster.node_agent.mig.collect import Card, ProgramOutput, There, Unreadable
from gpucluster.node_agent.rules.mig import MigInstance

_DEVICE = """
<mig_device><index>{index}</index><gpu_instance_id>{gpu}</gpu_instance_id>
<compute_instance_id>{compute}</compute_instance_id></mig_device>"""
_DIVIDED = """<gpu><minor_number>2</minor_number><uuid>GPU-a</uuid>
<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
<mig_devices>{devices}</mig_devices>
<processes><process_info><pid> 7 </pid><process_name>python</process_name></process_info></processes></gpu>"""
WHOLE = """<gpu><minor_number>0</minor_number><uuid>GPU-b</uuid>
<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode></gpu>"""
#: The GPU instance 9 has no compute instance.
QUERY = f"""WARNING: infoROM is corrupted at gpu 0000:18:00.0
<?xml version="1.0" ?>
<nvidia_smi_log>{_DIVIDED.format(devices=_DEVICE.format(index=0, gpu=2, compute=0))}{WHOLE}</nvidia_smi_log>"""
INSTANCES = """\
+-------------------------------------------------------+
| GPU   Name             Profile  Instance   Placement  |
|   0  MIG 3g.40gb          9        2          4:4     |
|   0  MIG 1g.10gb         19        9          0:1     |
"""
NAMES = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a)
  MIG 3g.40gb     Device  0: (UUID: MIG-3)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-b)
"""
CARDS = (
    Card(
        2, "GPU-a", "Enabled", "Enabled",
        (There(MigInstance("1g.10gb", 0), 9, None, ""), There(MigInstance("3g.40gb", 4), 2, 0, "MIG-3")),
        ("7 (python)",),
    ),
    Card(0, "GPU-b", "Disabled", "Disabled", (), ()),
)  # fmt: skip


def driver(calls: list[str], **changes: ProgramOutput) -> collect.Run:
    """nvidia-smi that prints the outputs above; it notes its calls with their limits."""
    answers = {"-q": ProgramOutput(0, QUERY), "mig": ProgramOutput(0, INSTANCES), "-L": ProgramOutput(0, NAMES)}
    answers.update(changes)

    def run(argv: Sequence[str], seconds: float) -> ProgramOutput:
        calls.append(f"{' '.join(argv)} {seconds:g}")
        return answers[argv[1]]

    return run


def test_instances_come_by_their_place_with_the_names_that_cuda_has() -> None:
    assert collect.parse(QUERY, INSTANCES, NAMES) == CARDS


def test_the_limit_is_that_of_all_calls_together() -> None:
    calls: list[str] = []
    assert collect.read(driver(calls), 6.0) == CARDS
    assert calls == ["nvidia-smi -q -x 2", "nvidia-smi mig -lgi 2", "nvidia-smi -L 2"]


def test_where_no_gpu_is_divided_one_call_is_enough() -> None:
    calls: list[str] = []
    whole = ProgramOutput(0, f"<nvidia_smi_log>{WHOLE}</nvidia_smi_log>")
    assert collect.read(driver(calls, **{"-q": whole}), 6.0) == CARDS[1:]
    assert len(calls) == 1


def test_an_empty_list_ends_with_a_status_and_is_an_answer() -> None:
    query = ProgramOutput(0, f"<nvidia_smi_log>{_DIVIDED.format(devices='')}</nvidia_smi_log>")
    empty = ProgramOutput(6, "No GPU instances found: Not Found")
    (card,) = collect.read(driver([], **{"-q": query, "mig": empty}), 6.0)
    assert (card.mode, card.instances) == ("Enabled", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"-q": ProgramOutput(None, "")}, "nvidia-smi -q -x ended with status None: no output"),
        ({"mig": ProgramOutput(9, "Driver\nis gone")}, "nvidia-smi mig -lgi ended with status 9: Driver is gone"),
        ({"-q": ProgramOutput(0, QUERY[:-30])}, "cut off or no XML"),
        ({"mig": ProgramOutput(0, INSTANCES.replace("3g.40gb          9        2 ", "3g.40gb   9   8 "))},
         "does not list the GPU instance 2"),
        ({"-L": ProgramOutput(0, NAMES.replace("Device  0", "Device  1"))}, "does not list its MIG device 0"),
        ({"-q": ProgramOutput(0, QUERY.replace("<minor_number>2", "<minor_number>N/A"))}, "'N/A' as minor_number"),
        ({"-q": ProgramOutput(0, QUERY.replace("</mig_devices>", _DEVICE.format(index=1, gpu=2, compute=1) +
                                               "</mig_devices>")),
          "-L": ProgramOutput(0, NAMES.replace("GPU 1:", "  MIG 1c.3g.40gb Device 1: (UUID: MIG-4)\nGPU 1:"))},
         "more than one compute instance"),
    ],
)  # fmt: skip
def test_outputs_that_do_not_belong_together_are_unreadable(changes: dict[str, ProgramOutput], message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        collect.read(driver([], **changes), 6.0)


def test_the_numbers_of_device_files_come_by_what_they_let_use() -> None:
    text = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\nnonsense\ngpu0/gi2/access x\n"
    assert collect.minors(text) == {"config": 1, "monitor": 2, "gpu0/gi1/access": 12, "gpu0/gi1/ci0/access": 13}


def test_a_measurement_of_the_checks_is_json() -> None:
    first, second = collect.to_data(CARDS)
    assert (first["uuid"], first["instances"][1]["uuid"], second["mode"]) == ("GPU-a", "MIG-3", "Disabled")


def test_what_a_program_printed_is_quoted_in_one_line() -> None:
    assert ProgramOutput(1, " a\n  b \n" + "x" * 400).words == f"a b {'x' * 296}"
