"""The web application: authenticate a request, find its operation, run it on a thread, reply as OCI does."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import (
    app_catalog,
    bastions,
    block_volumes,
    capacity_reservations,
    console,
    container_engine,
    file_storage,
    gpu_memory_clusters,
    gpu_memory_fabrics,
    identity,
    images,
    instance_configurations,
    instance_pools,
    instances,
    limits,
    maintenance_events,
    network,
    node_pools,
    shapes,
    vnics,
)
from gpucluster.localcloud.auth import federation, identity_domain
from gpucluster.localcloud.auth.authorization import authorize
from gpucluster.localcloud.auth.instance_principals import PrincipalAuthority
from gpucluster.localcloud.auth.signing import SignatureRefused, verify
from gpucluster.localcloud.kubernetes.control_plane import REVIEWS
from gpucluster.localcloud.server.watch import ContainerWatch
from gpucluster.localcloud.state import source
from gpucluster.localcloud.state.cloud import HELD_LOOK_SECONDS, CloudState, launch_facts, log
from gpucluster.localcloud.state.faults import Effect, Facts
from gpucluster.localcloud.state.names import HEALTH, LOOK
from gpucluster.localcloud.state.wire import CLIENT_ERROR, ApiError, ApiRoute, Call, Reply

# Operations at the same time. Most need a few milliseconds of Python, which more threads do not make faster; some wait
# for the engine.
_THREADS = 8
# Operations whose answer has the states of instances.
_SHOW_STATES = frozenset(
    {
        "GetInstance", "ListInstances", "ListInstancePoolInstances", "ListClusterNetworkInstances", "GetCluster",
        "ListClusters", "ListComputeGpuMemoryClusterInstances",
    }
)  # fmt: skip
_MAX_BODY = 2 * 1024 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9/_.\-]{1,98}")
_PARAM = re.compile(r"\{(\w+)\}")


def all_routes(cloud: CloudState) -> list[ApiRoute]:
    """All operations of the API."""
    services = (
        network, vnics, block_volumes, instances, maintenance_events, console, images, app_catalog, shapes,
        capacity_reservations,
        instance_configurations, instance_pools, gpu_memory_fabrics, gpu_memory_clusters, file_storage, identity,
        bastions, limits,
        container_engine, node_pools,
    )  # fmt: skip
    return [route for service in services for route in service.routes(cloud)]


@dataclass(frozen=True)
class _Outcome:
    """The result of a request. `lost`: the connection is closed without a response (a fault)."""

    reply: Reply
    operation: str = "-"
    lost: bool = False


class Application:
    """The ASGI application with the routes of one cloud.

    It matches routes itself. Starlette's router decides between 404 and 405 only while it calls an endpoint, answers
    with bodies of its own and adds HEAD to every GET; here the operation must be known before, for faults and policies.
    """

    def __init__(self, cloud: CloudState, authority: PrincipalAuthority) -> None:
        self._cloud = cloud
        self._authority = authority
        self._code = source.digest()  # now: the files may be replaced while it runs
        self._threads = CapacityLimiter(_THREADS)
        self._watch = ContainerWatch(cloud)
        self._routes = [(re.compile(_PARAM.sub(r"(?P<\1>[^/]+)", route.path)), route) for route in all_routes(cloud)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected ASGI scope {scope['type']}")
        began = time.monotonic()
        request = Request(scope, receive)
        outcome = await self._answer(request)
        reply, operation = outcome.reply, outcome.operation
        if outcome.lost:
            log.info(
                "%s %r %s %d is not answered because of a fault", request.method, scope["path"], operation, reply.status
            )
            await _hang_up(receive, send)
            return
        request_id = _request_id(request.headers.get("opc-request-id", ""))
        headers = {**reply.headers, "opc-request-id": request_id}
        if isinstance(reply.body, bytes):
            response = Response(reply.body, reply.status, headers, media_type="application/octet-stream")
        else:
            body = b"" if reply.body is None else json.dumps(reply.body, separators=(",", ":")).encode()
            response = Response(body, reply.status, headers, media_type="application/json" if body else None)
        # Before the answer: who has that finds the line.
        if scope["path"] != HEALTH:
            elapsed = (time.monotonic() - began) * 1000
            code = reply.body.get("code", "") if reply.status >= CLIENT_ERROR and isinstance(reply.body, dict) else ""
            # The client chooses the path; repr keeps it on one line of the log.
            log.info(
                "%s %r %s %d %s %.0f ms %s",
                request.method,
                scope["path"],
                operation,
                reply.status,
                code,
                elapsed,
                request_id,
            )
        await response(scope, receive, send)

    def _health(self) -> dict[str, str]:
        return {"status": "ok", "tenancy": self._cloud.identity.tenancy, "code": self._code}

    async def _answer(self, request: Request) -> _Outcome:
        if request.url.path == HEALTH:
            if request.url.query == LOOK:
                await to_thread.run_sync(self._watch.look, limiter=self._threads)
            return _Outcome(Reply(self._health()), "Health")
        operation = "-"
        try:
            body = await _read(request)
            if request.method == "POST" and (special := self._proved_otherwise(request.url.path)):
                operation, handle = special
                return _Outcome(await to_thread.run_sync(handle, request, body), operation)
            instance_id = self._authenticate(request, body)
            route, path = self._match(request.method, request.url.path)
            operation = route.operation
            query = dict(parse_qsl(request.url.query, keep_blank_values=True))
            call = Call(operation, path, query, dict(request.headers), body)
            return await self._run(route, call, instance_id)
        except ApiError as error:
            return _Outcome(Reply({"code": error.code, "message": error.message}, error.status), operation)
        except GpuClusterError as error:
            log.error("%s: %s", operation, error)
            return _Outcome(Reply({"code": "InternalError", "message": str(error)}, 500), operation)
        except Exception:  # a bug of ours: logged with its traceback, and answered as OCI does
            log.exception("%s failed", operation)
            return _Outcome(
                Reply({"code": "InternalServerError", "message": "An internal server error occurred."}, 500), operation
            )

    async def _run(self, route: ApiRoute, call: Call, instance_id: str | None) -> _Outcome:
        """Carry out an operation, if policies and faults permit."""
        outcome = await to_thread.run_sync(self._begin, route, call, instance_id, limiter=self._threads)
        if isinstance(outcome, _Outcome):
            return outcome
        # Not on a thread: a thousand clients may wait at the same time.
        await asyncio.sleep(outcome.delay)
        while not self._cloud.closing.is_set() and self._cloud.faults.holds(outcome):
            await asyncio.sleep(HELD_LOOK_SECONDS)
        return await to_thread.run_sync(_finish, route, call, outcome, limiter=self._threads)

    def _begin(self, route: ApiRoute, call: Call, instance_id: str | None) -> _Outcome | Effect:
        """Carry out an operation, or return the fault that delays it. The operator may do everything."""
        if route.operation in _SHOW_STATES:
            self._watch.look()
        if instance_id is not None:
            authorize(self._cloud, instance_id, route, call)
        effect = self._effect(route, call)
        return effect if effect.waits else _finish(route, call, effect)

    def _effect(self, route: ApiRoute, call: Call) -> Effect:
        def facts() -> Facts:
            return launch_facts(self._cloud, route.details(call)) if route.details else {}

        repeated = bool(call.retry_token) and self._cloud.store.retry(call.retry_token) is not None
        return self._cloud.faults.effect_on(route.operation, facts, repeated=repeated)

    def _proved_otherwise(self, path: str) -> tuple[str, Callable[[Request, bytes], Reply]] | None:
        """The operations whose caller proves itself by something else than the signature of a request."""
        if path == federation.PATH:
            return "X509Federation", self._federate
        if path == identity_domain.PATH:
            return "TokenExchange", self._exchange_token
        return ("ReviewToken", self._review) if path.startswith(f"{REVIEWS}/") else None

    def _federate(self, request: Request, body: bytes) -> Reply:
        """A token for an instance that exists and shows its certificate."""
        try:
            instance_id, token = federation.exchange(
                self._authority, target=_target(request), headers=request.headers, body=body, now=time.time()
            )
        except SignatureRefused as error:
            raise _not_authenticated(request, str(error)) from error
        instance = self._cloud.store.get("instance", instance_id)
        if instance is None or instance.gone_at is not None:
            raise _not_authenticated(request, f"{instance_id} is terminated")
        return Reply({"token": token})

    def _exchange_token(self, request: Request, body: bytes) -> Reply:
        """A session of the operator for a trusted ID token. The errors are those of OAuth, not of the API."""
        domain = identity_domain.IdentityDomain.of(self._cloud.home, self._cloud.identity, self._authority)
        try:
            return Reply({"token": domain.exchange(request.headers, body, time.time())})
        except identity_domain.ExchangeRefused as error:
            log.warning("rejected %s %r: %s: %s", request.method, request.url.path, error.code, error)
            return Reply({"error": error.code, "error_description": str(error)}, error.status)

    def _review(self, request: Request, body: bytes) -> Reply:
        """Whom a token belongs to, for the API server of a cluster, which shows the secret of that cluster."""
        ocid = request.url.path.removeprefix(f"{REVIEWS}/")
        secret = request.headers.get("authorization", "").removeprefix("Bearer ")
        return container_engine.review_token(self._cloud, ocid, secret, body)

    def _authenticate(self, request: Request, body: bytes) -> str | None:
        """Verify the signature. Returns the OCID of the instance that signed; None for the operator."""
        try:
            key_id = verify(
                method=request.method,
                target=_target(request),
                headers=request.headers,
                body=body,
                key_of=self._cloud.identity.key,
                now=time.time(),
            )
            return self._cloud.identity.instance(key_id)
        except SignatureRefused as error:
            raise _not_authenticated(request, str(error)) from error

    def _match(self, method: str, path: str) -> tuple[ApiRoute, Mapping[str, str]]:
        path_exists = False
        for pattern, route in self._routes:
            match = pattern.fullmatch(path)
            if match and route.method == method:
                return route, match.groupdict()
            path_exists = path_exists or match is not None
        if path_exists:
            raise ApiError(405, "MethodNotAllowed", f"{method} is not supported at {path}")
        raise ApiError(404, "NotFound", f"There is no operation at {path} in the local cloud")


def _finish(route: ApiRoute, call: Call, effect: Effect) -> _Outcome:
    if effect.error is not None:
        raise effect.error
    reply = route.handler(replace(call, stale_seconds=effect.stale_seconds) if effect.stale_seconds else call)
    return _Outcome(reply, route.operation, effect.lost_response)


def _target(request: Request) -> str:
    """Path and query as in the request line."""
    path, query = (str(request.scope[part], "latin-1") for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


def _not_authenticated(request: Request, reason: str) -> ApiError:
    log.warning("rejected %s %r: %s", request.method, request.url.path, reason)
    return ApiError(
        401,
        "NotAuthenticated",
        "The required information to complete authentication was not provided or was incorrect.",
    )


async def _hang_up(receive: Receive, send: Send) -> None:
    """Close the connection without a response, like a failing network.

    ASGI has no message for that; uvicorn's `send` is a method of the object that owns the connection.
    """
    send.__self__.transport.abort()  # type: ignore[attr-defined]
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request) -> bytes:
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MAX_BODY:
                raise ApiError(413, "PayloadTooLarge", f"The body has more than {_MAX_BODY} bytes")
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ApiError(400, "CannotParseRequest", "The connection was closed before the end of the body") from error
    return b"".join(chunks)


def _request_id(sent: str) -> str:
    """The caller's id, followed by a new one, as OCI answers."""
    own = secrets.token_hex(16).upper()
    return f"{sent}/{own}" if _REQUEST_ID.fullmatch(sent) else own
