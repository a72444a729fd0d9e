"""A plan on one screen, and for a merge request."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cli.plan_report import markdown, plan_text, write_markdown
from gpucluster.errors import InputError
from gpucluster.handover.configuration_diff import ConfigurationDifference
from gpucluster.lifecycle.duration import Duration
from gpucluster.lifecycle.field_effects import FieldEffect
from gpucluster.lifecycle.hourly_price import HourlyPrice
from gpucluster.lifecycle.jobs_hit import JobHit
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import PoolScaling, Scaling
from gpucluster.spec.updates import UpdatePolicy
from gpucluster.terraform.plan import ResourceChange

NODE = 'module.pool["gpu"].module.instance["gpu-{}"].oci_core_instance.this'
EMPTY = ClusterPlan((), False, Scaling({}), ())
LARGE = ClusterPlan(
    tuple(ResourceChange(NODE.format(number), "create") for number in range(1, 200)),
    False,
    Scaling({"gpu": PoolScaling(tuple(f"gpu-{number}" for number in range(1, 200)), ("old-1",))}),
    tuple(ConfigurationDifference("users", "add", f"user{number}") for number in range(100)),
    ("apply would refuse this without --replace-nodes: <b>node</b> | `x`",),
    (
        FieldEffect("pools.gpu.partition", "a", "b|`c`", UpdatePolicy.LIVE, UpdatePolicy.LIVE),
        FieldEffect("pools.gpu.count", 1, 199, UpdatePolicy.DRAINS, UpdatePolicy.DRAINS, "The note."),
        *(
            FieldEffect(f"slurm.extra_config.{n}", "x" * 200, n, UpdatePolicy.LIVE, UpdatePolicy.LIVE)
            for n in range(40)
        ),
    ),
    tuple(JobHit(str(n), f"user{n}", "1:00", 60, ("old-1",)) for n in range(50)),
    "",
    Duration("hosts", 3, 60.0, 90.0, "runs of this cluster on this machine"),
    HourlyPrice(80.0, 160.0, 480.0, ("BM.GPU3.8",), "USD", "Oracle's public list of 2026-09-01"),
)


def test_the_largest_plan_is_on_one_screen_and_in_full_every_line_is_there() -> None:
    lines = plan_text(LARGE, full=False).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    # What matters most is not what is cut: the strongest effect comes first, price, time and the sum are there.
    assert lines[1] == "  drains  pools.gpu.count: 1 -> 199"
    assert any(line.startswith("  + create 199: ") for line in lines)
    assert "  pool gpu: remove 1: old-1" in lines
    assert any(line.startswith("  pool gpu: add 199: gpu-1, gpu-2") for line in lines)
    assert any(line.startswith("  and 43 jobs of user") for line in lines)
    assert "price of an hour: 80.00 -> 160.00 USD, 480.00 with all elastic nodes" in lines
    assert "time: 1 min 00 s, in 9 of 10 runs at most 1 min 30 s" in lines
    assert lines[-2:] == ["Every line: gpucluster plan --full", "199 to create. Next: gpucluster apply"]
    full = plan_text(LARGE)
    assert "user99" in full
    assert NODE.format(199) in full
    assert "--full" not in full


def test_a_small_plan_is_the_same_in_both_ways() -> None:
    small = ClusterPlan((), False, Scaling({"gpu": PoolScaling(("gpu-1",))}), ())
    assert plan_text(small, full=False) == plan_text(small)
    assert plan_text(EMPTY, full=False) == "no changes"


def test_a_merge_request_gets_tables_and_the_details_folded() -> None:
    text = markdown(LARGE, "demo")
    lines = text.splitlines()
    assert lines[0] == "### gpucluster plan: demo"
    assert "**199 to create**" in lines
    assert "| key | before | after | effect | note |" in lines
    assert lines.index("| `pools.gpu.count` | `1` | `199` | **drains** | The note. |") < lines.index(
        "| `pools.gpu.partition` | `a` | `b\\|'c'` | **live** |  |"
    )
    assert "| 7 | user7 | old-1 | 1:00 |" in lines
    assert any(line.startswith("- price of an hour: 80.00 -&gt; 160.00 USD") for line in lines)
    assert text.count("<details>") == text.count("</details>") == 1
    assert NODE.format(199) in text
    assert "**no changes**" in markdown(EMPTY, "demo")


def test_nothing_that_a_value_has_is_markdown_or_html() -> None:
    (line,) = [line for line in markdown(LARGE, "demo").splitlines() if ":warning:" in line]
    assert "&lt;b&gt;node&lt;/b&gt; \\| \\`x\\`" in line
    assert "<b>" not in line


def test_jobs_that_are_not_known_are_named() -> None:
    unknown = ClusterPlan((), False, Scaling({"g": PoolScaling(removed=("g-1",))}), (), jobs=None, jobs_error="is down")
    assert "Jobs on these nodes are not known: is down" in markdown(unknown, "demo")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "plan.md"
    write_markdown(EMPTY, file, "demo")
    assert file.read_text().startswith("### gpucluster plan: demo\n")
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="can't write the file"):
        write_markdown(EMPTY, tmp_path / "none" / "plan.md", "demo")
