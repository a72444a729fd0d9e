"""Rules for elastic pools: counts, times and prices."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import json_schema, load, loads
from tests.spec.faults import reported
from tests.spec.spec_texts import LOCAL
from tests.spec.test_spec import _against_schema

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "elastic without accounting": ("accounting: true", "accounting: §false", "slurm.accounting", "the elastic pool cpu needs it"),
    "two idle times in one partition": (
        "    max_count: 4",
        "    max_count: 4\n    partition: gpu\n  more:\n    shape: BM.GPU4.8\n    partition: gpu\n    max_count: 1\n    idle_timeout: §60",
        "pools.more.idle_timeout",
        "is 60, but 600 in pool cpu: both are in the partition gpu",
    ),
    "partition of Slurm's own": ("    max_count: 4", "    max_count: 4\n    partition: §default", "pools.cpu.partition", "the name default is reserved"),
    "partition in capitals": ("    max_count: 4", "    max_count: 4\n    partition: §GPU", "pools.cpu.partition", "lower-case"),
    "unknown time": ("software:", "autoscaler: {times: {§cooldown: 1}}\nsoftware:", "autoscaler.times.cooldown", "unknown time. Did you mean cool_down"),
    "time of nothing": ("software:", "autoscaler: {times: {cool_down: §0}}\nsoftware:", "autoscaler.times.cool_down", "must be above 0"),
    "time in words": ("software:", "autoscaler: {times: {cool_down: §5m}}\nsoftware:", "autoscaler.times.cool_down", 'must be a number; got "5m"'),
    "quoted time": ("software:", 'autoscaler: {times: {cool_down: §"5"}}\nsoftware:', "autoscaler.times.cool_down", "Write it without quotes: 5"),
    "no nodes at all": ("software:", "autoscaler: {max_nodes: §0}\nsoftware:", "autoscaler.max_nodes", "at least 1"),
    "cap without prices": ("software:", "autoscaler: {§max_cost_per_hour: 10}\nsoftware:", "autoscaler.max_cost_per_hour", "needs the prices of the shapes. Add `prices_file"),
    "no price file": ("software:", "autoscaler: {prices_file: §nowhere.yml}\nsoftware:", "autoscaler.prices_file", "there is no file nowhere.yml"),
    "price file is a device": ("software:", "autoscaler: {prices_file: §/dev}\nsoftware:", "autoscaler.prices_file", "can't be read"),
    "no wheels": ("timezone: UTC", "timezone: UTC\n  wheels: §nowhere", "software.wheels", "there is no directory nowhere"),
    "jobs without a home": ("    mount_path: /mnt/home", "    mount_path: /mnt/home\n    enabled: §false", "storage.home.enabled", "Slurm jobs need it"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_the_limits_of_the_autoscaler(tmp_path: Path) -> None:
    (tmp_path / "prices.yml").write_text("BM.GPU4.8: 24.4\nVM.Standard.E5.Flex: 1\n")
    (tmp_path / "packages").mkdir()
    limits = "{max_nodes: 3, max_cost_per_hour: 50, prices_file: prices.yml, times: {tick: 2, cool_down: 0.5}}"
    text = LOCAL.replace("timezone: UTC", "timezone: UTC\n  wheels: packages") + f"autoscaler: {limits}\n"
    (tmp_path / "cluster.yml").write_text(text)
    spec = load(tmp_path / "cluster.yml")
    assert spec.autoscaler.prices == {"BM.GPU4.8": 24.4, "VM.Standard.E5.Flex": 1.0}
    assert (spec.autoscaler.max_cost_per_hour, spec.autoscaler.times) == (50.0, {"tick": 2.0, "cool_down": 0.5})
    assert spec.software.wheels_directory == tmp_path / "packages"
    _against_schema(text)


def test_names_of_elastic_nodes_fit_into_a_host_name() -> None:
    """The longest name of a pool, and the highest number that its counts allow."""
    most = json_schema()["$defs"]["PoolSpec"]["properties"]["max_count"]["maximum"]
    assert len(f"{'p' * 20}-e{2 * most + 2}") <= 63


PRICED = LOCAL.replace("software:", "autoscaler: {max_cost_per_hour: 100, prices_file: prices.yml}\nsoftware:")


@pytest.mark.parametrize(
    ("prices", "file", "place", "words"),
    [
        ("", "prices.yml", (1, 1), "the file is empty"),
        (
            "BM.GPU4.8: 24\n",
            "cluster.yml",
            (42, 51),
            "has no price for VM.Standard.E5.Flex, the shape of the elastic pool cpu",
        ),
        ("VM.Standard.E5.Flex: 0\n", "prices.yml", (1, 22), "must be the price per hour, above 0; got 0"),
        ("VM.Standard.E5.Flex: much\n", "prices.yml", (1, 22), 'above 0; got "much"'),
        (
            "# $\nVM.Standard.E5.Flex: 1\nBM.GPU5.8: 2\n",
            "prices.yml",
            (3, 1),
            'unknown shape "BM.GPU5.8". Did you mean',
        ),
        ("VM.Standard.E5.Flex: [1]\n", "prices.yml", (1, 22), "above 0; got a list"),
    ],
)
def test_a_wrong_price_file(tmp_path: Path, prices: str, file: str, place: tuple[int, int], words: str) -> None:
    (tmp_path / "prices.yml").write_text(prices)
    with pytest.raises(InputError) as caught:
        loads(PRICED, str(tmp_path / "cluster.yml"))
    (found,) = caught.value.findings
    assert (Path(found.file).name, (found.line, found.column)) == (file, place)
    assert words in f"{found.message}. {found.hint}"
