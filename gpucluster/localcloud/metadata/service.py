"""The metadata service: which instance asks, what it may ask for, and the answer.

The address that a request comes from decides which instance asks, so an instance sees itself only. Facts of OCI (its
page "Getting Instance Metadata"): every request to version 2 needs `Authorization: Bearer Oracle`; a request that a
proxy forwarded (`Forwarded`, `X-Forwarded-For`, `X-Forwarded-Host`) is rejected; version 1 answers without both until
an instance disables it (`areLegacyImdsEndpointsDisabled`), and is 404 then. The status of a rejection is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpucluster.localcloud.auth.instance_principals import Principal, PrincipalAuthority
from gpucluster.localcloud.compute.addresses import engine_network
from gpucluster.localcloud.metadata.documents import host_document, instance_document, selected, vnic_documents
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.store import Resource

_AUTHORIZATION = "Bearer Oracle"
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host")


@dataclass(frozen=True)
class MetadataAnswer:
    """The status and the text of an answer."""

    status: int
    text: str
    media_type: str = "text/plain"


class MetadataService:
    """The ASGI application that instances reach at 169.254.169.254."""

    def __init__(self, cloud: CloudState, authority: PrincipalAuthority) -> None:
        self._cloud = cloud
        self._authority = authority

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected ASGI scope {scope['type']}")
        request = Request(scope, receive)
        source = request.client.host if request.client else ""
        answer = await to_thread.run_sync(self.answer, request.method, request.url.path, request.headers, source)
        # A private key and user data are among the answers: no text of them goes to the log.
        log.info("metadata %s %r for %s %d", request.method, request.url.path, source, answer.status)
        await Response(answer.text, answer.status, media_type=answer.media_type)(scope, receive, send)

    def answer(self, method: str, path: str, headers: Mapping[str, str], source: str) -> MetadataAnswer:
        """The answer to a request.

        Args:
            headers: names in lower case.
            source: the IPv4 address that the request comes from.
        """
        instance = self._instance_at(source)
        if instance is None:
            return MetadataAnswer(404, "No instance has this address.\n")
        if method not in ("GET", "HEAD"):
            return MetadataAnswer(405, "The metadata service is read-only.\n")
        service, version, *parts = *(part for part in path.split("/") if part), "", ""
        if service != "opc":
            return _NOT_FOUND
        refusal = _refusal(version, headers, instance)
        if refusal is not None:
            return refusal
        text = self._text(instance, [part for part in parts if part])
        if text is None:
            return _NOT_FOUND
        return MetadataAnswer(200, text, "application/json" if text[:1] in ("{", "[") else "text/plain")

    def _text(self, instance: Resource, parts: list[str]) -> str | None:
        documents: Mapping[str, Callable[[], object]] = {
            "instance": lambda: instance_document(instance, self._cloud.identity.tenancy),
            "host": lambda: host_document(instance),
            "vnics": lambda: self._vnics(instance),
        }
        match parts:
            case ["identity", "cert.pem"]:
                return self._authority.leaf(self._principal(instance)).certificate
            case ["identity", "key.pem"]:
                return self._authority.leaf(self._principal(instance)).key
            case ["identity", "intermediate.pem"]:
                return self._authority.intermediate
            case [name, *path] if name in documents:
                return selected(documents[name](), path)
        return None

    def _principal(self, instance: Resource) -> Principal:
        return Principal(instance.id, str(instance.body["compartmentId"]), self._cloud.identity.tenancy)

    def _instance_at(self, address: str) -> Resource | None:
        """The existing instance with this private address: the ranges of a machine's networks do not overlap."""
        for private in self._cloud.store.find("privateip", ipAddress=address):
            instance = self._cloud.store.get("instance", str(private.hidden.get("owner")))
            if instance is not None and instance.gone_at is None:
                return instance
        return None

    def _vnics(self, instance: Resource) -> list[dict[str, object]]:
        store = self._cloud.store
        vnic = store.get("vnic", instance.hidden["vnic"])
        vcn = store.get("vcn", instance.hidden["vcn"])
        subnet = store.get("subnet", str(vnic.body["subnetId"])) if vnic else None
        if vnic is None or vcn is None or subnet is None:
            return []
        return vnic_documents([(vnic, subnet)], engine_network(vcn, instance.hidden["ip"])[1])


_NOT_FOUND = MetadataAnswer(404, "There is no such metadata.\n")


def _refusal(version: str, headers: Mapping[str, str], instance: Resource) -> MetadataAnswer | None:
    """Why a version of the service does not answer a request; None if it does."""
    if version == "v1":
        disabled = (instance.body.get("instanceOptions") or {}).get("areLegacyImdsEndpointsDisabled")
        return _NOT_FOUND if disabled else None
    if version != "v2":
        return _NOT_FOUND
    if any(name in headers for name in _FORWARDED):
        return MetadataAnswer(403, "A request that was forwarded is rejected.\n")
    if headers.get("authorization", "") != _AUTHORIZATION:
        return MetadataAnswer(401, f"The header `Authorization: {_AUTHORIZATION}` is required.\n")
    return None
