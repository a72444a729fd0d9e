"""Reads the values of a stack's variables from the files in which people have them.

JSON: what `oci resource-manager stack get` and `job get` print (`data.variables`), what the API answers (`variables`),
a terraform.tfvars.json, and a plan of Terraform as JSON (`variables.NAME.value`). Lines with TF_VAR_NAME=VALUE: what
`env` prints, or a script for the shell with values written out. Anything else is read as a terraform.tfvars.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from gpucluster.errors import InputError
from gpucluster.resource_manager import tfvars
from gpucluster.resource_manager.table import variables
from gpucluster.spec import document, other_files

#: Larger files hold something else: 250 variables with their values are less than 32 KiB.
MAX_BYTES = 4 * 1024 * 1024

_ENVIRONMENT = re.compile(r"^\s*(?P<export>export\s+)?TF_VAR_(?P<name>\w+)=(?P<value>.*)$", re.MULTILINE)
#: Keys of a cluster file that no other file has together.
_OURS = frozenset({"version", "name", "cloud", "network", "pools"})
_HINT = (
    "Write it with: oci resource-manager stack get --stack-id OCID > variables.json. A terraform.tfvars of the stack "
    "is read, too"
)


def read(text: str, file: str) -> dict[str, Any]:
    """The variables of the HPC stack in a file, by their names.

    Args:
        file: how errors call it. Errors quote no value: it could be a secret.

    Raises:
        InputError: it is neither form, or has no variable of the stack.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    _refuse_other_tools(text, file)
    if text.lstrip().startswith(("{", "[")):
        values = _from_json(text, file)
    else:
        values = _from_environment(text, file) if _ENVIRONMENT.search(text) else _from_tfvars(text, file)
    if not values.keys() & variables().keys():
        what = "there is no variable of the HPC stack (oci-hpc) in it"
        raise InputError(what, where=file, hint=_HINT)
    return values


def _refuse_other_tools(text: str, file: str) -> None:
    """Answer a file of another tool, or a cluster file, with what it is.

    Raises:
        InputError: it is one.
    """
    data = document.read_any(text, file).data
    if isinstance(data, dict) and data.keys() >= _OURS:
        raise InputError("this is a cluster file of gpucluster", where=file, hint="Check it: gpucluster validate")
    other = other_files.by_keys(data, map(str, data)) if isinstance(data, dict) else other_files.by_lines(text)
    if other is not None and not other.has_variables:
        raise InputError(f"this is {other.kind}", where=file, hint=other.hint)


def _from_json(text: str, file: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f"{file}:{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else file
        raise InputError("not JSON", where=place, hint=_HINT) from None
    for key in ("data", "variables"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
    if not isinstance(data, dict):
        raise InputError("a list, and not the variables of one stack", where=file, hint=_HINT)
    return {str(name): _planned(value) for name, value in data.items()}


def _planned(value: Any) -> Any:
    """A value as Terraform's plan has it, in an object of its own."""
    return value["value"] if isinstance(value, Mapping) and set(value) == {"value"} else value


def _from_environment(text: str, file: str) -> dict[str, Any]:
    """The values of TF_VAR_ variables, one for each line.

    Raises:
        InputError: the shell would compute one of them.
    """
    values: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _ENVIRONMENT.match(line)
        if match is None:
            continue
        value = match["value"].strip()
        if value[:1] != "'" and re.search(r"[$`]", value):
            hint = "Run it, and give what this prints: env | grep ^TF_VAR_"
            what = f"the shell computes the value of {match['name']}"
            raise InputError(what, where=f"{file}:{number}", hint=hint)
        quoted = match["export"] or value[:1] in ("'", '"')
        values[match["name"]] = _first_word(value) if quoted else value
    return values


def _first_word(value: str) -> str:
    """A value as the shell reads it, without a comment behind it."""
    try:
        return next(iter(shlex.split(value, comments=True)), "")
    except ValueError:
        return value


def _from_tfvars(text: str, file: str) -> dict[str, Any]:
    try:
        return tfvars.read(text)
    except tfvars.NotTfvars as error:
        raise InputError(str(error), where=f"{file}:{error.line}", hint=_HINT) from None
    except RecursionError:
        raise InputError("nested too deep", where=file, hint=_HINT) from None
