"""The users program: its questions and answers on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.controller.users import cli
from gpucluster.node_agent import errors
from tests.controller.users.harness import KEY


def test_csv_gives_the_same_as_json() -> None:
    text = '\ufeffname,full_name,uid,groups\r\nalice,"Example, A",10500,lab; red\r\n\r\nbob,,,\r\n'
    ask = Typed(terminal_=False, files={"people.csv": text, "-": text, "people.json": '[{"name": "alice"}]'})
    want = [{"name": "alice", "full_name": "Example, A", "uid": 10500, "groups": ["lab", "red"]}, {"name": "bob"}]
    assert typed("user import people.csv", ask) == ("user.import", {"users": want})
    assert typed("user import -", ask)[1] == {"users": want}
    assert typed("user import people.json", ask)[1] == {"users": [{"name": "alice"}]}


class Typed(cli.InputTerminal):
    """Somebody who types these answers."""

    def __init__(self, *answers: str, terminal_: bool = True, files: dict[str, str] | None = None) -> None:
        self.answers, self._terminal, self.files = list(answers), terminal_, files or {}
        self.prompts: list[str] = []

    @property
    def attached(self) -> bool:
        return self._terminal

    def read(self, name: str) -> str:
        return self.files[name]

    def secret(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answers.pop(0)

    def line(self, prompt: str) -> str:
        return self.secret(prompt)


def typed(line: str, ask: Typed) -> tuple[str, dict[str, Any]]:
    operation, given = cli.request(cli.parser().parse_args(line.split()), ask)
    return str(operation), dict(given)


def test_the_documented_way_to_add_a_user_asks_three_questions() -> None:
    ask = Typed("geheim", "geheim", "User Name")
    assert typed("user add user_name --gid 9876", ask) == (
        "user.add",
        {"name": "user_name", "gid": 9876, "password": "geheim", "full_name": "User Name"},
    )
    assert ask.prompts == ["Password: ", "Repeat for confirmation: ", "Full Name: "]
    with pytest.raises(errors.Refused, match="differ"):
        typed("user add user_name", Typed("one", "two"))


def test_a_password_that_is_typed_is_not_shown() -> None:
    """`--password-stdin` on a terminal asks, as without it, and reads nothing to the end of the input."""
    for verb in ("add", "edit"):
        ask = Typed("geheim", "geheim")
        assert typed(f"user {verb} alice --password-stdin", ask)[1] == {"name": "alice", "password": "geheim"}
        assert ask.prompts == ["Password: ", "Repeat for confirmation: "]
        with pytest.raises(errors.Refused, match="differ"):
            typed(f"user {verb} alice --password-stdin", Typed("one", "two"))
        # The empty one is refused by who checks passwords, and is not taken for none.
        assert typed(f"user {verb} alice --password-stdin", Typed("", ""))[1]["password"] == ""


@pytest.mark.parametrize(
    "words",
    [
        "add alice --ssh-key - --password-stdin",
        "add alice --ssh-key - --ssh-key -",
        "edit alice --add-ssh-key - --password-stdin",
        "edit alice --ssh-key k.pub --ssh-key - --add-ssh-key -",
    ],
)
@pytest.mark.parametrize("terminal_", [True, False])
def test_standard_input_is_one_thing(words: str, terminal_: bool) -> None:
    with pytest.raises(errors.Refused, match="for one option only"):
        typed(f"user {words}", Typed(terminal_=terminal_, files={"k.pub": KEY}))


def test_without_a_terminal_nothing_is_asked() -> None:
    ask = Typed(terminal_=False, files={"-": "geheim\n", "k.pub": f"# mine\n{KEY}\n\n"})
    assert typed("user add alice --password-stdin --ssh-key k.pub --groups a,b --slurm-account ml", ask) == (
        "user.add",
        {"name": "alice", "password": "geheim", "ssh_keys": [KEY], "groups": ["a", "b"], "slurm_account": "ml"},
    )
    assert typed("user remove alice --archive-home", ask) == ("user.remove", {"name": "alice", "home": "archive"})
    assert typed("group add-member red alice", ask) == ("group.add_member", {"group": "red", "user": "alice"})
    assert typed("group create red --gid 5000", ask) == ("group.add", {"name": "red", "gid": 5000})
