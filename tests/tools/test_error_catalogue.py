"""The catalogue of errors: how messages are read from the program, and that each tells what to do next."""

from __future__ import annotations

import ast

import pytest

from tools import error_catalogue
from tools.error_catalogue import Message, template

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
