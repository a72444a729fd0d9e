"""Create, read and delete of resources without an OCID: the provider makes their id from attributes.

An agreement is only fetched, a subscription is found in a list, a shape of an image has its own path.
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
    """Carries out Terraform's operations."""

    def __init__(self, client: RestClient) -> None:
        self.client = client

    def create(self, kind: ManagedResource, planned: Mapping[str, Any]) -> Json:
        """Create, or fetch if the resource is only fetched. These resources are ready at once."""
        key = _key_of(kind)
        body = {"POST": to_wire(kind.schema, planned), "PUT": {}}.get(key.create_method)
        reply = self.client.call(key.create_method, filled(kind.path, planned), body=body).body or {}
        state = from_wire(kind.schema, reply, planned)
        state["id"] = filled(key.id_template, state)
        return state

    def read(self, kind: ManagedResource, state: Mapping[str, Any], *, everything: bool = False) -> Json | None:
        """The current state; None if the resource is gone."""
        key = _key_of(kind)
        if key.read == "none":
            return dict(state)
        values = {**state, **_values(key.id_template, state["id"])}
        body = self._listed(kind, values) if key.read == "list" else self._get(kind, values)
        if body is None:
            return None
        return {**from_wire(kind.schema, body, values, everything=everything), "id": state["id"]}

    def delete(self, kind: ManagedResource, state: Mapping[str, Any]) -> None:
        """Delete. Does nothing for a resource that is only in Terraform's state."""
        key = _key_of(kind)
        if key.read == "none":
            return
        values = {**state, **_values(key.id_template, state["id"])}
        try:
            self.client.call("DELETE", filled(kind.path, values), query=_query(key, values) or None)
        except ServiceError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _get(self, kind: ManagedResource, values: Mapping[str, Any]) -> Json | None:
        try:
            body: Json = self.client.call("GET", filled(kind.path, values)).body
        except ServiceError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return body

    def _listed(self, kind: ManagedResource, values: Mapping[str, Any]) -> Json | None:
        key = _key_of(kind)
        for body in self.client.items(kind.path, _query(key, values)):
            shown = from_wire(kind.schema, body, {})
            if all(shown[name] == values[name] for name in key.match):
                return dict(body)
        return None


def _key_of(kind: ManagedResource) -> CompositeKey:
    assert kind.composite_key is not None, f"{kind.type_name} has an OCID"
    return kind.composite_key


def _query(key: CompositeKey, values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(values[attribute]) for name, attribute in key.query.items()}


def _values(id_template: str, text: str) -> dict[str, str]:
    """The attributes in an id."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", id_template)
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ServiceError(0, "IllegalId", f"{text!r} is not of the form {id_template}")
    return {name: unquote(value) for name, value in match.groupdict().items()}
