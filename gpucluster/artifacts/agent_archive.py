"""The agent as one file for hosts: a zipapp of `gpucluster.node_agent`, built from the package that runs now.

The operator's machine builds it for `apply` and `image bake`, and the controller builds it for new elastic nodes, from
the wheel that it has. The same version gives the same bytes everywhere: entries are sorted, have one fixed time and
are stored without compression, because the output of zlib differs between its versions. Bytecode is made on each host
(`gpucluster.node_agent.compiled`): it depends on the host's Python.
"""

from __future__ import annotations

import io
import zipfile

from gpucluster.node_agent import version
from gpucluster.node_agent.interpreter import PYTHON

INTERPRETER = f"{PYTHON} -I"
_TIME = (2020, 1, 1, 0, 0, 0)
_MODE = 0o100644
_MAIN = """\
import sys
from pathlib import Path

from gpucluster.node_agent import compiled

compiled.use(Path(sys.path[0]))

from gpucluster.node_agent.__main__ import main

sys.exit(main())
"""


def build() -> bytes:
    """The zipapp: an executable file for Python 3.9 and later, in isolated mode.

    `gpucluster-agent --version` on a host prints `version.checksum()` of what is installed there.
    """
    package = f'"""The part of gpucluster that runs on hosts."""\n\n__version__ = "{version.package_version()}"\n'
    content = {"__main__.py": _MAIN.encode(), "gpucluster/__init__.py": package.encode(), **dict(version.files())}
    buffer = io.BytesIO()
    buffer.write(f"#!{INTERPRETER}\n".encode())
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(content.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = _MODE << 16
            # Written on any system as on Unix.
            entry.create_system = 3
            archive.writestr(entry, data)
    return buffer.getvalue()
