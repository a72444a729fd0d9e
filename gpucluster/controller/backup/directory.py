"""slapd's database: dump it, build a new one beside the present one, and exchange the two."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpucluster.controller.backup.work import DATA_SECONDS
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.programs import run


@dataclass(frozen=True)
class Directory:
    """slapd's database: its suffix, the server's configuration, the folder, and the account that owns it."""

    suffix: str
    config: Path
    data: Path
    user: str

    @property
    def fresh(self) -> Path:
        """The folder in which a new database is built."""
        return self.data.with_name(f"{self.data.name}.restore")

    @property
    def aside(self) -> Path:
        """The folder of the old database until the restore has ended."""
        return self.data.with_name(f"{self.data.name}.before")

    def dump(self, file: Path) -> None:
        """Write all entries. slapd may run: an entry that it changes meanwhile is old or new, never half."""
        with file.open("wb") as stream:
            words = ("-f", str(self.config), "-b", self.suffix, "-o", "ldif-wrap=no")
            run("slapcat", *words, stdout=stream, seconds=DATA_SECONDS)

    def build(self, ldif: Path) -> None:
        """Load an LDIF into a new database beside the present one."""
        text = self.config.read_text(encoding="utf-8")
        elsewhere = text.replace(f"\ndirectory {self.data}\n", f"\ndirectory {self.fresh}\n")
        if elsewhere == text:
            raise Failed(f"{self.config} does not name {self.data}", "Run `gpucluster apply`, which writes it")
        owner = pwd.getpwnam(self.user)
        self.discard()
        self.fresh.mkdir(mode=0o700)
        os.chown(self.fresh, owner.pw_uid, owner.pw_gid)
        with tempfile.NamedTemporaryFile("w", prefix="gpucluster-slapd-", dir="/run") as config:
            config.write(elsewhere)
            config.flush()
            os.fchown(config.fileno(), owner.pw_uid, owner.pw_gid)
            with ldif.open() as stream:
                words = ("-q", "-f", config.name, "-b", self.suffix)
                run("slapadd", *words, stdin=stream, user=self.user, seconds=DATA_SECONDS)

    def discard(self) -> None:
        """Delete the databases beside the one in use."""
        for path in (self.fresh, self.aside):
            shutil.rmtree(path, ignore_errors=True)

    def exchange(self) -> None:
        """Put the new database in the place of the old one. slapd must not run."""
        if self.data.exists():
            self.data.rename(self.aside)
        self.fresh.rename(self.data)
        # On disk before the accounting is exchanged: that exchange decides the result of an interrupted restore.
        for path in (self.data / "data.mdb", self.data, self.data.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def put_back(self) -> None:
        """Put the old database back, if it was set aside. slapd must not run."""
        if self.aside.exists():
            shutil.rmtree(self.data, ignore_errors=True)
            self.aside.rename(self.data)

    def recover(self) -> bool:
        """Put the old database back if a restore was killed between its two renames; returns whether that was so."""
        if (self.data / "data.mdb").exists() or not (self.aside / "data.mdb").exists():
            return False
        self.put_back()
        return True
