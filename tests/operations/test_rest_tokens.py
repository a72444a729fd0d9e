"""Tokens of the REST API from the operator's side: what is asked, where the secret is written, and what is refused. The
controller's program is a double."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.operations import rest_tokens
from gpucluster.operations.rest_tokens import RestToken, RestTokens
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJhbGljZSJ9.c2lnbmF0dXJl"
WITH_REST = LOCAL.replace("  accounting: true", "  accounting: true\n  rest: true")
GOOD = {"result": {"user": "alice", "token": TOKEN, "ends": 1_800_000_000}}


class Controller:
    """Answers with one document, and keeps what it was asked and how."""

    def __init__(self, folder: Path, answer: dict[str, Any], status: int = 0) -> None:
        self.argv: list[str] = []
        self.owned = 0
        self._file = folder / "asked"
        self._program = (
            f"import sys; open({str(self._file)!r}, 'w').write(sys.stdin.read());"
            f"print({json.dumps(answer)!r}); sys.exit({status})"
        )

    @property
    def request(self) -> Any:
        return json.loads(self._file.read_text())

    def require_own(self) -> None:
        self.owned += 1

    def ssh_argv(self, _host: str | None, command: Sequence[str]) -> list[str]:
        self.argv = list(command)
        return [sys.executable, "-c", self._program]


def tokens(controller: Controller, text: str = WITH_REST) -> RestTokens:
    return RestTokens(loads(text), controller)  # type: ignore[arg-type]


def test_a_token_is_asked_by_standard_input_and_shown_by_no_accident(tmp_path: Path) -> None:
    controller = Controller(tmp_path, GOOD)
    made = tokens(controller).make("alice", 600)
    assert controller.request == {"operation": "token", "arguments": {"user": "alice", "seconds": 600}}
    assert controller.argv == ["sudo -n /usr/local/bin/gpucluster-agent rest-token"]
    assert controller.owned == 1
    assert (made.token, made.expires, made.server) == (TOKEN, "2027-01-15T08:00:00Z", "https://demo-controller:6820")
    assert TOKEN not in repr(made) + json.dumps(made.to_dict())


@pytest.mark.parametrize(
    ("answer", "status", "kind", "words"),
    [
        ({"error": {"message": "this cluster has no user 'carol'", "hint": ""}}, 2, InputError, "no user 'carol'"),
        ({"error": {"message": "slurmctld makes no token: x", "hint": ""}}, 1, ToolError, "makes no token"),
        ({"result": {**GOOD["result"], "user": "bob"}}, 0, ToolError, "no token of this user"),
        ({"result": {**GOOD["result"], "token": "a b"}}, 0, ToolError, "no token of this user"),
        ({"result": {"user": "alice"}}, 0, ToolError, "can't be read"),
    ],
)
def test_what_the_controller_refuses_or_breaks_is_an_error(
    answer: dict[str, Any], status: int, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words) as caught:
        tokens(Controller(tmp_path, answer, status)).make("alice")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "user", "words"),
    [
        (LOCAL, "alice", "slurm.rest is off"),
        (LOCAL.partition("\nslurm:")[0] + "\nscheduler: kubernetes\n", "alice", "The REST API needs Slurm"),
        (WITH_REST, "-x", "not a user name"),
        (WITH_REST, "a b", "not a user name"),
    ],
)
def test_nothing_is_asked_where_the_file_decides(text: str, user: str, words: str, tmp_path: Path) -> None:
    controller = Controller(tmp_path, GOOD)
    with pytest.raises(InputError, match=words):
        tokens(controller, text).make(user)
    assert controller.argv == []


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604800), ("60", 60)])
def test_a_lifespan_has_a_unit(text: str, seconds: int) -> None:
    assert rest_tokens.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1w", "-1h", "1.5h", "59s", "8d", "604801", "99999999999", "infinite"])
def test_a_lifespan_that_is_none_or_not_reasonable_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        rest_tokens.seconds_of(text)


def test_the_file_is_its_owner_s_and_replaces_only_a_token(tmp_path: Path) -> None:
    made = RestToken("alice", "2027-01-15T08:00:00Z", "https://demo-controller:6820", TOKEN)
    file = tmp_path / "token.jwt"
    for _ in range(2):
        rest_tokens.check_file(file)
        rest_tokens.write(made, file)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{TOKEN}\n", 0o600)
    (tmp_path / "other").write_text("precious\n")
    (tmp_path / "empty").touch()
    rest_tokens.check_file(tmp_path / "empty")
    for place, words in (
        (tmp_path / "other", "not a token"),
        (tmp_path, "this is a folder"),
        (tmp_path / "no" / "token.jwt", "no such folder"),
    ):
        with pytest.raises(InputError, match=words):
            rest_tokens.check_file(place)
