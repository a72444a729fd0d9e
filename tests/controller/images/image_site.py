"""The program for container images as it stands, with doubles of srun and scancel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.agent_program import install
from tests.waiting import PATIENCE_S

URI = "docker://registry.example#org/tool:1.0"


# Any account that is not root will do, and this one is on every system.
USER = "nobody"
SRUN = """#!/bin/bash
# A double of srun: no queue, no node; the command runs here. It writes down what it was told.
printf '%s\\n' "$@" > "$DOUBLES/srun.words"; env > "$DOUBLES/srun.environment"; id -un > "$DOUBLES/srun.user"
echo 'srun: job 7 queued and waiting for resources' >&2
while [ "${1#--}" != "$1" ]; do shift; done
echo $$ >> "$DOUBLES/srun.pids"
exec "$@"
"""
SCANCEL = """#!/bin/bash
# A double of scancel: writes down what it was told.
printf '%s ' "$@" >> "$DOUBLES/scancel.words"
"""


class Controller:
    """A share, doubles on PATH, and the program beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "share" / ".gpucluster" / "images"
        self.images.parent.parent.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.double("srun", SRUN)
        self.double("scancel", SCANCEL)
        self.enroot("printf 'hsqs and layers' > \"$3\"")
        pools = {
            "gpu": {"partition": "compute", "exclude": "cpu-[1-4],cpu-e[1-8]", "cpus": 8},
            "small": {"partition": "small", "exclude": "", "cpus": 2},
        }
        self.program = folder / "gpucluster-image"
        self.program.symlink_to(install(folder))
        # The root of this machine is a mounted file system, as the share must be.
        config = {"share": "/", "directory": str(self.images), "locks": str(folder / "locks"), "default_pool": "gpu"}
        (folder / "images.json").write_text(json.dumps({**config, "pools": pools}))

    def double(self, name: str, text: str) -> None:
        file = self.programs / name
        file.write_text(text.replace("$DOUBLES", str(self.folder / "told")))
        file.chmod(0o755)
        told = self.folder / "told"
        told.mkdir(exist_ok=True)
        told.chmod(0o777)

    def let_go(self) -> None:
        """Let an import end that is SLOW."""
        (self.folder / "told" / "go").write_text("")

    def enroot(self, does: str) -> None:
        self.double("enroot", f"#!/bin/bash\n# A double of enroot import --output FILE URI.\n{does}\n")

    def told(self, name: str) -> str:
        file = self.folder / "told" / name
        return file.read_text() if file.exists() else ""

    def argv(self) -> list[str]:
        return [sys.executable, "-I", str(self.program), "--config", str(self.folder / "images.json"), "request"]

    def start(self, operation: str, **arguments: Any) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            self.argv(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": f"{self.programs}:/usr/bin:/bin", "HOME": "/root", "SECRET": "of root"},
        )  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(json.dumps({"operation": operation, "arguments": arguments}))
        child.stdin.close()
        child.stdin = None
        return child

    def ask(self, operation: str, **arguments: Any) -> tuple[int, dict[str, Any], str]:
        out, err = (child := self.start(operation, **arguments)).communicate(timeout=PATIENCE_S)
        return child.returncode, json.loads(out), err

    def fetch(self, **more: Any) -> tuple[int, dict[str, Any], str]:
        return self.ask("image.import", **{"uri": URI, "user": USER, **more})

    def left(self) -> list[str]:
        return sorted(file.name for file in self.images.iterdir()) if self.images.is_dir() else []


NAME = "org+tool+1.0"


SLOW = "mkfifo -m 622 $DOUBLES/go; printf 'hsqs half' > \"$3\"; echo waiting; read _ < $DOUBLES/go"


def until_it_waits(child: subprocess.Popen[str]) -> None:
    """Read what a program prints until it waits for its job; one that ends before that has failed."""
    assert child.stderr is not None
    said = ""
    while not said.endswith("waiting\n"):
        line = child.stderr.readline()
        assert line, said
        said += line
