"""Root takes no path in folders that others can change: it works there through `foreign_folder`, or as their owner.

docs/explanation/security.md ("Root in folders of others") has the list of these places for a reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gpucluster"

#: Modules that work as root in folders of others, and their functions that work elsewhere, with the place.
FOREIGN: dict[str, dict[str, str]] = {
    "controller/backup/scheduled.py": {},
    "controller/images/importer.py": {},
    "controller/images/store.py": {"locked": "/run: locks"},
    "controller/jobs/datasets.py": {"locked": "/run: locks"},
    "node_agent/rootless_containers.py": {
        "read": "/etc",
        "append": "/etc",
        "locked": "/etc",
        "stop_all": "/run/user: names",
    },
    "controller/grafana_password.py": {"of": "/etc/gpucluster"},
    "controller/controller_key.py": {"rotate": "names files", "_phase": "looks", "state": "looks"},
    "node_agent/shared_keys.py": {
        "take": "/etc/gpucluster",
        "_take_for_containers": "/etc/gpucluster",
        "old_servers": "/proc",
        "main": "/etc/gpucluster",
    },
    "controller/share.py": {},
    "controller/users/homes.py": {},
    "autoscaler/daemon/join.py": {
        "run": "/var/lib/gpucluster-join",
        "_play": "/var/lib/gpucluster-join",
        "_forget_hosts": "/var/lib/gpucluster-join",
        "_read_inventory": "/etc/gpucluster",
    },
}
#: Modules that work in homes, as the owner: in a child process that has given up root's rights, or in a job.
AS_OWNER = {
    "controller/jobs/folder.py": "accounts.work_as",
    "controller/jobs/requirements.py": "accounts.work_as",
    "controller/users/home_contents.py": "accounts.work_as",
    "node_agent/watch/stacks.py": "accounts.work_as",
    "controller/kubernetes/own_kubeconfig.py": "the user's own program",
}
#: Other modules of the agent that change files: where only root of this host, or the service itself, can.
OWN = {
    "controller/backup/": "/var/lib/gpucluster, and the data of slapd and etcd while they are stopped",
    "controller/ca.py": "/etc/gpucluster",
    "controller/facts/": "a folder of its own; on the share by controller/share.py",
    "node_agent/facts/": "/etc/gpucluster, /proc and /sys, read; the token on the share by its descriptor",
    "node_agent/checks/": "/var/lib/gpucluster/checks, and a folder of its own",
    "node_agent/compiled.py": "/var/cache/gpucluster",
    "node_agent/exporter/": "/run/gpucluster, and pipes",
    "controller/logs/": "/var/lib/gpucluster/logs, of root",
    "controller/health/": "/var/lib/gpucluster-health, its own service",
    "node_agent/state_volume/mounting.py": "the volume of the controller, and directories of root and of services",
    "node_agent/standby/": "the system of the standby: folders of root and of services",
    "node_agent/home_files.py": "a mount of its own, read-only",
    "node_agent/durable_file.py": "a file that its caller names",
    "node_agent/health/": "/run/gpucluster",
    "node_agent/host_certificates.py": "/etc/ssh, /etc/sssd",
    "node_agent/kubernetes/": "/etc/kubernetes, /etc/cni, /run/gpucluster",
    "controller/munge_keys.py": "/etc/gpucluster",
    "controller/rotation.py": "/etc/gpucluster",
    "controller/rotation_parts.py": "/etc/gpucluster, and the folder of the directory's CA",
    "controller/rest_key.py": "/etc/gpucluster",
    "controller/directory_authority.py": "/etc/gpucluster",
    "node_agent/directory_authority.py": "/etc/gpucluster, and a folder of its own",
    "node_agent/directory_password.py": "/etc/sssd",
    "controller/shared_keys.py": "/etc/gpucluster, and a folder of its own",
    "controller/container_keys.py": "/etc/gpucluster",
    "controller/join_key.py": "/var/lib/gpucluster-join, /run/gpucluster-join: of root",
    "node_agent/host_keys.py": "/etc/ssh",
    "controller/host_keys.py": "/etc/gpucluster",
    "controller/ssh_authority.py": "/etc/gpucluster",
    "node_agent/munge_key.py": "/etc/munge, which is munge's: by descriptors",
    "controller/ssh_ca.py": "/etc/gpucluster, and a folder of its own",
    "controller/kubernetes/": "/etc/kubernetes, /etc/gpucluster, /run/gpucluster",
    "controller/measure/": "/var/lib/gpucluster",
    "node_agent/gpu_links.py": "/run/gpucluster",
    "node_agent/mig/": "/run/gpucluster, /var/lib/gpucluster",
    "controller/monitor/": "its own service",
    "node_agent/nccl/": "a file that its caller names, read",
    "node_agent/record/": "/run/gpucluster/jobs, /var/lib/gpucluster",
    "controller/job_records.py": "/var/lib/gpucluster/job-records, its own service",
    "controller/reactions/": "/var/lib/gpucluster/health, the health service's own",
    "node_agent/rdma_files.py": "/sys, read",
    "controller/release_server.py": "/var/lib/gpucluster, read",
    "node_agent/host_identity.py": "a host that becomes an image, where no user works",
    "node_agent/watch/": "/run/gpucluster-watch, its own service; /proc and /run/gpucluster/jobs, read",
    "controller/users/on_host.py": "spools of cron and at, and whether /etc/pam.d has a file",
    "controller/users/lock.py": "/run",
    "controller/users/written.py": "/var/lib/gpucluster-directory",
    "controller/accounts/slurm.py": "/var/lib/gpucluster-directory",
    "node_agent/passwords.py": "/etc/gpucluster, /var/lib/gpucluster-directory, and a file of its own",
    "node_agent/foreign_folder.py": "the one module",
}
_OS = {
    "access", "chmod", "chown", "lchown", "link", "listdir", "lstat", "makedirs", "mkdir", "mkfifo", "mknod", "open",
    "readlink", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "symlink",
    "truncate", "unlink", "utime", "walk", "chdir", "statvfs",
}  # fmt: skip
_PATH = {
    "write_text", "write_bytes", "read_text", "read_bytes", "mkdir", "chmod", "lchmod", "rename", "unlink", "rmdir",
    "touch", "symlink_to", "hardlink_to", "link_to", "iterdir", "glob", "rglob", "exists", "is_file", "is_dir",
    "is_symlink", "lstat", "stat", "resolve", "owner", "samefile",
}  # fmt: skip
_OS_PATH = {"exists", "getsize", "isdir", "isfile", "islink", "lexists", "realpath", "samefile"}
_SHUTIL = {"copyfileobj"}
#: Names whose `open` takes no path, or takes the place where the work begins.
_OPEN = {"Folder", "tarfile"}
#: What changes something: a module that uses it is in one of the lists.
_CHANGING = {
    "chmod", "chown", "lchown", "makedirs", "mkdir", "mknod", "mkfifo", "rename", "rmdir", "rmtree", "symlink",
    "symlink_to", "touch", "truncate", "unlink", "write_bytes", "write_text", "copytree", "copy2", "copyfile",
}  # fmt: skip


def sources() -> list[Path]:
    """All modules of the programs of hosts."""
    found = [file for name in ("controller", "node_agent") for file in sorted((PACKAGE / name).rglob("*.py"))]
    assert found
    return found


def path_functions(tree: ast.AST, elsewhere: set[str]) -> Iterator[tuple[int, str]]:
    """Calls of functions that look a path up, except in some functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in elsewhere:
            continue
        if isinstance(node, ast.Call):
            name = _forbidden(node)
            if name:
                yield node.lineno, name
        yield from path_functions(node, elsewhere)


