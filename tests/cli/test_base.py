"""The common options at every place of a command line, and how a wrong command line is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cli.base import MODULES, PROVIDER, Context, command, not_for

# From the weakest to the strongest.
PLACES = ("environment", "before the command", "of the group", "after the command")


@pytest.fixture
def seen() -> Iterator[list[tuple[Context, str]]]:
    """What a command has got: `probe` at the root and in a group. They exist during one test only."""
    got: list[tuple[Context, str]] = []
    group = cli.all_commands()["user"]
    assert isinstance(group, click.Group)

    @PROVIDER
    def probe(context: Context, provider: str) -> None:
        got.append((context, provider))

    for parent in (cli, group):
        command("probe", parent=parent)(probe)
    yield got
    for parent in (cli, group):
        del parent.commands["probe"]


@pytest.fixture
def without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a cluster file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUCLUSTER_FILE", raising=False)
    return tmp_path


def _words(places: dict[str, list[str]]) -> list[str]:
    return [*places.get(PLACES[1], []), "user", *places.get(PLACES[2], []), "probe", *places.get(PLACES[3], [])]


@pytest.mark.parametrize("pair", list(combinations(PLACES, 2)), ids=" and ".join)
@pytest.mark.parametrize(
    ("variable", "option", "weak", "strong", "attribute"),
    [
        ("GPUCLUSTER_FILE", "--file={}", "prod.yml", "test.yml", "_file"),
        ("GPUCLUSTER_OUTPUT", "--output={}", "json", "text", "output"),
        ("GPUCLUSTER_DEBUG", "--{}debug", "", "no-", "debug"),
    ],
    ids=["file", "output", "debug"],
)
def test_the_later_place_wins_and_every_place_beats_the_environment(
    pair: tuple[str, str], variable: str, option: str, weak: str, strong: str, attribute: str,
    seen: list[tuple[Context, str]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv(variable, raising=False)
    weaker, stronger = pair
    words = {stronger: [option.format(strong)]}
    if weaker == "environment":
        monkeypatch.setenv(variable, weak or "1")
    else:
        words[weaker] = [option.format(weak)]
    assert CliRunner().invoke(cli, _words(words)).exit_code == 0
    expected = {"_file": "test.yml", "output": "text", "debug": False}[attribute]
    assert getattr(seen[0][0], attribute) == expected


@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_read(place: str, seen: list[tuple[Context, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    words = {place: ["-f", "test.yml", "-o", "json", "--debug"]}
    if place == "environment":
        for name, value in (("FILE", "test.yml"), ("OUTPUT", "json"), ("DEBUG", "1")):
            monkeypatch.setenv(f"GPUCLUSTER_{name}", value)
        words = {}
    assert CliRunner().invoke(cli, _words(words)).exit_code == 0
    context = seen[0][0]
    assert (str(context.file), context.output, context.debug) == ("test.yml", "json", True)
    assert context.name == "user probe"


def test_the_provider_of_the_command_line_beats_the_environment(
    seen: list[tuple[Context, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCLUSTER_PROVIDER", "registry")
    CliRunner().invoke(cli, ["probe"])
    CliRunner().invoke(cli, ["probe", "--provider", "bundled"])
    monkeypatch.delenv("GPUCLUSTER_PROVIDER")
    CliRunner().invoke(cli, ["probe"])
    assert [provider for _context, provider in seen] == ["registry", "bundled", "bundled"]


def _failure(*words: str, **env: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(cli, list(words), env=env)
    (line,) = done.stdout.splitlines()
    event = json.loads(line)
    assert (event["kind"], event["status"]) == ("result", "failed")
    return done.exit_code, event["data"]


@pytest.mark.parametrize(
    ("words", "name", "says"),
    [
        (["-o", "json", "aply"], "", "apply"),
        (["aply", "--output=json"], "", "apply"),
        (["-ojson", "apply", "--fil", "x"], "apply", "--file"),
        (["-o", "json", "user", "add"], "user add", "NAME"),
        (["--nonsense", "-o", "json"], "", "--nonsense"),
        (["-o", "json"], "", "ommand"),
        (["-o", "json", "validate", "-f", "nowhere.yml"], "validate", "nowhere.yml"),
        (["autoscaler", "simulate", "-o", "json", "nowhere"], "autoscaler simulate", "nowhere"),
        (["autoscaler", "simulate", "-o", "json", "x", "--nodes", "many"], "autoscaler simulate", "whole number"),
    ],
)
def test_every_failure_has_one_form_in_json(words: list[str], name: str, says: str) -> None:
    status, data = _failure(*words)
    assert (status, data["exit_code"], data["command"]) == (2, 2, name)
    assert says in f"{data['what']} {data['where']}"
    assert {"error", "what", "where", "hint"} <= data.keys()


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCLUSTER_OUTPUT", "xml")
    said = CliRunner().invoke(cli, ["validate"])
    assert (said.exit_code, "GPUCLUSTER_OUTPUT" in said.stderr) == (2, True)


def test_without_a_command_the_help_is_shown() -> None:
    said = CliRunner().invoke(cli, [])
    assert (said.exit_code, said.exception.__class__) == (2, SystemExit)
    assert "Create or update the cluster" in said.output
    assert _failure(GPUCLUSTER_OUTPUT="json")[1]["what"] == "the command is missing"


def test_the_environment_asks_for_json_and_a_flag_against_it() -> None:
    assert _failure("aply", GPUCLUSTER_OUTPUT="json")[0] == 2
    said = CliRunner().invoke(cli, ["-o", "text", "aply"], env={"GPUCLUSTER_OUTPUT": "json"})
    assert (said.exit_code, said.stdout) == (2, "")
    assert "Did you mean" in said.stderr


def test_the_help_of_a_command_explains_its_own_options_and_names_the_common_ones() -> None:
    for words in (["destroy"], ["user", "add"]):
        said = CliRunner().invoke(cli, [*words, "--help"]).stdout
        assert "--file, --output, --verbose, --debug, --cluster-id, --non-interactive" in said
        assert "Default: cluster.yml" not in said
    assert "Do not ask for confirmation." in CliRunner().invoke(cli, ["destroy", "--help"]).stdout
    assert "Default: cluster.yml" in CliRunner().invoke(cli, ["--help"]).stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["aply"], "Did you mean apply?"),
        (["user", "ad"], "Did you mean add?"),
        (["job", "submitt"], "Did you mean submit?"),
        (["--output", "text", "xyzzy"], "gpucluster --help lists them."),
    ],
)
def test_an_unknown_command_is_answered_with_a_similar_one(words: list[str], hint: str) -> None:
    result = CliRunner().invoke(cli, words, prog_name="gpucluster")
    assert result.exit_code == 2
    assert hint in result.output


def test_an_unknown_command_is_an_error_of_input_in_json() -> None:
    result = CliRunner().invoke(cli, ["--output", "json", "aply"])
    error = json.loads(result.output)["data"]
    assert (error["error"], error["exit_code"]) == ("InputError", 2)
    assert "Did you mean apply?" in error["what"]


def test_the_help_lists_each_command_once_in_a_section(without_a_file: Path) -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name, each in cli.all_commands().items():
        assert text.count(f"\n  {name} ") == (not each.hidden), name


def test_no_option_has_the_name_of_another_one_of_its_command() -> None:
    """`-f` is the cluster file, and in `logs` to follow it; click would take one of two, and print a warning."""

    def walk(each: click.Command) -> Iterator[click.Command]:
        yield each
        inner = cli.all_commands() if each is cli else getattr(each, "commands", {})
        for below in inner.values():
            yield from walk(below)

    for each in walk(cli):
        names = [name for option in each.params for name in (*option.opts, *option.secondary_opts)]
        assert len(names) == len(set(names)), each.name


@pytest.mark.parametrize(
    ("document", "hidden"),
    [
        ({}, {"kubeconfig", "kubectl", "kubernetes"}),
        ({"scheduler": "kubernetes", "cloud": {"provider": "local"}}, {"token", "slurm"}),
        ({"scheduler": "none"}, {"token", "slurm", "kubeconfig", "kubectl", "kubernetes"}),
        ({"cloud": {"provider": "oci"}}, {"kubeconfig", "kubectl", "kubernetes", "local"}),
        ({"scheduler": ["slurm"], "cloud": "oci"}, set()),
        (["not", "a", "mapping"], set()),
        (None, set()),
    ],
)
def test_what_a_cluster_can_t_use(document: object, hidden: set[str]) -> None:
    assert not_for(document).keys() == hidden
    assert hidden <= MODULES.keys()


def test_the_help_beside_a_cluster_file_lists_what_this_cluster_can_use(without_a_file: Path) -> None:
    file = without_a_file / "other.yml"
    file.write_text("scheduler: kubernetes\ncloud: {provider: oci}\n")
    text = CliRunner().invoke(cli, ["--file", str(file), "--help"]).output
    assert "\n  kubectl " in text
    assert "\n  slurm " not in text
    assert "\nThe local cloud:" not in text
    assert "Not for this cluster (scheduler: kubernetes): token, slurm" in text
    assert "Not for this cluster (cloud.provider: oci): local" in text
    assert CliRunner().invoke(cli, ["--help"], env={"GPUCLUSTER_FILE": str(file)}).output == text
    file.write_text("scheduler: [")
    assert "Not for this cluster" not in CliRunner().invoke(cli, ["--file", str(file), "--help"]).output


@pytest.mark.parametrize("width", [40, 50, 59])
def test_help_fits_a_narrow_terminal(width: int, without_a_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    commands = [[], *([name] for name in cli.all_commands()), ["job", "submit"], ["user", "add"]]
    for words in commands:
        text = CliRunner().invoke(cli, [*words, "--help"]).output
        # A word that is longer than a line, such as a path, is all that may be broken.
        long = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
        assert long == [], words


def test_follow_has_the_short_name_that_others_give_it() -> None:
    for words in (["logs"], ["job", "logs"]):
        text = CliRunner().invoke(cli, [*words, "--help"]).output
        assert "-f, --follow" in text
        assert "--file" in text
