"""The `oci` SDK: clients for an endpoint, whole listings, and its refusals as our errors.

`oci` costs 0.4 s to import, so it is imported where it is used, and only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpucluster.errors import CloudError


@dataclass(frozen=True)
class Access:
    """How to reach the API: the SDK's configuration, and an endpoint where it is not Oracle's own."""

    config: Mapping[str, Any]
    endpoint: str | None
    compartment_id: str

    def client(self, service: str, name: str) -> Any:
        """A client, such as `client("core", "ComputeClient")`; it retries what OCI says may be retried."""
        import oci

        options: dict[str, Any] = {"retry_strategy": oci.retry.DEFAULT_RETRY_STRATEGY}
        if self.endpoint:
            options["service_endpoint"] = self.endpoint
        return getattr(getattr(oci, service), name)(dict(self.config), **options)


def everything(call: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """All pages of a listing."""
    import oci

    return list(oci.pagination.list_call_get_all_results(call, *args, **kwargs).data)


def model(service: str, name: str, **fields: Any) -> Any:
    """A request's body, such as `model("core", "UpdateInstanceDetails", display_name="compute-1")`."""
    import oci

    return getattr(getattr(oci, service).models, name)(**fields)


@contextmanager
def refusals(doing: str) -> Iterator[None]:
    """Turn the SDK's exceptions into CloudError; `doing` says what we were about."""
    import oci

    try:
        yield
    except oci.exceptions.ServiceError as error:
        raise CloudError(
            f"{doing}: the cloud answered {error.status} {error.code}: {error.message}",
            where=f"opc-request-id {error.request_id}",
        ) from error
    except oci.exceptions.RequestException as error:
        raise CloudError(f"{doing}: the cloud can't be reached: {error}", hint="Check the network") from error
