"""Terraform's resources that have no OCID: what they are is in their id, which the provider makes of attributes.

An agreement is only fetched, a subscription is found in a list, a shape of an image lies at its own path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from gpucluster.localcloud.provider.rest import RestClient, ServiceError
from gpucluster.localcloud.provider.schema import CompositeKey, Json, ManagedResource, filled
from gpucluster.localcloud.provider.translation import from_wire, to_wire


class CompositeKeyOperator:
    """Does to the cloud what Terraform asks for."""

    def __init__(self, client: RestClient) -> None:
        self.client = client

    def create(self, kind: ManagedResource, planned: Mapping[str, Any]) -> Json:
        """Create, or fetch what only needs to be fetched; there is nothing to wait for."""
        keyed = _keyed(kind)
        body = to_wire(kind.schema, planned) if keyed.make == "POST" else {} if keyed.make == "PUT" else None
        answer = self.client.call(keyed.make, filled(kind.path, planned), body=body).body or {}
        state = from_wire(kind.schema, answer, planned)
        state["id"] = filled(keyed.key, state)
        return state

    def read(self, kind: ManagedResource, state: Mapping[str, Any], *, everything: bool = False) -> Json | None:
        """The state of now; None if it is gone."""
        keyed = _keyed(kind)
        if not keyed.look:
            return dict(state)
        wanted = {**state, **_values(keyed.key, state["id"])}
        body = self._listed(kind, wanted) if keyed.look == "list" else self._got(kind, wanted)
        if body is None:
            return None
        return {**from_wire(kind.schema, body, wanted, everything=everything), "id": state["id"]}

    def delete(self, kind: ManagedResource, state: Mapping[str, Any]) -> None:
        """Delete; what is only in Terraform's state just goes from there."""
        keyed = _keyed(kind)
        if not keyed.look:
            return
        wanted = {**state, **_values(keyed.key, state["id"])}
        try:
            self.client.call("DELETE", filled(kind.path, wanted), query=_query(keyed, wanted) or None)
        except ServiceError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _got(self, kind: ManagedResource, wanted: Mapping[str, Any]) -> Json | None:
        try:
            body: Json = self.client.call("GET", filled(kind.path, wanted)).body
        except ServiceError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return body

    def _listed(self, kind: ManagedResource, wanted: Mapping[str, Any]) -> Json | None:
        keyed = _keyed(kind)
        for body in self.client.items(kind.path, _query(keyed, wanted)):
            shown = from_wire(kind.schema, body, {})
            if all(shown[name] == wanted[name] for name in keyed.match):
                return dict(body)
        return None


def _keyed(kind: ManagedResource) -> CompositeKey:
    assert kind.keyed is not None, f"{kind.type_name} has an OCID"
    return kind.keyed


def _query(keyed: CompositeKey, values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(values[attribute]) for name, attribute in keyed.query.items()}


def _values(key: str, text: str) -> dict[str, str]:
    """The attributes that an id was made of."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", key)
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ServiceError(0, "IllegalId", f"{text!r} is not of the form {key}")
    return {name: unquote(value) for name, value in match.groupdict().items()}
