"""What the SDK states of OCI's API, for the files that are made from it: operations, and types of members of bodies."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oci

from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.application import all_routes
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.state import member_types
from gpucluster.localcloud.state.wire import ApiRoute

REPOSITORY = Path(__file__).parents[2]
LOCAL_CLOUD = REPOSITORY / "gpucluster" / "localcloud"
# Each client of the SDK that the local cloud answers, with the name of its service in Oracle's documentation.
CLIENTS = {
    "core.VirtualNetworkClient": "Core: network",
    "core.ComputeClient": "Core: compute",
    "core.ComputeManagementClient": "Core: compute management",
    "core.BlockstorageClient": "Core: block volumes",
    "file_storage.FileStorageClient": "File Storage",
    "identity.IdentityClient": "Identity",
    "bastion.BastionClient": "Bastion",
    "container_engine.ContainerEngineClient": "Kubernetes Engine",
    "limits.LimitsClient": "Limits",
    "limits.QuotasClient": "Quotas",
    "work_requests.WorkRequestClient": "Work Requests",
}
_NUMBERS, _BOOLEAN = {"int", "float"}, "bool"


@dataclass(frozen=True)
class Operation:
    """One operation of a client: its method in the SDK, and what it sends."""

    name: str
    method: str
    path: str

    @property
    def place(self) -> tuple[str, str]:
        """Method and path, whatever the variable parts are called."""
        return self.method, re.sub(r"\{\w+\}", "{}", self.path)


@functools.cache
def operations(client: str) -> list[Operation]:
    """The operations of a client."""
    module, _, name = client.rpartition(".")
    found = getattr(getattr(oci, module), name)
    base = re.search(r"'base_path': '([^']*)'", inspect.getsource(found.__init__))
    assert base is not None, client
    listed = []
    for method, function in inspect.getmembers(found, inspect.isfunction):
        source = inspect.getsource(function)
        path = re.search(r'resource_path = "([^"]*)"', source)
        verb = re.search(r'^        method = "([A-Z]+)"', source, re.MULTILINE)
        if path and verb:
            listed.append(Operation(method, verb[1], base[1].rstrip("/") + path[1]))
    return listed


def routes(folder: Path) -> list[ApiRoute]:
    """The operations of the local cloud. `folder` is for files that nobody needs."""
    cloud = open_cloud(folder, NullEngine(folder / "null"), open_authority(folder))
    try:
        return all_routes(cloud)
    finally:
        cloud.close()


def member_kinds() -> dict[str, list[str]]:
    """The members of bodies that are numbers, booleans and free maps, of those that the local cloud's code names.

    A name that is text in one model and a number in another is in none of the lists.
    """
    types: dict[str, set[str]] = defaultdict(set)
    for service in sorted({client.partition(".")[0] for client in CLIENTS}):
        for model in _models(service):
            for attribute, kind in model.swagger_types.items():
                types[model.attribute_map[attribute]].add(kind)
    named = _names_in_code()
    return {
        member_types.BOOLEANS: sorted(name for name in named if types[name] == {_BOOLEAN}),
        member_types.MAPS: sorted(
            name for name, kinds in types.items() if any(one.startswith("dict(str") for one in kinds)
        ),
        member_types.NUMBERS: sorted(name for name in named if types[name] and types[name] <= _NUMBERS),
    }


def _models(service: str) -> Iterator[Any]:
    module = importlib.import_module(f"oci.{service}.models")
    for _, kind in inspect.getmembers(module, inspect.isclass):
        model = kind()
        if hasattr(model, "swagger_types"):
            yield model


def _names_in_code() -> set[str]:
    source = "".join(file.read_text() for file in sorted(LOCAL_CLOUD.rglob("*.py")))
    return set(re.findall(r"[\"'](\w+)[\"']", source)) | set(re.findall(r"\b(\w+)=", source))
