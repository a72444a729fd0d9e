"""The catalogue of errors: how messages are read from the program, and that each tells what to do next."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from tools import error_catalogue
from tools.error_catalogue import Message, english, entry, japanese, lost, template

#: They are reasons within another message, which has the hint; or show findings, each of which has its own.
WITHOUT_A_HINT = {
    "ARGV ended with status RETURNCODE",
    "ARGV ended with status STATUS",
    "interrupted",
    "it gave no answer within SECONDS s",
    "it has sent more than it was asked for",
    "its answer can't be read",
    "its answer can't be read: SAID",
    "the controller's answer can't be read: it has names that are none",
    "there was no time left to ask it",
    "NAME gave no answer about its state",
    "can't write: STRERROR",
    "the file can't be read: REASON",
    "not a description of a job: NAME: ERROR",
    "FILE can't be read: REASON",
    "FILE: error",
    "FILE: error; no user was imported",
    "FILE: value of another type than the stack's",
    "FILE: variable without a value",
    "NAME can't run here: WHY",
    "NAME was not submitted: requirements are not met",
    "the certificate of backups has expired",
    "the file is larger than ... MiB",
    "the Python version of the controller is not known, because its image is not known",
    "the value is not YAML",
    "the VCN's addresses are in use on this machine",
}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('"a b"', "a b"),
        ('f"no host {host}"', "no host HOST"),
        ('f"{self._spec.name} of {printable(text)!r}"', "NAME of TEXT"),
        ("f\"{', '.join(names)} and {len(x)}\"", "NAMES and ..."),
        ('f"a {x} b {value + 1}"', "a ... b ..."),
        ('("one" if x else "two")', "one / two"),
        ('"a " + reason', "a ..."),
        ('f"run it again{reason}"', "run it again REASON"),
        ('f"{cannot}it {verb}"', "CANNOT it VERB"),
        ('f"{name}={value} {where}:{what}"', "NAME=VALUE WHERE:WHAT"),
    ],
)
def test_a_message_has_placeholders_for_values(source: str, text: str) -> None:
    assert template(ast.parse(source, mode="eval").body) == text


def test_every_message_says_what_to_do_next() -> None:
    without = {each.text for each in error_catalogue.messages() if not each.hint}
    assert without - WITHOUT_A_HINT == set(), "give it a hint, or say here why it needs none"
    assert WITHOUT_A_HINT - without == set(), "it has a hint now"


def test_the_catalogue_has_known_messages_of_every_kind() -> None:
    found = error_catalogue.messages()
    assert Message("ToolError", "there is no controller yet", "Run: gpucluster apply") in found
    assert {each.error for each in found} >= {"CloudError", "DataGuardError", "LockedError", "MovedError", "ToolError"}
    page = error_catalogue.page()
    assert page.index("exit code 1\n") < page.index("## `InputError`, exit code 2") < page.index("exit code 130")


TABLES = ("classes", "messages", "hints")


@pytest.mark.parametrize("table", TABLES)
def test_every_text_has_a_translation(table: str) -> None:
    translated = getattr(japanese(), table)
    missing = [entry(text) for text in english()[table] if not translated.get(text)]
    assert not missing, "\n".join([f"add to [{table}] in tools/error_catalogue.ja.toml, in Japanese:", *missing])


@pytest.mark.parametrize("table", TABLES)
def test_every_translation_has_its_text(table: str) -> None:
    left = sorted(getattr(japanese(), table).keys() - set(english()[table]))
    assert not left, "\n".join(
        [f"the program has them no more; remove from [{table}] in error_catalogue.ja.toml:", *left]
    )


@pytest.mark.parametrize("table", TABLES)
def test_translations_have_the_placeholders_and_commands_of_their_texts(table: str) -> None:
    translated = getattr(japanese(), table)
    assert {text: lacking for text, other in translated.items() if (lacking := lost(text, other))} == {}


@pytest.mark.parametrize("table", TABLES)
def test_translations_are_japanese(table: str) -> None:
    translated = getattr(japanese(), table).items()
    assert [text for text, other in translated if not re.search("[\u3040-\u30ff\u4e00-\u9fff]", other)] == []


@pytest.mark.parametrize(
    ("text", "translation", "lacking"),
    [
        ("HOST of HOST: WHAT", "HOST の HOST: WHAT", []),
        ("HOST of HOST: WHAT", "HOST: WHAT", ["HOST"]),
        ("after ... s, ... min", "... 分", ["..."]),
        ("do one / do two", "1 つ", [" / "]),
        ("Run: gpucluster job wait JOB", "`gpucluster job wait JOB` を実行", []),
        (
            "Run: gpucluster job wait JOB",
            "`gpucluster job JOB` を実行",
            ["gpucluster job wait JOB", "gpucluster job JOB"],
        ),
        ("Run: gpucluster plan, then wait", "待つ", ["gpucluster plan", "gpucluster plan"]),
        ("see it (ssh -- squeue), then wait", "待つ", ["ssh -- squeue"]),
        ("what gpucluster status lists", "表示されたもの", ["gpucluster status"]),
        ("what this gpucluster knows", "知っているもの", []),
        ("set `backend: s3` in cluster.yml", "cluster.yml に `backend: s4`", ["backend: s3", "backend: s4"]),
        ("pass --yes", "指定する", ["--yes"]),
        ("set max_count of docs/index.md", "設定する", ["max_count", "docs/index.md"]),
    ],
)
def test_what_a_translation_lacks_is_seen(text: str, translation: str, lacking: list[str]) -> None:
    assert lost(text, translation) == lacking


def test_the_japanese_page_has_the_tables_of_the_english_one_in_its_order() -> None:
    def first_cells(page: str) -> list[str]:
        rows = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
        return [each for each in rows if each not in ("message", "メッセージ")]

    def sections(page: str) -> list[str]:
        return re.findall(r"^## (`\w+`)", page, re.MULTILINE)

    page = error_catalogue.japanese_page()
    assert first_cells(page) == first_cells(error_catalogue.page())
    assert sections(page) == sections(error_catalogue.page())
    row = "| there is no controller yet | コントローラーがまだありません。 | `gpucluster apply` を実行してください。 |"
    assert [line for line in page.splitlines() if "no controller yet" in line] == [row]


def test_an_entry_is_a_line_of_toml() -> None:
    text = 'a "b" \\n c'
    assert tomllib.loads(entry(text)) == {text: ""}
