import stat
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.operations import page_file
from gpucluster.pages.frame import page


def made(kind: str = "overview", title: str = "Cluster demo") -> str:
    return page(title, [], kind=kind, made_at=0, made_by="gpucluster 1")


def test_only_its_owner_may_read_a_page(tmp_path: Path) -> None:
    file = page_file.check(tmp_path / "page.html", "overview")
    page_file.write(file, made())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_earlier_page_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(made(title="old"))
    page_file.write(page_file.check(file, "overview"), made(title="new"))
    assert "new" in file.read_text()


@pytest.mark.parametrize("content", ["my notes", made(kind="job-report"), "", "\xff\x00"])
def test_another_file_is_never_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match="not this kind of page"):
        page_file.check(file, "overview")
    assert file.read_text(encoding="latin-1") == content


def test_a_folder_a_missing_folder_and_a_link_to_nothing_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nothing")
    for file, why in ((tmp_path, "folder"), (tmp_path / "no" / "page.html", "no such folder"), (link, "link")):
        with pytest.raises(InputError, match=why):
            page_file.check(file, "overview")


def test_a_link_to_an_earlier_page_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "page.html", tmp_path / "link.html"
    file.write_text(made())
    link.symlink_to(file)
    page_file.write(page_file.check(link, "overview"), made(title="new"))
    assert link.is_symlink()
    assert "new" in file.read_text()


def test_a_page_that_can_not_be_written_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    file.write_text(made(title="old"))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        page_file.write(file, made(title="new"))
    assert "old" in file.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
