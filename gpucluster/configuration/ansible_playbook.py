"""ansible-playbook for runs of ours: what each of its worker processes would do again is done once, before they start.

Ansible forks a process for every task of every host. Each of them compiles the templates of its task, loads the same
plugins, and ends. In a run that changes nothing this takes more processor time than everything else together. So:

- Compiled templates and packed modules are kept in files below `ANSIBLE_HOME`, for later tasks and for later runs.
- Plugins are loaded before the first fork.
- A worker does not collect garbage among the objects of the whole playbook.

Nothing here changes what a playbook does. What this version of Ansible names differently is left out.

    python -P -m gpucluster.configuration.ansible_playbook ARGUMENTS OF ansible-playbook
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import marshal
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from gpucluster.configuration import content

#: The variable with the path of a file that has the rest of the environment, as JSON. ansible-runner writes the
#: variables that it passes on into a file, and what the operator has exported, such as the password in the address of a
#: proxy, belongs on no disk.
ENVIRONMENT = "GPUCLUSTER_ENVIRONMENT"

# Objects that are created before the collector looks at the young ones; Python's own value is 700. A task creates some
# ten thousands, and ends.
_YOUNG = 50_000
# What the environment of a template has that decides how it is compiled, besides its class.
_SYNTAX = (
    "block_start_string", "block_end_string", "variable_start_string", "variable_end_string", "comment_start_string",
    "comment_end_string", "line_statement_prefix", "line_comment_prefix", "trim_blocks", "lstrip_blocks",
    "newline_sequence", "keep_trailing_newline", "optimized", "autoescape", "is_async",
)  # fmt: skip
# Modules of Ansible that a worker imports for its first task.
_MODULES = (
    "ansible.executor.module_common", "ansible.plugins.action.normal", "ansible.plugins.connection.local",
    "ansible.plugins.connection.ssh", "ansible.plugins.become.sudo", "ansible.plugins.shell.sh",
    "ansible.plugins.action.include_vars", "ansible.plugins.action.assert", "ansible.plugins.action.set_fact",
    "ansible.plugins.action.command", "ansible.plugins.lookup.template", "ansible.plugins.lookup.file",
    "gpucluster.artifacts.agent_archive", "gpucluster.slurm.releases",
)  # fmt: skip


def main() -> None:
    """Entry point: the arguments are those of ansible-playbook."""
    take_environment()
    sys.argv[0] = "ansible-playbook"
    from ansible.cli import playbook

    constants = importlib.import_module("ansible.constants")  # settings are made when it is imported
    with contextlib.suppress(OSError):
        folder = cache_folder(Path(str(constants.ANSIBLE_HOME)))
        keep_modules(folder / "modules", Path(str(constants.DEFAULT_LOCAL_TMP)))
        with contextlib.suppress(ImportError):
            keep_templates(folder / "templates")
    load_plugins()
    spare_the_collector()
    playbook.main()


def take_environment() -> None:
    """Add the variables of the file that `ENVIRONMENT` names; those that are set already stay as they are."""
    place = os.environ.pop(ENVIRONMENT, "")
    if place:
        for name, value in json.loads(Path(place).read_bytes()).items():
            os.environ.setdefault(name, value)


def cache_folder(home: Path) -> Path:
    """The folder for this version of everything that decides what is in it; those of other versions are removed.

    Its files are executed. So only this user may write to it.

    Raises:
        OSError: it can't be created, or belongs to another user.
    """
    from importlib import metadata

    versions = (sys.version, *map(metadata.version, ("ansible-core", "jinja2")), content.digest())
    top = home / "compiled"
    folder = top / hashlib.sha256(repr(versions).encode()).hexdigest()[:32]
    for each in (top, folder):
        each.mkdir(parents=True, mode=0o700, exist_ok=True)
        state = each.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o022:
            raise PermissionError(f"{each} is not a folder to which only this user may write")
    for other in top.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def keep_modules(folder: Path, temporary: Path) -> None:
    """Let Ansible find the modules that earlier runs have packed, where it looks for those of this run."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        # A machine that lost its power may have left a part of a file, on which Ansible would fail.
        if not file.read_bytes().endswith(pickle.STOP) and file.suffix != ".lock":
            file.unlink(missing_ok=True)
    (temporary / "ansiballz_cache").symlink_to(folder)


def keep_templates(folder: Path) -> None:
    """Let templates be compiled once, and not again by each worker that evaluates them.

    Raises:
        ImportError: this version of Ansible compiles templates in another way.
    """
    import jinja2
    from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext

    folder.mkdir(exist_ok=True)
    compile_source: Callable[..., Any] = AnsibleEnvironment.compile
    compile_expression: Callable[..., Any] = AnsibleEnvironment.compile_expression
    # An expression is parsed before it is compiled; this is the file for the one that is being compiled.
    expression: list[Path] = []

    def file_of(environment: Any, kind: str, source: str) -> Path:
        context = _TemplateCompileContext.current(optional=True)
        syntax = [getattr(environment, each) for each in _SYNTAX]
        escapes = bool(context and context.escape_backslashes)
        key = repr((kind, str(source), syntax, sorted(environment.extensions), escapes))
        return folder / hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()

    def compile_once(self: Any, source: Any, name: Any = None, filename: Any = None, *options: Any) -> Any:
        if name is not None or filename is not None or options:  # what a template imports or includes has a name
            return compile_source(self, source, name, filename, *options)
        if not isinstance(source, str):
            code = compile_source(self, source)
            if expression:
                _store(expression.pop(), code)
            return code
        file = file_of(self, "template", source)
        code = _load(file)
        if code is None:
            code = compile_source(self, source)
            _store(file, code)
        return code

    def compile_expression_once(self: Any, source: str, undefined_to_none: bool = True) -> Any:
        file = file_of(self, "expression", source)
        code = _load(file)
        if code is not None:
            template = self.template_class.from_code(self, code, self.make_globals(None))
            return jinja2.environment.TemplateExpression(template, undefined_to_none)
        expression[:] = [file]
        try:
            return compile_expression(self, source, undefined_to_none)
        finally:
            expression.clear()

    AnsibleEnvironment.compile = compile_once
    AnsibleEnvironment.compile_expression = compile_expression_once


def _load(file: Path) -> CodeType | None:
    try:
        code = marshal.loads(file.read_bytes())  # noqa: S302 - only this user may write to the folder
    except (OSError, ValueError, EOFError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def _store(file: Path, code: CodeType) -> None:
    """At once with its whole content: other workers read it."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
        new.write(marshal.dumps(code))
        new.flush()
        Path(new.name).replace(file)


def load_plugins() -> None:
    """Load what nearly every worker needs."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from ansible.plugins import loader

    for plugins, name in ((loader.filter_loader, "map"), (loader.test_loader, "match")):
        plugins.get(name)


def spare_the_collector() -> None:
    """Let a worker's collector leave alone what existed before the fork.

    It would visit all objects of the playbook and the inventory, so that the kernel copies their pages, and find
    nothing to free: a fifth of the processor time of a worker. In this process everything is collected as before.
    """
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)


if __name__ == "__main__":
    main()
