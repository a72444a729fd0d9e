"""Keys of slurm.conf, and values that Slurm would refuse. tests/security/test_text_judges.py asks its parser."""

from __future__ import annotations

import pytest

from gpucluster.slurm import config_keys
from gpucluster.slurm.config_keys import BOOLEANS, KNOWN, NUMBERS, OF_24_11, OF_OTHER_RELEASES, refused


def test_each_key_is_listed_once_in_any_case() -> None:
    assert not OF_24_11 & OF_OTHER_RELEASES
    assert len({key.casefold() for key in KNOWN}) == len(KNOWN)


def test_keys_with_a_kind_of_value_are_known_and_have_one_kind() -> None:
    kinds = [*NUMBERS.values(), BOOLEANS]
    assert all(kind <= OF_24_11 for kind in kinds)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("SlurmdTimeout", "300", ""),
        ("slurmdtimeout", "300", ""),
        ("SlurmdTimeout", '"300"', ""),
        ("SlurmdTimeout", "65535", ""),
        ("SlurmdTimeout", "65536", "a whole number from 0 to 65535, or INFINITE"),
        ("SlurmdTimeout", "infinite", ""),
        ("SlurmdTimeout", "0x10", ""),
        ("SlurmdTimeout", "5m", "a whole number from 0 to 65535, or INFINITE"),
        ("SlurmdTimeout", "-1", "a whole number from 0 to 65535, or INFINITE"),
        ("MaxJobCount", "65536", ""),
        ("MaxJobCount", str(2**32), f"a whole number from 0 to {2**32 - 1}, or INFINITE"),
        ("DefMemPerCPU", str(2**32), ""),
        ("TrackWCKey", "yes", ""),
        ("TrackWCKey", "on", "YES or NO"),
        ("SchedulerParameters", "anything=at,all", ""),
        ("NoSuchKey", "x", ""),
    ],
)
def test_a_value_of_another_kind_is_refused(key: str, value: str, words: str) -> None:
    assert refused(key, value) == words


def test_a_key_of_another_release_is_not_judged() -> None:
    assert all(not refused(key, "word") for key in config_keys.OF_OTHER_RELEASES)
