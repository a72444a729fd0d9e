"""Reads the values of a stack's variables from the files in which people have them.

JSON: what `oci resource-manager stack get` and `job get` print (`data.variables`), what the API answers (`variables`),
a terraform.tfvars.json, and a plan of Terraform as JSON (`variables.NAME.value`). Anything else is read as a
terraform.tfvars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.errors import InputError
from gpucluster.resource_manager import tfvars
from gpucluster.resource_manager.table import variables
from gpucluster.spec import document, other_files

#: Larger files hold something else: 250 variables with their values are less than 32 KiB.
MAX_BYTES = 4 * 1024 * 1024

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
    text = text.removeprefix("\ufeff")
    _refuse_other_tools(text, file)
    values = _from_json(text, file) if text.lstrip().startswith(("{", "[")) else _from_tfvars(text, file)
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


def _from_tfvars(text: str, file: str) -> dict[str, Any]:
    try:
        return tfvars.read(text)
    except tfvars.NotTfvars as error:
        raise InputError(str(error), where=f"{file}:{error.line}", hint=_HINT) from None
    except RecursionError:
        raise InputError("nested too deep", where=file, hint=_HINT) from None
