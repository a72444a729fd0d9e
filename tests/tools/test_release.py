"""A release is cut in a real repository: a copy of the files that it changes."""

from __future__ import annotations

import subprocess
from datetime import date
from pathlib import Path

import pytest

from tools import release
from tools.release import CHANGELOG, UNRELEASED, VERSION_FILE, RefusedError, sections

ROOT = Path(__file__).parents[2]
DAY = date(2026, 12, 24)
CHANGES = """\
# Changelog

Words.

## Unreleased

### Plan

- Name jobs.

## 0.1.0 - 2026-11-28

- All of it.
"""


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the changelog and the version of this one."""
    for file in (CHANGELOG, VERSION_FILE):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=All")
    return tmp_path


def test_the_changelog_of_this_tree_has_the_form_and_its_version_is_the_next_one() -> None:
    first, newest, *_ = sections((ROOT / CHANGELOG).read_text())
    version = release.version_of((ROOT / VERSION_FILE).read_text())
    if version == newest.version:
        assert first.empty, "a change after a release needs the version of the next one: python -m tools.release open"
    else:
        following, dot, dev = version.partition(".dev")
        assert (dot, dev) == (".dev", "0")
        assert release.number(following) > release.number(newest.version)


def test_a_cut_moves_what_is_unreleased_and_sets_the_version(tree: Path) -> None:
    if sections((tree / CHANGELOG).read_text())[0].empty:
        (tree / CHANGELOG).write_text(CHANGES)
        git(tree, "commit", "--all", "--quiet", "--message=Changes")
    before = sections((tree / CHANGELOG).read_text())
    printed = release.make(tree, "7.0.0", DAY)
    after = sections((tree / CHANGELOG).read_text())
    assert (after[0].version, after[0].body) == (UNRELEASED, "")
    assert (after[1].version, after[1].day, after[1].body) == ("7.0.0", DAY, before[0].body)
    assert after[2:] == before[1:]
    assert release.version_of((tree / VERSION_FILE).read_text()) == "7.0.0"
    assert git(tree, "diff", "--name-only").split() == [CHANGELOG, VERSION_FILE]
    assert len(git(tree, "diff", "--unified=0", VERSION_FILE).splitlines()) == 7, "one line is another one"
    assert git(tree, "tag") == "", "who releases makes the tag"
    assert 'git tag --annotate v7.0.0 --message "gpucluster 7.0.0"' in printed
    assert "tools.release open 7.1.0" in printed

    with pytest.raises(RefusedError, match="not committed"):
        release.make(tree, "7.0.1", DAY)
    git(tree, "commit", "--all", "--quiet", "--message=Release")
    with pytest.raises(RefusedError, match="nothing is under"):
        release.make(tree, "7.0.1", DAY)
    with pytest.raises(RefusedError, match=r"7\.0\.0 does not follow 7\.0\.0"):
        release.begin(tree, "7.0.0")
    release.begin(tree, "7.1.0")
    assert release.version_of((tree / VERSION_FILE).read_text()) == "7.1.0.dev0"


def test_what_can_not_be_released_is_refused_and_nothing_changes(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / CHANGELOG).write_text(CHANGES)
    git(tree, "commit", "--all", "--quiet", "--message=Changes")
    git(tree, "tag", "v8.0.0")
    for version, reason in {
        "8.0.0": "the tag v8.0.0 exists",
        "0.1.0": "does not follow 0.1.0",
        "0.0.9": "does not follow 0.1.0",
        "9": "a version like 1.2.3",
        "9.0.0rc1": "a version like 1.2.3",
    }.items():
        assert release.main(["cut", version], tree) == 2
        assert reason in capsys.readouterr().err
    (tree / "left-over").touch()
    assert release.main(["cut", "9.0.0"], tree) == 2
    assert "left-over" in capsys.readouterr().err
    assert git(tree, "status", "--porcelain") == "?? left-over"
    (tree / "left-over").unlink()
    assert release.main(["cut", "9.0.0"], tree) == 0


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("## Unreleased\n", "## Next\n", "neither"),
        ("2026-11-28", "28 November", "neither"),
        ("## Unreleased\n", "", "has to be `## Unreleased`"),
        ("- All of it.\n", "- All of it.\n\n## 0.2.0 - 2026-12-01\n", "in their order"),
        ("- All of it.\n", "- All of it.\n\n## 0.0.9 - 2026-12-01\n", "in their order"),
        ("- All of it.\n", "- All of it.\n\n## Unreleased\n", "and no other one"),
    ],
)
def test_a_changelog_of_another_form_is_refused(before: str, after: str, reason: str) -> None:
    assert before in CHANGES
    with pytest.raises(RefusedError, match=reason):
        release.cut(CHANGES.replace(before, after), "1.0.0", DAY)


def test_the_notes_of_a_release_are_printed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / CHANGELOG).write_text(CHANGES)
    assert release.main(["notes"], tree) == 0
    assert capsys.readouterr().out == "### Plan\n\n- Name jobs.\n"
    assert release.main(["notes", "0.1.0"], tree) == 0
    assert capsys.readouterr().out == "- All of it.\n"
    assert release.main(["notes", "0.5.0"], tree) == 2
    assert "it has Unreleased, 0.1.0" in capsys.readouterr().err


def test_a_package_without_a_version_is_refused() -> None:
    with pytest.raises(RefusedError, match="has no line"):
        release.with_version("version = 1\n", "1.0.0")
