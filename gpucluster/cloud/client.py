"""The `oci` SDK: clients for an endpoint, complete listings, and the SDK's exceptions as our errors.

Importing `oci` takes 0.4 s. It is imported inside the functions that use it, and nowhere else on the operator's side.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpucluster.errors import CloudError
from gpucluster.oci.authentication import Authentication
from gpucluster.oci.states import LifecycleState
from gpucluster.terraform import diagnosis
from gpucluster.terraform.diagnosis import CloudRefusal
from gpucluster.text import reason_of

T = TypeVar("T")

# The text in front of the reason: `HTTPConnection(host='...', port=443): ` or `<...Connection object at 0x...>, `.
_CONNECTION = re.compile(r"\w+\(host=[^)]*\): |<[^>]*>, ")


@dataclass(frozen=True)
class CloudAccess:
    """How to reach the API.

    Args:
        config: the SDK's configuration.
        endpoint: None for Oracle's own.
        signer: makes what signs the requests; None where `config` has a key or a session.
        elastic: the compartment of elastic nodes: its OCID; or its name in `compartment_id`, where it may not exist
            yet; empty: they have none of their own.
        profile_region: the region that the operator's profile names; preflight asks it if the cluster's region refuses
            a call. May be empty.
    """

    config: Mapping[str, Any]
    endpoint: str | None
    compartment_id: str
    profile_region: str = ""
    elastic: str = ""
    signer: Callable[[], Any] | None = None

    def compartments(self, identity: Any = None) -> tuple[str, ...]:
        """The compartments that have instances of the cluster: its own, and that of elastic nodes if it exists.

        Args:
            identity: a client to ask with; None: a new one.

        Raises:
            oci.exceptions.ServiceError: the cloud refused.
        """
        ids = (self.compartment_id, self.elastic_compartment(identity))
        return tuple(dict.fromkeys(each for each in ids if each))

    def elastic_compartment(self, identity: Any = None) -> str:
        """The OCID of the compartment of elastic nodes; empty if it does not exist yet. As `compartments`."""
        if not self.elastic or self.elastic.startswith("ocid1."):
            return self.elastic or self.compartment_id
        listing = (identity or self.client("identity", "IdentityClient")).list_compartments
        named = all_pages(listing, self.compartment_id, name=self.elastic)
        # A deleted one is listed for some months.
        return next((str(each.id) for each in named if each.lifecycle_state == LifecycleState.ACTIVE), "")

    def with_elastic(self, compartment_id: str) -> CloudAccess:
        """The same with another compartment of elastic nodes, by its OCID."""
        return replace(self, elastic=compartment_id)

    def client(self, service: str, name: str, *, timeout: float | None = None) -> Any:
        """A client, such as `client("core", "ComputeClient")`. It retries what OCI allows to retry.

        Args:
            timeout: seconds that one request may take. With it, the client retries nothing: the caller does.
        """
        import oci

        # By default most clients, but not that of instances, have a circuit breaker, which is one for all of them in
        # this process: ten refusals of one service in a row, and for 30 s each call to any other ends with an exception
        # that no caller expects. The retries already wait longer after each refusal.
        options: dict[str, Any] = {
            "retry_strategy": oci.retry.DEFAULT_RETRY_STRATEGY,
            "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
        }
        if timeout is not None:
            options["retry_strategy"] = oci.retry.NoneRetryStrategy()
            options["timeout"] = (timeout, timeout)
        own = self.signer() if self.signer else None
        credentials = () if own else _credentials(self.config)
        if own:
            options["signer"] = own
        elif kept := _signers.get(credentials):
            options["signer"] = kept
        if self.endpoint:
            options["service_endpoint"] = self.endpoint
        client = getattr(getattr(oci, service), name)(dict(self.config), **options)
        if self.endpoint:
            # An endpoint of our own is on this machine: the SDK would ask the caller's proxy for it.
            client.base_client.session.trust_env = False
        if credentials:
            _signers[credentials] = client.base_client.signer
        return client


# The signers of this process, by what they were made of: to read and check a private key takes longer than a request
# (40 ms for 2048 bits, 270 ms for 4096).
_signers: dict[tuple[object, ...], Any] = {}


def _credentials(config: Mapping[str, Any]) -> tuple[object, ...]:
    """What decides a signer; empty where it must be made each time, because a session's token may be renewed."""
    if config.get("security_token_file"):
        return ()
    file = config.get("key_file")
    try:
        status = os.stat(os.path.expanduser(file)) if file else None
    except OSError:
        return ()  # the SDK reports what is wrong with it
    content = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) if status else ()
    return (*sorted((key, str(value)) for key, value in config.items() if key != "region"), content)


class SharedClients:
    """The SDK's clients of one access for several threads: each is made once.

    Args:
        timeout: as in `Access.client`.
    """

    def __init__(self, access: CloudAccess, *, timeout: float | None = None) -> None:
        self._access = access
        self._timeout = timeout
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def get(self, service: str, name: str) -> Any:
        """A client, such as `get("core", "ComputeClient")`."""
        with self._lock:
            if (service, name) not in self._clients:
                self._clients[service, name] = self._access.client(service, name, timeout=self._timeout)
            return self._clients[service, name]


