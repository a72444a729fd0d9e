"""What is read of Slurm's own settings and of a dump of its database. The shell that runs the dump is a double."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gpucluster.controller.backup import accounting
from gpucluster.node_agent import errors


class Shell(accounting.AccountingDatabase):
    """An accounting whose MariaDB answers from a table."""

    def ask(self, statement: str) -> list[str]:
        return ANSWERS[next(words for words in ANSWERS if words in statement)]


ANSWERS: dict[str, list[str]] = {}


@pytest.mark.parametrize(
    ("tables", "others", "strange"),
    [
        (["acct_table", "demo-1_job_table"], [], ""),
        (["acct_table", "x` TO `y`.`z`; DROP DATABASE mysql; -- "], [], "x` TO"),
        (["a\\nb"], [], "a"),
        ([""], [], "''"),
        (["acct_table", "user_table"], ["user_table"], "user_table"),
    ],
)
def test_a_database_that_is_not_slurm_s_is_refused(
    tables: list[str], others: list[str], strange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "BASE TABLE", others)
    monkeypatch.setitem(ANSWERS, "table_name", tables)
    books = Shell(tmp_path / "slurmdbd.conf", tmp_path, "demo", "mariadb", "mariadb", "mariadb-dump")
    with contextlib.ExitStack() as stack:
        if strange:
            stack.enter_context(pytest.raises(errors.Refused, match=strange))
        books._check("books_restore")
    if not others:
        with contextlib.ExitStack() as stack:
            if strange:
                stack.enter_context(pytest.raises(errors.Refused))
            books.tables("books")


def test_names_of_databases_are_read_from_slurmdbd_s_own_settings(tmp_path: Path) -> None:
    (tmp_path / "slurmdbd.conf").write_text("StorageLoc=slurm_acct_db\nStorageUser = slurm\n")
    books = accounting.AccountingDatabase(
        tmp_path / "slurmdbd.conf", tmp_path, "demo", "mariadb", "mariadb", "mariadb-dump"
    )
    assert (books.database, books.setting("storageuser")) == ("slurm_acct_db", "slurm")
    with pytest.raises(errors.Failed, match="has no value for SlurmUser"):
        books.setting("SlurmUser")
