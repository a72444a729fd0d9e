"""Rules for Slurm: keys of slurm.conf, limits, partitions and releases."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster.spec import loads, warnings
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MARK, MINIMAL, marked
from tests.spec.test_spec_faults import at

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "default above the most": ("  extra_config: {SchedulerParameters: bf_interval=30}", "  default_job_hours: §200", "slurm.default_job_hours", "200 is above slurm.max_job_hours, 168"),
    "key of ours": ("{SchedulerParameters: bf_interval=30}", "{§NodeName: x}", "slurm.extra_config.NodeName", "NodeName is set by gpucluster itself"),
    "key of ours in small letters": ("{SchedulerParameters: bf_interval=30}", "{§clustername: x}", "slurm.extra_config.clustername", "ClusterName is set by"),
    "no key of Slurm": ("{SchedulerParameters: bf_interval=30}", '{§"a b": x}', "slurm.extra_config.a b", "is not a key of slurm.conf"),
    "truth for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §true}", "slurm.extra_config.Foo", 'Write it in quotes, such as "YES"'),
    "a template for Ansible": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"{{x}}"}', "slurm.extra_config.Foo", "Ansible would run it as a template"),
    "two lines for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a\\nNodeName=x"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "another key for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a SlurmUser=root"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "a tab for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a\\tSlurmUser=root"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "half a quote for Slurm": ("{SchedulerParameters: bf_interval=30}", """{Foo: §'"a" SlurmUser="root"'}""", "slurm.extra_config.Foo", "needs double quotes"),
    "list for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §[a]}", "slurm.extra_config.Foo", "text or a whole number"),
    "a word for a number of Slurm": ("{SchedulerParameters: bf_interval=30}", "{killwait: §soon}", "slurm.extra_config.killwait", "Write a whole number from 0 to 65535"),
    "too much for Slurm": ("{SchedulerParameters: bf_interval=30}", "{KillWait: §70000}", "slurm.extra_config.KillWait", "not a value that Slurm takes: 70000"),
    "neither yes nor no for Slurm": ("{SchedulerParameters: bf_interval=30}", "{UsePAM: §maybe}", "slurm.extra_config.UsePAM", "Write YES or NO"),
    "nothing for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §null}", "slurm.extra_config.Foo", "has no value"),
    "another spelling for Slurm": ("{SchedulerParameters: bf_interval=30}", "{§schedulerparameters: x}", "slurm.extra_config.schedulerparameters", "Write SchedulerParameters"),
    "one key of Slurm in two spellings": ("{SchedulerParameters: bf_interval=30}", "{Licenses: a, §licenses: b}", "slurm.extra_config.licenses", "is the same key as Licenses"),
    "release without quotes": ("accounting: true", "release: §25.05", "slurm.release", 'Write it in quotes: "25.05"'),
    "unknown release of Slurm": ("accounting: true", 'release: §"26.06"', "slurm.release", "26.05"),
    "a failover by itself without a standby": ("  memory_gb: 32\nstorage", "  memory_gb: 32\n  §automatic_failover: true\nstorage", "controller.automatic_failover", "there is no standby that could go on by itself. Add `standby: true` to controller"),
    "a standby without a volume": ("  memory_gb: 32\nstorage", "  memory_gb: 32\n  §standby: true\nstorage", "controller.standby", "has no volume of its own here. Add `state_volume_gb: 50`"),
    "unknown default": ("accounting: true", "default_partition: §comput", "slurm.default_partition", "there is no partition \"comput\". Did you mean compute"),
    "name for Slurm": ("accounting: true", "cluster_name: §Demo", "slurm.cluster_name", "lower-case"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_a_key_of_slurm_conf_that_is_not_known_is_a_warning_with_the_one_that_was_meant() -> None:
    def said(key: str, more: str = "") -> str:
        return "\n".join(warnings(loads(f"{MINIMAL}slurm: {{extra_config: {{{key}: 1}}{more}}}\n")))

    assert said("SchedulerParamters").startswith("slurm.extra_config.SchedulerParamters: gpucluster knows no such key")
    assert "Did you mean SchedulerParameters?" in said("SchedulerParamters")
    assert "Is it one of your release of Slurm?" in said("Xyzzy")
    # A suggestion is one that the rules accept.
    assert "PrologFlags" not in said("PrologFlag")
    # Slurm ignores case. A key of another release is known, too.
    assert [said(key) for key in ("maxarraysize", "MetricsParameters", "DefCPUPerGPU")] == ["", "", ""]
    assert said("Xyzzy", ", enabled: false") == ""


def test_limits_of_users_need_the_accounting() -> None:
    static, wrong = (
        LOCAL.replace("    max_count: 4\n", "    count: 1\n"),
        "  accounting: false\n  user_limits: {jobs: 4}\n",
    )
    assert at("slurm.user_limits", static.replace("  accounting: true\n", wrong))[1] == 16
    for right in (wrong.replace("4", "null"), wrong.replace("false", "true")):
        loads(static.replace("  accounting: true\n", right))


def test_a_default_that_is_a_pool_but_no_partition() -> None:
    text = LOCAL.replace("    max_count: 4", "    max_count: 4\n    partition: gpu")
    text, line, column = marked(text.replace("  accounting", f"  default_partition: {MARK}cpu\n  accounting"))
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, "slurm.default_partition")
    assert 'there is no partition "cpu". The pool of that name is in the partition gpu' in words


def test_two_opinions_on_the_default() -> None:
    text = LOCAL.replace("    count: 2", "    count: 2\n    default: true")
    text, line, column = marked(text.replace("  accounting", f"  default_partition: {MARK}cpu\n  accounting"))
    assert [found[:2] for found in findings(text)] == [(line, column)]
    assert "the pool compute is already the default" in findings(text)[0][3]
