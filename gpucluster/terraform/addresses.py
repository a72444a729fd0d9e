"""Readable names of resources, from their addresses in Terraform. Pure."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:^|\.)(?:oci|null|terraform|random)_([a-z0-9_]+)\.([\w-]+)(?:\[\"?([^\]\"]*)\"?\])?$")
_POOL = re.compile(r'module\.pool\["([^"]+)"\]')
_MODULE = re.compile(r'module\.(?!pool\b)\w+\["([^"]+)"\]')
_SERVICES = ("core_", "file_storage_", "identity_", "bastion_")
_NO_NAMES = frozenset({"this", "main", "nodes", "pool"})
_ABBREVIATIONS = {"vcn": "VCN", "nat": "NAT"}


def human_name(address: str) -> str:
    """A resource as messages call it: `module.network.oci_core_subnet.private` is "the subnet private".

    An address that is not one of our resources is returned as it is.
    """
    match = _ADDRESS.search(address)
    if not match:
        return address
    kind, name, key = match[1], match[2], match[3]
    for service in _SERVICES:
        kind = kind.removeprefix(service)
    words = [_ABBREVIATIONS.get(word, word) for word in kind.split("_")]
    named = name if name not in _NO_NAMES and name not in kind else ""
    module, pool = _MODULE.search(address), _POOL.search(address)
    numbered = key if key and not key.isdigit() else module[1] if module else ""
    owner = f"of the pool {pool[1]}" if pool else "of the controller" if "module.controller." in address else ""
    parts = ["the", *words, named, numbered, owner]
    return " ".join(part for part in parts if part)


def is_internal(address: str) -> bool:
    """Whether the resource at an address exists in Terraform's state only."""
    return "terraform_data." in address
