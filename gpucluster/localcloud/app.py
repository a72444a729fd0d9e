"""The web application: believe a request or not, find its operation, run it on a thread, answer as OCI does."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import file_storage, identity, images, instances, management, network, shapes, vnics
from gpucluster.localcloud.cloud import Cloud, log
from gpucluster.localcloud.signing import SignatureRefused, verify
from gpucluster.localcloud.wire import CLIENT_ERROR, ApiError, Call, Reply, Route

HEALTH = "/health"
_MAX_BODY = 2 * 1024 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9/_.\-]{1,98}")
_PARAM = re.compile(r"\{(\w+)\}")


def all_routes(cloud: Cloud) -> list[Route]:
    """Every operation that the local cloud knows."""
    services = (network, vnics, instances, images, shapes, management, file_storage, identity)
    return [route for service in services for route in service.routes(cloud)]


class Application:
    """An ASGI application over the routes of one cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._routes = [(re.compile(_PARAM.sub(r"(?P<\1>[^/]+)", route.path)), route) for route in all_routes(cloud)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected ASGI scope {scope['type']}")
        began = time.monotonic()
        request = Request(scope, receive)
        reply, operation = await self._answer(request)
        request_id = _request_id(request.headers.get("opc-request-id", ""))
        body = b"" if reply.body is None else json.dumps(reply.body, separators=(",", ":")).encode()
        headers = {**reply.headers, "opc-request-id": request_id}
        response = Response(body, reply.status, headers, media_type="application/json" if body else None)
        await response(scope, receive, send)
        if scope["path"] != HEALTH:
            elapsed = (time.monotonic() - began) * 1000
            code = reply.body.get("code", "") if reply.status >= CLIENT_ERROR and isinstance(reply.body, dict) else ""
            # The path is text of the client's; repr keeps it on one line.
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

    async def _answer(self, request: Request) -> tuple[Reply, str]:
        if request.url.path == HEALTH:
            return Reply({"status": "ok"}), "Health"
        operation = "-"
        try:
            body = await _read(request)
            self._believe(request, body)
            route, path = self._match(request.method, request.url.path)
            operation = route.operation
            query = dict(parse_qsl(request.url.query, keep_blank_values=True))
            call = Call(operation, path, query, dict(request.headers), body)
            return await to_thread.run_sync(self._run, route, call), operation
        except ApiError as error:
            return Reply({"code": error.code, "message": error.message}, error.status), operation
        except GpuClusterError as error:
            log.error("%s: %s", operation, error)
            return Reply({"code": "InternalError", "message": str(error)}, 500), operation
        except Exception:
            log.exception("%s failed", operation)
            return Reply(
                {"code": "InternalServerError", "message": "An internal server error occurred."}, 500
            ), operation

    def _run(self, route: Route, call: Call) -> Reply:
        self._cloud.faults.check(route.operation)
        return route.handler(call)

    def _believe(self, request: Request, body: bytes) -> None:
        query = request.scope["query_string"].decode("latin-1")
        target = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        identity = self._cloud.identity
        try:
            verify(
                method=request.method,
                target=target,
                headers=request.headers,
                body=body,
                key_id=identity.key_id,
                key=identity.public_key,
                now=time.time(),
            )
        except SignatureRefused as error:
            log.warning("refused %s %r: %s", request.method, request.url.path, error)
            raise ApiError(
                401,
                "NotAuthenticated",
                "The required information to complete authentication was not provided or was incorrect.",
            ) from error

    def _match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        found = False
        for pattern, route in self._routes:
            match = pattern.fullmatch(path)
            if match and route.method == method:
                return route, match.groupdict()
            found = found or match is not None
        if found:
            raise ApiError(405, "MethodNotAllowed", f"{method} is not supported at {path}")
        raise ApiError(404, "NotFound", f"There is no operation at {path} in the local cloud")


async def _read(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY:
            raise ApiError(413, "PayloadTooLarge", f"The body has more than {_MAX_BODY} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _request_id(sent: str) -> str:
    """OCI answers with the caller's id and one of its own behind it."""
    own = secrets.token_hex(16).upper()
    return f"{sent}/{own}" if _REQUEST_ID.fullmatch(sent) else own