def _forbidden(call: ast.Call) -> str:
    if not isinstance(call.func, ast.Attribute):
        return "open" if isinstance(call.func, ast.Name) and call.func.id == "open" else ""
    owner, function = ast.unparse(call.func.value), call.func.attr
    if owner == "os":
        bad = function in _OS
    elif owner == "os.path":
        bad = function in _OS_PATH
    elif owner in ("shutil", "tempfile", "glob"):
        bad = function not in _SHUTIL
    elif function == "open":
        bad = owner not in _OPEN
    else:
        # A text's `replace` has two arguments, a path's has one.
        bad = function in _PATH or (function == "replace" and len(call.args) == 1)
    return f"{owner}.{function}" if bad else ""


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_root_takes_no_path_in_folders_of_others(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert set(FOREIGN[name]) <= defined, "a function that is not there any more"
    found = [f"{name}:{line}: {what}" for line, what in path_functions(tree, set(FOREIGN[name]))]
    assert not found, f"{found}: use gpucluster.node_agent.foreign_folder, or work as the owner"


def test_each_module_that_changes_files_states_where() -> None:
    listed = (*FOREIGN, *AS_OWNER, *OWN)
    unlisted = []
    for file in sources():
        name = file.relative_to(PACKAGE).as_posix()
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        changes = {each.func.attr for each in calls if isinstance(each.func, ast.Attribute)} & _CHANGING
        if changes and not name.startswith(listed):
            unlisted.append(f"{name}: {sorted(changes)}")
    assert not unlisted, (
        f"{unlisted}: add it to one of the lists here, and to docs/explanation/security.md if it is foreign"
    )


def test_what_is_listed_is_there() -> None:
    assert [name for name in (*FOREIGN, *AS_OWNER, *OWN) if not (PACKAGE / name).exists()] == []


def test_the_modules_of_homes_are_used_as_the_owner() -> None:
    """Outside of their own module, what works in a home is called in what `work_as` and its like are given."""
    found = []
    for file in sources():
        name = file.relative_to(PACKAGE).as_posix()
        modules = {"users/homes.py": "home_contents", "jobs/__main__.py": "folder"}
        module = next((each for end, each in modules.items() if name.endswith(end)), "")
        if module:
            tree = ast.parse(file.read_text())
            found += [f"{name}:{line}: {what}" for line, what in _outside_of_lambdas(tree, module)]
    # They take no path, or start the child themselves.
    assert [each for each in found if not each.endswith(("as_user", "as_owner", "checked_template"))] == []


def _outside_of_lambdas(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(f"{module}."):
            yield node.lineno, ast.unparse(node.func)
        yield from _outside_of_lambdas(node, module)


@pytest.mark.parametrize(
    "line",
    [
        "os.chown(home, 1, 1)", "Path(x).write_text('')", "shutil.rmtree(x)", "open(x)", "x.open('w')", "a.rename(b)",
        "os.rename(a, b)", "(folder / name).mkdir()", "x.chmod(0o644)", "tempfile.mkstemp(dir=x)", "new.replace(old)",
        "os.path.lexists(x)", "x.unlink(missing_ok=True)", "list(x.glob('*'))", "y.x.read_text()",
    ],
)  # fmt: skip
def test_the_rule_finds(line: str) -> None:
    assert len(list(path_functions(ast.parse(f"def work():\n    {line}\n"), set()))) == 1


@pytest.mark.parametrize(
    "line",
    ["Folder.open(base)", "os.fchown(f, 1, 1)", "text.replace('a', 'b')", "folder.move('a', into, 'b')", "os.fstat(f)",
     "folder.remove(name)", "tarfile.open(fileobj=x)", "shutil.copyfileobj(a, b)", "share.is_mount()"],
)  # fmt: skip
def test_the_rule_leaves_alone(line: str) -> None:
    assert list(path_functions(ast.parse(f"def work():\n    {line}\n"), set())) == []
