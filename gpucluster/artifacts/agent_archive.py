"""The agent as one file for hosts: a zipapp of `gpucluster.node_agent`, built from the package that runs now.

That of the controller and of Prometheus' host has `gpucluster.controller` as well. The operator's machine builds both
for `apply` and `image bake`, and the controller builds the one for new elastic nodes, from the wheel that it has. The
same version gives the same bytes everywhere: entries are sorted, have one fixed time and
are stored without compression, because the output of zlib differs between its versions. Bytecode is made on each host
(`gpucluster.node_agent.compiled`): it depends on the host's Python.
"""

from __future__ import annotations

import base64
import io
import shlex
import zipfile
from collections.abc import Mapping, Sequence

from gpucluster.node_agent import version
from gpucluster.node_agent.interpreter import PYTHON, PYTHON_IN_SHELL
from gpucluster.node_agent.version import CONTROLLER, NODE_AGENT

INTERPRETER = f"{PYTHON} -I"
_TIME = (2020, 1, 1, 0, 0, 0)
_MODE = 0o100644
#: PACKAGE is the name of the package with the entry point.
_MAIN = """\
import sys
from pathlib import Path

from gpucluster.node_agent import compiled

compiled.use(Path(sys.path[0]))

from gpucluster.PACKAGE.__main__ import main

sys.exit(main())
"""


def of_node() -> bytes:
    """The zipapp for nodes: an executable file for Python 3.9 and later, in isolated mode.

    `gpucluster-agent --version` on a host prints `version.checksum()` of what is installed there.
    """
    return _build(NODE_AGENT)


def of_controller() -> bytes:
    """That for the controller and for Prometheus' host, which has the programs of nodes, too."""
    return _build(CONTROLLER, NODE_AGENT)


#: What `node_agent.support` imports.
_SUPPORT = ("__init__", "errors", "programs", "rules/__init__", "rules/scrubbing", "support")


def of_support() -> bytes:
    """A zip file that any Python from 3.9 runs and that takes what a support bundle has of a host. It is sent to hosts
    each time, so it holds no more than that, compressed."""
    sources = dict(version.files((NODE_AGENT,)))
    parts = {name: sources[name] for each in _SUPPORT if (name := f"gpucluster/{NODE_AGENT}/{each}.py")}
    return _packed({"__main__.py": b"from gpucluster.node_agent.support import main\n\nmain()\n", **parts})


#: What the programs import that collect the facts of hosts and of the cluster.
_FACTS = (
    "__init__", "bounded", "errors", "metadata", "programs", "versions", "rules/__init__", "rules/rdma_place", "facts/",
)  # fmt: skip
_CLUSTER_FACTS = ("__init__", "conversation", "share", "rules/__init__", "rules/slurm_nodes", "facts/")


#: What the program imports that compares a host with what apply left there.
_DRIFT = (*_FACTS, "drift/")


def drift_program() -> tuple[str, str]:
    """What looks for drift of a host, as `facts_program`."""
    return _sent("node_agent.drift.asked", {NODE_AGENT: _DRIFT})


def facts_program(*, controller: bool) -> tuple[str, str]:
    """What collects the facts of a host for `verify`, as a program that is sent along with its input: the command for a
    shell on the host, and what stands before the program's own input. Nothing of it is ever on a disk there.

    Args:
        controller: with what collects those of the cluster on its controller.
    """
    nodes = (*_FACTS, "foreign_folder") if controller else _FACTS
    packages = {NODE_AGENT: nodes, **({CONTROLLER: _CLUSTER_FACTS} if controller else {})}
    return _sent(f"{CONTROLLER if controller else NODE_AGENT}.facts.__main__", packages)


def _sent(module: str, packages: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """A program that is sent along with its input: see `facts_program`.

    Args:
        module: of gpucluster, whose `main` runs.
        packages: what is sent of each package.
    """
    archive = _packed(
        {
            name: data
            for package, chosen in packages.items()
            for name, data in version.files((package,))
            if any(_is_of(name.removeprefix(f"gpucluster/{package}/"), each) for each in chosen)
        }
    )
    return _sent_along(archive, f"gpucluster.{module}")


#: What compares a host with what Ansible's tasks have left is theirs as well.
_UNCHANGED = ("applied", "gpus", "host_facts", "unchanged", "units", "updates")


def unchanged_program() -> tuple[str, str]:
    """What compares a host with what the last complete apply left, as a program that is sent along: see
    `facts_program`."""
    # The operator's machine alone has it; the rest of this module runs on hosts' Python, too.
    from gpucluster.paths import ansible_dir

    package = "ansible/module_utils"
    files = {f"{package}/gpucluster_{name}.py" for name in _UNCHANGED}
    sources = {name: (ansible_dir().parent / name).read_bytes() for name in sorted(files)}
    archive = _packed({"ansible/__init__.py": b"", f"{package}/__init__.py": b"", **sources})
    return _sent_along(archive, "ansible.module_utils.gpucluster_unchanged")


def _sent_along(archive: bytes, module: str) -> tuple[str, str]:
    """The command for a shell on a host, and what stands before the program's input.

    Args:
        module: its function `main` is called.
    """
    text = base64.b64encode(archive).decode()
    code = _TAKE_AND_RUN.replace("MODULE", module)
    return f"sudo -n {PYTHON_IN_SHELL} -I -c {shlex.quote(code)} {len(text)}", text


def _is_of(name: str, chosen: str) -> bool:
    """Whether a file is the chosen module, or lies in the chosen folder."""
    return name.startswith(chosen) if chosen.endswith("/") else name == f"{chosen}.py"


# Takes an archive in base64 from the begin of standard input, whose length is its argument, into the memory.
_TAKE_AND_RUN = """\
import base64, os, sys
left, data = int(sys.argv.pop(1)), b""
while len(data) < left:
    part = os.read(0, left - len(data))
    if not part: sys.exit("the program did not arrive")
    data += part
file = open(os.memfd_create("gpucluster"), "wb", buffering=0)
file.write(base64.b64decode(data))
sys.path.insert(0, "/proc/self/fd/%d" % file.fileno())
from MODULE import main
sys.exit(main())
"""


def _packed(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**content, "gpucluster/__init__.py": b""}.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _build(entry: str, *more: str) -> bytes:
    """A zipapp of packages.

    Args:
        entry: the package with the entry point.
    """
    package = f'"""The part of gpucluster that runs on hosts."""\n\n__version__ = "{version.package_version()}"\n'
    content = {
        "__main__.py": _MAIN.replace("PACKAGE", entry).encode(),
        "gpucluster/__init__.py": package.encode(),
        **dict(version.files((entry, *more))),
    }
    buffer = io.BytesIO()
    buffer.write(f"#!{INTERPRETER}\n".encode())
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(content.items()):
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr = _MODE << 16
            # Written on any system as on Unix.
            info.create_system = 3
            archive.writestr(info, data)
    return buffer.getvalue()
