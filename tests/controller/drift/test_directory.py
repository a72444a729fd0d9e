"""Associations against the users. The directory itself answers in tests/e2e/test_drift.py."""

from __future__ import annotations

from gpucluster.controller.drift.directory import differing
from gpucluster.controller.users.slurm import Association

OWN = Association("default", default=True)


def test_associations_without_a_user_and_users_without_one() -> None:
    have = {"alice": [OWN], "root": [OWN], "mallory": [OWN, Association("lab", default=False)], "carol": [OWN]}
    found = list(differing(have, ["alice", "bob"], {"root"}, {"alice", "bob", "carol"}))
    assert [(each["name"], each["expected"], each["seen"]) for each in found] == [
        ("bob", "an association with an account", "none"),
        ("mallory", "no such user", "an association with default, lab"),
    ]
    assert list(differing({"alice": [OWN]}, ["alice"], set(), {"alice"})) == []
