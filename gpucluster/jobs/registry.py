"""All templates and all launchers, found in their folders.

A folder in `gpucluster/jobs/templates` is a template: a package with the constant TEMPLATE. A module in
`gpucluster/jobs/launchers` has the constant LAUNCHERS. Nothing else has a list of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from gpucluster.errors import InputError
from gpucluster.jobs import launchers as _launchers
from gpucluster.jobs import templates as _templates
from gpucluster.jobs.model import Launcher, Template
from gpucluster.text import did_you_mean


@lru_cache(maxsize=1)
def template_names() -> tuple[str, ...]:
    """The names of all templates, in the order of the alphabet."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(_templates.__path__) if module.ispkg))


def template(name: str) -> Template:
    """The template of that name.

    Raises:
        InputError: there is none; the hint has names with a similar spelling.
    """
    if name not in template_names():
        hint = did_you_mean(name, template_names()) or f"Known: {', '.join(template_names())}"
        raise InputError(f"unknown template {name!r}", hint=hint)
    module_template: Template = importlib.import_module(f"{_templates.__name__}.{name}").TEMPLATE
    return module_template


def templates() -> tuple[Template, ...]:
    """All templates."""
    return tuple(template(name) for name in template_names())


@lru_cache(maxsize=1)
def launchers() -> Mapping[str, Launcher]:
    """All launchers by their names."""
    by_name: dict[str, Launcher] = {}
    for module in sorted(pkgutil.iter_modules(_launchers.__path__), key=lambda module: module.name):
        for launcher in importlib.import_module(f"{_launchers.__name__}.{module.name}").LAUNCHERS:
            by_name[launcher.name] = launcher
    return MappingProxyType(by_name)


def launcher(for_template: Template, name: str = "") -> Launcher:
    """The launcher of that name, which can start the template; without a name the template's default.

    Raises:
        InputError: there is none, or it can't start this template.
    """
    if not name:
        return launchers()[for_template.launchers[0]]
    if name not in launchers():
        hint = did_you_mean(name, launchers()) or f"Known: {', '.join(launchers())}"
        raise InputError(f"unknown launcher {name!r}", hint=hint)
    if name not in for_template.launchers:
        raise InputError(
            f"the launcher {name} can't start {for_template.name}",
            hint=f"It can be one of {', '.join(for_template.launchers)}",
        )
    return launchers()[name]