def home_region(access: CloudAccess) -> str:
    """The only region in which the tenancy's dynamic groups and policies are written, such as "us-ashburn-1".

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    with refusals("asking for the tenancy's home region"):
        tenancy = access.config["tenancy"]
        subscribed = access.client("identity", "IdentityClient").list_region_subscriptions(tenancy).data
    for region in subscribed:
        if region.is_home_region:
            return str(region.region_name)
    raise CloudError(
        "the tenancy has no home region", where=tenancy, hint="Ask an administrator of the tenancy for one"
    )


def all_pages(call: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """The entries of all pages of a listing.

    The SDK's own pagination would request each page up to eight times, on top of the client's retries.
    """
    answer = call(*args, **kwargs)
    entries = _entries(answer.data)
    while answer.has_next_page:
        answer = call(*args, **kwargs, page=answer.next_page)
        entries += _entries(answer.data)
    return entries


def _entries(data: Any) -> list[Any]:
    """The entries of one page: a list, or a collection with `items` as newer operations return it."""
    return list(getattr(data, "items", data))


def model(service: str, name: str, **fields: Any) -> Any:
    """A request's body, such as `model("core", "UpdateInstanceDetails", display_name="compute-1")`."""
    import oci

    return getattr(getattr(oci, service).models, name)(**fields)


@contextmanager
def refusals(doing: str) -> Iterator[None]:
    """Turn the SDK's exceptions into CloudError.

    Args:
        doing: what was attempted, such as "reading an instance"; the message begins with it.
    """
    import oci

    try:
        yield
    except oci.exceptions.ServiceError as error:
        raise CloudError(
            f"{doing}: the cloud answered {error.status} {error.code}: {error.message}",
            where=f"opc-request-id {error.request_id}",
            hint=_advice(error, doing),
            status=error.status,
            code=str(error.code or ""),
            date=str((error.headers or {}).get("date") or ""),
        ) from error
    except (oci.exceptions.RequestException, oci.exceptions.ConnectTimeout) as error:
        raise CloudError(
            f"{doing}: the cloud can't be reached: {_cause(error)}",
            hint="Check the network, then run the same command again",
        ) from error


def unless_refused(call: Callable[[], T], *statuses: int) -> T | None:
    """What a call of the SDK returns; None where the cloud answers with one of these statuses."""
    import oci

    try:
        return call()
    except oci.exceptions.ServiceError as error:
        if error.status in statuses:
            return None
        raise


def _advice(error: Any, doing: str) -> str:
    """What to do about an error of the API."""
    refusal = CloudRefusal(str(error.message), error.status, str(error.code or ""), operation=_operation(error))
    return diagnosis.of_service(refusal, doing=doing, again="the same command").advice


def _operation(error: Any) -> str:
    """Such as `DeleteSubnet`, from the SDK's `delete_subnet`; empty with releases of the SDK that do not name it."""
    return "".join(word.capitalize() for word in str(getattr(error, "operation_name", None) or "").split("_"))


def _cause(error: Exception) -> str:
    """The useful end of the HTTP library's long message, such as "[Errno 111] Connection refused"."""
    text = re.split(r"""["'], ["']Request Endpoint""", str(error))[0]
    caused = re.sub(r"""["']\)+$""", "", text.partition("(Caused by ")[2])
    return _CONNECTION.split(caused or text)[-1].replace("\\'", "'").strip("(\"'")


def session_signer(token: Callable[[], str], key: str) -> Any:
    """A signer of the SDK for a session.

    Args:
        token: the session's token of the moment, which is asked for each request.
        key: the session's private key, PEM.

    Raises:
        ValueError: it is not such a key.
    """
    import oci

    class Signer(oci.auth.signers.SecurityTokenSigner):  # type: ignore[misc] # the SDK has no types
        """Signs with a token that may be renewed."""

        def __call__(self, request: Any, *args: Any, **options: Any) -> Any:
            self.api_key = f"ST${token()}"
            for each in (self._basic_signer, self._body_signer):
                each.reset_signer(self.api_key, self.private_key)
            return super().__call__(request, *args, **options)

    return Signer(token(), oci.signer.load_private_key(key, None))


def principal_signer(method: Authentication, federation_endpoint: str = "") -> Any:
    """A signer of the SDK for what OCI gives an identity to. It renews its token itself.

    Args:
        federation_endpoint: where an instance gets its token; empty for Oracle's own.

    Raises:
        CloudError: there is no token to be had.
    """
    from oci.auth import signers

    doing = f"getting a token as {method.replace('_', ' ')}"
    try:
        with refusals(doing):
            if method == "instance_principal":
                options = {"federation_endpoint": federation_endpoint} if federation_endpoint else {}
                return signers.InstancePrincipalsSecurityTokenSigner(**options)
            if method == "resource_principal":
                return signers.get_resource_principals_signer()
            return signers.get_oke_workload_identity_resource_principal_signer()
    except (OSError, ValueError, RuntimeError) as error:
        hint = "Check what OCI gives to this machine, and its clock"
        raise CloudError(f"{doing}: {reason_of(error)}", hint=hint) from error


def fingerprint(key: bytes) -> str:
    """The fingerprint by which OCI knows an API key: MD5 of the public key's DER, in pairs with colons.

    Args:
        key: the private key, PEM.

    Raises:
        ValueError: it is not such a key. The text states why; for an encrypted key it is "it has a passphrase".
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        # A damaged key fails when it signs. Checking it here would take longer than everything else.
        private = load_pem_private_key(key, None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise ValueError("it has a passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("not a private key in PEM format") from None
    der = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
