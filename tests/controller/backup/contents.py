"""The content of backups for the tests of this folder: a directory with one user, and its manifest."""

from __future__ import annotations

import hashlib
from typing import Any

from gpucluster.controller.users.config import Config
from tests.controller.users.harness import CONFIG, SUFFIX

LDIF = f"""\
dn: {SUFFIX}
objectClass: dcObject
dc: demo

dn: ou=people,{SUFFIX}
ou: people

dn: uid=alice,ou=people,{SUFFIX}
uid: alice
description: of {SUFFIX}
creatorsName: cn=manager,{SUFFIX}

dn: cn=people,ou=groups,{SUFFIX}
cn: people

dn: cn=bob,ou=people,ou=retired,{SUFFIX}
cn: bob

dn: ou=hosts,{SUFFIX}
ou: hosts

dn: cn=compute-1,ou=hosts,{SUFFIX}
userPassword:: c2VjcmV0
"""


def manifest(**more: Any) -> dict[str, Any]:
    counts = {"people": 1, "groups": 1, "accounting_jobs": None}
    found = {"version": 1, "cluster": "demo", "suffix": SUFFIX, "slurm_cluster": None, "time": "2026", "counts": counts}
    return {**found, "sha256": {"directory.ldif": hashlib.sha256(LDIF.encode()).hexdigest()}, **more}


def content(place: Any) -> str:
    return str((place.data / "data.mdb").read_text())


def new(place: Any) -> dict[str, Any]:
    place.fresh.mkdir(exist_ok=True)
    (place.fresh / "data.mdb").write_text("new")
    return {"people": 1, "groups": 1, "accounting_jobs": 3}


HERE = Config.parse(CONFIG)
