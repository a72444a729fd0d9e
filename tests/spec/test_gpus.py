"""`gpus.mig` of a pool: what it means when it is right, and each error at its place (§)."""
# A row of the tables is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster.spec import loads
from tests.spec.faults import findings
from tests.spec.spec_texts import LOCAL, MARK, MINIMAL, marked

SHAPE, POOL = "shape: BM.GPU4.8", "    count: 2"


def mig(text: str) -> str:
    """The mark stands where the text has it, else before `mig`."""
    return f"{POOL}\n    gpus: {{{'' if MARK in text else MARK}mig: {text}}}"


H100 = "shape: BM.GPU.H100.8"
# id: (shape, what stands in `mig` with § at the error, path below pools.compute.gpus, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "eight of seven": (H100, '[{§mig_devices: {"1g.10gb": 8}}]', "mig[0].mig_devices", "H100-80GB holds at most 7 x 1g.10gb, and not 8"),
    "3g, 4g and 1g": (H100, '[{§mig_devices: {"3g.40gb": 1, "4g.40gb": 1, "1g.10gb": 1}}]', "mig[0].mig_devices", "need 8 slices of compute, and H100-80GB has 7"),
    "profile of another GPU": (SHAPE, '[{mig_devices: {§"1g.18gb": 7}}]', "mig[0].mig_devices.1g.18gb", "A100-40GB has no profile"),
    "no profile": (H100, "[{mig_devices: §{}}]", "mig[0].mig_devices", "must have at least 1 entry"),
    "no instance": (H100, '[{mig_devices: {"1g.10gb": §0}}]', "mig[0].mig_devices.1g.10gb", "at least 1"),
    "no devices": (H100, '[{devices: §[], mig_devices: {"1g.10gb": 7}}]', "mig[0].devices", "must have at least 1 entry"),
    "GPU that is not there": (H100, '[{devices: [0, §8], mig_devices: {"1g.10gb": 7}}]', "mig[0].devices[1]", "BM.GPU.H100.8 has 8 GPUs, from 0 to 7; got 8"),
    "GPU twice": (H100, '[{devices: [0], mig_devices: {"1g.10gb": 7}}, {devices: [1, §0], mig_devices: {"1g.10gb": 7}}]', "mig[1].devices[1]", "GPU 0 is divided twice"),
    "all and others": (H100, '[§{mig_devices: {"1g.10gb": 7}}, {devices: [0], mig_devices: {"1g.10gb": 7}}]', "mig[0]", "is for all GPUs, for it has no `devices`"),
    "mapping": (H100, '§{"1g.10gb": 7}', "mig", "must be a list"),
    "mig-parted's own spelling": (H100, '[{§mig-devices: {"1g.10gb": 7}, mig_devices: {"1g.10gb": 7}}]', "mig[0].mig-devices", "Did you mean mig_devices"),
    "A10": ("shape: BM.GPU.A10.4", '[{mig_devices: {"1g.10gb": 7}}]', "mig", "the GPUs of BM.GPU.A10.4 can't be divided (MIG)"),
    "AMD": ("shape: BM.GPU.MI300X.8", '[{mig_devices: {"1g.10gb": 7}}]', "mig", "the GPUs of BM.GPU.MI300X.8 can't be divided (MIG)"),
    "no GPUs": ("shape: BM.HPC2.36", '[{mig_devices: {"1g.10gb": 7}}]', "mig", "BM.HPC2.36 has no GPU"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_wrong_division_is_refused_at_its_place(row: tuple[str, str, str, str]) -> None:
    shape, text, path, words = row
    text = LOCAL.replace(SHAPE, shape).replace(POOL, mig(text))
    text, line, column = marked(text)
    (found,) = findings(text)
    assert found[:3] == (line, column, f"pools.compute.gpus.{path}")
    assert words in found[3]


SEVEN = LOCAL.replace(SHAPE, H100).replace(POOL, mig('[{mig_devices: {"1g.10gb": 7}}]').replace(MARK, ""))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("scheduler: none\n", "GPUs are divided for Slurm and Kubernetes, and the scheduler is none"),
        ("scheduler: kubernetes\nkubernetes: {control_plane: oke}\n", "OKE makes these nodes"),
        ("scheduler: kubernetes\n", ""),
    ],
)
def test_gpus_are_divided_where_gpucluster_configures_the_nodes_for_a_scheduler(more: str, says: str) -> None:
    text = SEVEN.replace("count: 2", "count: 2\n    managed: true") if "oke" in more else SEVEN
    found = [each[3] for each in findings(f"{more}{text}") if each[2] == "pools.compute.gpus.mig"]
    assert bool(found) == bool(says)
    assert says in "".join(found)


def test_a_quota_counts_instances_that_a_pool_makes() -> None:
    quota = 'scheduler: kubernetes\nkubernetes: {user_quota: {gpu_instances: {"1g.10gb": 14, "1g.20gb": 2}}}\n'
    (found,) = [each for each in findings(f"{quota}{SEVEN}") if "user_quota" in each[2]]
    assert found[2] == "kubernetes.user_quota.gpu_instances.1g.20gb"
    assert 'no pool divides its GPUs into "1g.20gb". Did you mean 1g.10gb?' in found[3]
    divided = 'shape: BM.GPU.H100.8, count: 1, gpus: {mig: [{mig_devices: {"1g.10gb": 7}}]}'
    text = MINIMAL.replace("shape: BM.GPU4.8, count: 1", divided)
    spec = loads(quota.replace(', "1g.20gb": 2', "") + text)
    assert spec.kubernetes.user_quota.gpu_instances == {"1g.10gb": 14}


def test_groups_of_gpus_and_the_rest_whole() -> None:
    groups = (
        '[{devices: [1, 0], mig_devices: {"3g.40gb": 1, "1g.10gb": 2}}, {devices: [3], mig_devices: {"7g.80gb": 1}}]'
    )
    text = LOCAL.replace(SHAPE, H100).replace(
        POOL, mig(groups).replace(MARK, "").replace("count: 2", "count: 2\n    max_count: 4")
    )
    pool = loads(text).pools["compute"]
    three = "3g.40gb:0,1g.10gb:4,1g.10gb:5"
    assert pool.mig_parts == (three, three, "", "7g.80gb:0", "", "", "", "")
    assert pool.elastic


def test_without_it_nothing_is_divided() -> None:
    assert loads(LOCAL).pools["compute"].mig_parts == ()
