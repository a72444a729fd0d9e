import os
from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.workspace import evidence


def paths(tmp_path: Path) -> ClusterPaths:
    (tmp_path / "cluster.yml").touch()
    return ClusterPaths.of(tmp_path / "cluster.yml")


def test_the_newest_evidence_is_that_which_was_written_last(tmp_path: Path) -> None:
    place = paths(tmp_path)
    assert evidence.newest(place) is None
    for number, (run, level) in enumerate([("2-b", "old"), ("1-a", "new")]):
        file = evidence.keep(place, run, {"level": level})
        os.utime(file, (1000 + number, 1000 + number))
    found = evidence.newest(place)
    assert found is not None
    assert (found.content, found.written_at) == ({"level": "new"}, 1001)


def test_evidence_that_can_not_be_read_is_passed_over(tmp_path: Path) -> None:
    place = paths(tmp_path)
    evidence.keep(place, "1-a", {"level": "good"})
    for number, text in enumerate(("{cut off", "[]", "\xff")):
        file = evidence.keep(place, f"2-{number}", {})
        file.write_text(text, encoding="latin-1")
        os.utime(file, (2e9, 2e9))
    found = evidence.newest(place)
    assert found is not None
    assert found.content == {"level": "good"}
