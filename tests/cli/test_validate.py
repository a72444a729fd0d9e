"""`validate` of a file with many pools: the most that cluster.yml may have, and one more."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.spec.model import ClusterSpec
from tests.spec.spec_texts import MINIMAL


def _most() -> int:
    (most,) = [each.max_length for each in ClusterSpec.model_fields["pools"].metadata if hasattr(each, "max_length")]
    assert isinstance(most, int)
    return most


def _validated(tmp_path: Path, pools: int) -> Result:
    head = MINIMAL[: MINIMAL.index("pools:")]
    row = "  p{}: {{shape: VM.Standard.E5.Flex, ocpus: 1, memory_gb: 8, count: 0, max_count: 1}}\n"
    file = tmp_path / "cluster.yml"
    file.write_text(head + "pools:\n" + "".join(row.format(number) for number in range(pools)))
    return CliRunner().invoke(cli, ["validate", "--file", str(file)])


def test_the_most_pools_are_valid_and_some_are_named(tmp_path: Path) -> None:
    done = _validated(tmp_path, _most())
    assert done.exit_code == 0, done.output
    assert f"p19 (0 to 1 x VM.Standard.E5.Flex) and {_most() - 20} more\n" in done.output


def test_one_more_is_refused_with_the_number(tmp_path: Path) -> None:
    done = _validated(tmp_path, _most() + 1)
    assert done.exit_code == 2
    assert f"pools: must have at most {_most()} entries; it has {_most() + 1}" in done.output
