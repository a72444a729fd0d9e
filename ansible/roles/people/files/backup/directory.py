"""slapd's database: written out, built anew beside the present one, and exchanged for it."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from backup.programs import DATA_SECONDS, Failed, run


@dataclass(frozen=True)
class Directory:
    """slapd's database: what it is called, where it is, and whose it is."""

    suffix: str
    config: Path
    data: Path
    user: str

    @property
    def fresh(self) -> Path:
        """Where a new database is built."""
        return self.data.with_name(f"{self.data.name}.restore")

    @property
    def aside(self) -> Path:
        """Where the old one waits for the end of a restore."""
        return self.data.with_name(f"{self.data.name}.before")

    def dump(self, file: Path) -> None:
        """Write all entries; slapd may run, and what it writes meanwhile is in it or not, as a whole."""
        with file.open("wb") as stream:
            words = ("-f", str(self.config), "-b", self.suffix, "-o", "ldif-wrap=no")
            run("slapcat", *words, stdout=stream, seconds=DATA_SECONDS)

    def build(self, ldif: Path) -> None:
        """Make a new database of an LDIF beside the present one."""
        text = self.config.read_text(encoding="utf-8")
        elsewhere = text.replace(f"\ndirectory {self.data}\n", f"\ndirectory {self.fresh}\n")
        if elsewhere == text:
            raise Failed(f"{self.config} does not name {self.data}", "Run `gpucluster apply`, which writes it")
        owner = pwd.getpwnam(self.user)
        self.forget()
        self.fresh.mkdir(mode=0o700)
        os.chown(self.fresh, owner.pw_uid, owner.pw_gid)
        with tempfile.NamedTemporaryFile("w", prefix="gpucluster-slapd-", dir="/run") as config:
            config.write(elsewhere)
            config.flush()
            os.fchown(config.fileno(), owner.pw_uid, owner.pw_gid)
            with ldif.open() as stream:
                words = ("-q", "-f", config.name, "-b", self.suffix)
                run("slapadd", *words, stdin=stream, user=self.user, seconds=DATA_SECONDS)

    def forget(self) -> None:
        """Forget the databases beside the one that counts."""
        for path in (self.fresh, self.aside):
            shutil.rmtree(path, ignore_errors=True)

    def exchange(self) -> None:
        """The new database takes the old one's place. slapd must not run."""
        if self.data.exists():
            self.data.rename(self.aside)
        self.fresh.rename(self.data)
        # On the disk before the accounting is exchanged, which decides what a restore that is cut off has come to.
        for path in (self.data / "data.mdb", self.data, self.data.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def put_back(self) -> None:
        """The old database takes its place again, where it was taken aside. slapd must not run."""
        if self.aside.exists():
            shutil.rmtree(self.data, ignore_errors=True)
            self.aside.rename(self.data)

    def recover(self) -> bool:
        """Put the old database back if a restore was killed between its two names; says whether that was so."""
        if (self.data / "data.mdb").exists() or not (self.aside / "data.mdb").exists():
            return False
        self.put_back()
        return True
