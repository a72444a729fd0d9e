"""The cloud, through Oracle's own SDK: list by tag, launch, terminate, and say what a refusal means.

`oci` costs 0.4 s to import, so it is imported where it is used. The SDK never retries a call: its default strategy
retries any 5xx, and "Out of host capacity" is one (HTTP 500). The loop and the executor ask again in their own time.
"""

from __future__ import annotations

import configparser
import copy
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.decide.words import ADVICE
from gpucluster.autoscaler.decide.world import Fault, Instance
from gpucluster.autoscaler.policy import Policy, PoolPolicy
from gpucluster.errors import CloudError, InputError
from gpucluster.oci import permissions

TAG_CLUSTER, TAG_NODE, TAG_POOL, TAG_GENERATION = "gpucluster", "node", "pool", "generation"
KEYS = "ssh_authorized_keys"
# Seconds to connect and to wait for an answer. A launch that takes longer is asked for again with the same token.
TIMEOUT = (10.0, 45.0)
PAGE = 1000

_OK, _BAD, _UNAUTHORIZED, _NOT_FOUND = 200, 400, 401, 404
_CONFLICT, _PRECONDITION, _TOO_MANY, _SERVER = 409, 412, 429, 500
_CAPACITY = re.compile(r"out of (host )?capacity", re.IGNORECASE)
# A host name stays taken for a while after its instance has gone.
_NAME_TAKEN = re.compile(r"host\s?name.*(already|in use)", re.IGNORECASE)
_ENDING = ("TERMINATING", "TERMINATED")
_LIMITS = frozenset({"LimitExceeded", "QuotaExceeded", "ServiceLimitExceeded", "TenantCapacityExceeded"})
# OCI needs up to some minutes until a policy is in force everywhere (docs: "How Policies Work"). Seconds.
_SETTLING = 600.0
# So many characters of a console's output are kept (OCI gives 1 MB at most at once).
_CONSOLE_BYTES = 1_048_576


class Trouble(StrEnum):
    """A refusal that says nothing about the launch itself."""

    THROTTLE = "throttle"  # too fast: the same request again, later
    AUTH = "auth"  # we are not believed: once more with a fresh signer


def classify(status: int, code: str, message: str) -> Fault | Trouble:
    """What a refusal means, by what has to be done about it.

    Args:
        status: of HTTP; 0 where there was no answer.
        code, message: of the answer's body, or of a work request's error (with the status 500).
    """
    if status == _UNAUTHORIZED:
        return Trouble.AUTH
    if status == _TOO_MANY or code == "TooManyRequests":
        return Trouble.THROTTLE
    if code in _LIMITS:
        return Fault.LIMIT
    if _CAPACITY.search(message) or code == "OutOfHostCapacity":
        return Fault.CAPACITY
    lasting = _BAD <= status < _SERVER and status not in (_CONFLICT, _PRECONDITION)
    return Fault.CONFIGURATION if lasting and not _NAME_TAKEN.search(message) else Fault.TRANSIENT


class Refusal(CloudError):
    """The cloud said no, or nothing at all (`status` 0).

    Args:
        hint: what a person can do about it.
    """

    def __init__(
        self, operation: str, status: int, code: str, message: str, request_id: str = "", hint: str = ""
    ) -> None:
        answer = f"the cloud answered {status} {code}" if status else "no answer from the cloud"
        super().__init__(
            f"{operation}: {answer}: {message}", where=f"opc-request-id {request_id}" if request_id else "", hint=hint
        )
        self.operation, self.status, self.code, self.message = operation, status, code, message
        self.request_id = request_id
        self.kind = classify(status, code, message)

    @property
    def words(self) -> str:
        """The code and the message, on one line, and after `ADVICE` what can be done."""
        said = " ".join(f"{self.code}: {self.message}".split())
        return f"{said}{ADVICE}{self.hint}" if self.hint else said


def _advice(operation: str, status: int, policy: Policy) -> str:
    if status == _UNAUTHORIZED and policy.authentication.method == "api_key":
        return "The controller's key is not believed. Run gpucluster apply: it brings the right one"
    if status == _UNAUTHORIZED:
        return "The controller is not believed. Look at its clock: it may be off by 5 minutes at most"
    return permissions.advice(operation, policy.cluster) if status == _NOT_FOUND else ""


OnRequest = Callable[[str, str], None]


class Cloud:
    """The instances of one cluster's elastic pools.

    Args:
        public_key: one line; it may log in to the nodes of pools without a baked image.
        on_request: hears of each request: the operation, and the code of the answer ("200", or OCI's word).
    """

    def __init__(
        self, policy: Policy, *, public_key: str = "", on_request: OnRequest = lambda _operation, _code: None
    ) -> None:
        self._policy = policy
        self._public_key = public_key.strip()
        self._on_request = on_request
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._signer: Any = None
        self._signed_in = 0
        self._configurations: dict[str, Any] = {}
        self._locked_out_at: float | None = None
        self._sleep = time.sleep

    # --- what is there -----

    def instances(self, remembered: Collection[str] = ()) -> tuple[Instance, ...]:
        """Every elastic instance of the cluster that is there, comes or goes.

        Args:
            remembered: ids of instances that are listed for as long as the cloud does so, even when they are gone.

        Raises:
            Refusal: the cloud can't be listed now.
        """
        try:
            return self._instances(remembered)
        except Refusal as refusal:
            if refusal.status == _NOT_FOUND:
                self._locked_out_at = time.monotonic()
            raise

    def _instances(self, remembered: Collection[str]) -> tuple[Instance, ...]:
        found: list[Instance] = []
        page: str | None = None
        while True:
            answer = self._ask(
                "core.ComputeClient",
                "list_instances",
                self._policy.compartment_id,
                limit=PAGE,
                raw=True,
                **({"page": page} if page else {}),
            )
            for raw in answer.data:
                instance = self._elastic(raw)
                if instance and (instance.state != "TERMINATED" or instance.id in remembered):
                    found.append(instance)
            page = answer.headers.get("opc-next-page")
            if not page:
                return tuple(found)

    def _elastic(self, raw: Mapping[str, Any]) -> Instance | None:
        tags = raw.get("freeformTags") or {}
        if tags.get(TAG_CLUSTER) != self._policy.cluster or not tags.get(TAG_NODE):
            return None
        generation = str(tags.get(TAG_GENERATION, ""))
        reboot = raw.get("timeMaintenanceRebootDue")
        return Instance(
            id=raw["id"],
            node=tags[TAG_NODE],
            pool=str(tags.get(TAG_POOL, "")),
            generation=int(generation) if generation.isdecimal() else 0,
            state=raw["lifecycleState"],
            created_at=_seconds(raw["timeCreated"]),
            availability_domain=raw.get("availabilityDomain") or "",
            maintenance_at=_seconds(reboot) if reboot else None,
        )

    def cause(self, instance_id: str) -> tuple[Fault, str] | None:
        """Why a launch that was accepted came to nothing, from the cloud's record of the work; None if it says nothing.

        Raises:
            Refusal: the record can't be read.
        """
        client = "work_requests.WorkRequestClient"
        works = self._ask(client, "list_work_requests", self._policy.compartment_id, resource_id=instance_id).data
        for work in works:
            if work.status != "FAILED" or "terminate" in work.operation_type.lower():
                continue
            for error in self._ask(client, "list_work_request_errors", work.id).data:
                kind = classify(_SERVER, error.code, error.message)
                fault = kind if isinstance(kind, Fault) and kind is not Fault.TRANSIENT else Fault.LOST
                return fault, f"{error.code}: {error.message}"
        return None

    def address(self, instance_id: str) -> str:
        """The private address of an instance; empty while it has none.

        Raises:
            Refusal: the cloud can't be asked.
        """
        attachments = self._ask(
            "core.ComputeClient", "list_vnic_attachments", self._policy.compartment_id, instance_id=instance_id
        ).data
        for attachment in attachments:
            if attachment.lifecycle_state == "ATTACHED":
                vnic = self._ask("core.VirtualNetworkClient", "get_vnic", attachment.vnic_id).data
                if vnic.is_primary:
                    return str(vnic.private_ip)
        return ""

    def console(self, instance_id: str, patience: float = 60.0) -> str:
        """What an instance wrote to its serial console.

        Raises:
            Refusal: the cloud has no console of it, or not in time.
        """
        from oci.core.models import CaptureConsoleHistoryDetails

        client = "core.ComputeClient"
        details = CaptureConsoleHistoryDetails(instance_id=instance_id)
        history = self._ask(client, "capture_console_history", details).data
        until = time.monotonic() + patience
        while history.lifecycle_state in ("REQUESTED", "GETTING-HISTORY"):
            if time.monotonic() > until:
                raise Refusal("capture_console_history", 0, "", f"still {history.lifecycle_state} after {patience:g} s")
            self._sleep(1.0)
            history = self._ask(client, "get_console_history", history.id).data
        if history.lifecycle_state != "SUCCEEDED":
            raise Refusal("capture_console_history", 0, "", f"it is {history.lifecycle_state}")
        content = self._ask(client, "get_console_history_content", history.id, length=_CONSOLE_BYTES).data
        return content.decode(errors="replace") if isinstance(content, bytes) else str(content)

    # --- what is done -----

    def launch(
        self, pool: str, node: str, generation: int, token: str, metadata: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Launch the instance of a node. The same token always means the same instance.

        Returns:
            The instance's id, and the opc-request-id of the answer.

        Raises:
            Refusal: `kind` says what it means.
        """
        try:
            return self._launch(self._policy.pools[pool], node, generation, token, metadata or {})
        except Refusal as refusal:
            if refusal.status == _NOT_FOUND and self._policies_settle():
                refusal.kind = Fault.TRANSIENT
            raise

    def _policies_settle(self) -> bool:
        """Whether our rights may be on their way: a while ago we were not even let look."""
        return self._locked_out_at is not None and time.monotonic() - self._locked_out_at < _SETTLING

    def _launch(
        self, chosen: PoolPolicy, node: str, generation: int, token: str, metadata: Mapping[str, str]
    ) -> tuple[str, str]:
        from oci.core.models import ComputeInstanceDetails

        details = self._launch_details(chosen, node, generation, metadata)
        answer = self._ask(
            "core.ComputeManagementClient",
            "launch_instance_configuration",
            chosen.instance_configuration_id,
            ComputeInstanceDetails(launch_details=details),
            opc_retry_token=token,
        )
        return str(answer.data.id), str(answer.headers.get("opc-request-id", ""))

    def _launch_details(self, pool: PoolPolicy, node: str, generation: int, metadata: Mapping[str, str]) -> Any:
        """All of the configuration, with what is this node's own: OCI replaces maps whole where a launch names them."""
        details = copy.deepcopy(self._configuration(pool.instance_configuration_id))
        details.display_name = node
        details.create_vnic_details.hostname_label = node
        details.freeform_tags = {
            **(details.freeform_tags or {}),
            TAG_CLUSTER: self._policy.cluster,
            TAG_POOL: pool.name,
            TAG_NODE: node,
            TAG_GENERATION: str(generation),
        }
        details.metadata = {**(details.metadata or {}), **metadata}
        if not pool.baked and self._public_key:
            keys = [line for line in str(details.metadata.get(KEYS, "")).splitlines() if line.strip()]
            details.metadata[KEYS] = "\n".join([*keys, self._public_key])
        if pool.compute_cluster_id:
            details.compute_cluster_id = pool.compute_cluster_id
        return details

    def _configuration(self, ocid: str) -> Any:
        """The launch details of an instance configuration; nothing of one ever changes."""
        if ocid not in self._configurations:
            answer = self._ask("core.ComputeManagementClient", "get_instance_configuration", ocid)
            details = getattr(answer.data.instance_details, "launch_details", None)
            if details is None or details.create_vnic_details is None:
                raise Refusal(
                    "get_instance_configuration", _BAD, "InvalidParameter", f"{ocid} says nothing of a launch"
                )
            self._configurations[ocid] = details
        return self._configurations[ocid]

    def terminate(self, instance_id: str) -> bool:
        """Terminate an instance with its boot volume. True if it was asked for, False if it goes or is gone already.

        Raises:
            CloudError: it does not carry the tags of an elastic node of this cluster. It is left alone.
            Refusal: the cloud said no.
        """
        try:
            return self._terminate(instance_id)
        except Refusal as refusal:
            if refusal.status == _NOT_FOUND:
                # We could look at it and may not end it, unless it went between the two.
                return False if refusal.operation == "get_instance" else self._gone_or_raise(instance_id, refusal)
            if refusal.status != _PRECONDITION:
                raise
        return self._terminate(instance_id)  # it changed under us: look at its tags once more

    def _gone_or_raise(self, instance_id: str, refusal: Refusal) -> bool:
        try:
            state = self._ask("core.ComputeClient", "get_instance", instance_id).data.lifecycle_state
        except Refusal as gone:
            if gone.status == _NOT_FOUND:
                return False
            raise
        if state in _ENDING:
            return False
        raise refusal

    def _terminate(self, instance_id: str) -> bool:
        client = "core.ComputeClient"
        answer = self._ask(client, "get_instance", instance_id)
        tags = answer.data.freeform_tags or {}
        if tags.get(TAG_CLUSTER) != self._policy.cluster or not tags.get(TAG_NODE):
            raise CloudError("it is no elastic node of this cluster, and is left alone", where=instance_id)
        if answer.data.lifecycle_state in _ENDING:
            return False
        etag = answer.headers.get("etag")
        self._ask(client, "terminate_instance", instance_id, if_match=etag, preserve_boot_volume=False)
        return True

    # --- asking -----

    def _ask(self, client: str, operation: str, *args: Any, raw: bool = False, **options: Any) -> Any:
        """One request; a 401 is answered once with a fresh signer."""
        signed_in = self._signed_in
        try:
            return self._once(client, operation, args, options, raw)
        except Refusal as refusal:
            if refusal.kind is not Trouble.AUTH:
                raise
        self._sign_in_again(signed_in)
        return self._once(client, operation, args, options, raw)

    def _once(self, client: str, operation: str, args: tuple[Any, ...], options: Mapping[str, Any], raw: bool) -> Any:
        code = "error"
        try:
            with _refusals(operation, self._policy):
                answer = getattr(self._client(client, raw), operation)(*args, **options)
            code = str(answer.status)
            return answer
        except Refusal as refusal:
            code = refusal.code or str(refusal.status or "no answer")
            raise
        finally:
            self._on_request(operation, code)

    def _client(self, name: str, raw: bool) -> Any:
        """The SDK's client of this thread: a session of `requests` is not to be shared.

        Args:
            raw: give the answer's JSON. Making objects of a thousand listed instances costs more than all the rest.
        """
        import oci

        clients = getattr(self._threads, "clients", None)
        if clients is None or self._threads.signed_in != self._signed_in:
            clients = self._threads.clients = {}
            self._threads.signed_in = self._signed_in
        if (name, raw) not in clients:
            service, _, kind = name.rpartition(".")
            authentication = self._policy.authentication
            options: dict[str, Any] = {
                "retry_strategy": oci.retry.NoneRetryStrategy(),
                "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
                "timeout": TIMEOUT,
                "skip_deserialization": raw,
            }
            if authentication.endpoint:
                options["service_endpoint"] = authentication.endpoint
            if authentication.method == "instance_principal":
                options["signer"] = self._instance_principal()
                config: dict[str, Any] = {"region": self._policy.region}
            else:
                config = _config(Path(authentication.config_file), authentication.profile)
            clients[name, raw] = getattr(getattr(oci, service), kind)(config, **options)
        return clients[name, raw]

    def _instance_principal(self) -> Any:
        from oci.auth.signers import InstancePrincipalsSecurityTokenSigner

        with self._lock:
            if self._signer is None:
                self._signer = InstancePrincipalsSecurityTokenSigner()
            return self._signer

    def _sign_in_again(self, seen: int) -> None:
        """Get a fresh token, or read the key again; once, however many threads were refused at the same time."""
        with self._lock:
            if self._signed_in != seen:
                return
            if self._signer is not None:
                with _refusals("sign_in", self._policy):
                    self._signer.refresh_security_token()
            self._signed_in += 1


def _config(file: Path, profile: str) -> dict[str, Any]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        if not parser.read(file):
            raise InputError("there is no such file", where=str(file), hint="Run gpucluster apply: it writes this file")
        return dict(parser[profile])
    except (OSError, configparser.Error, KeyError) as error:
        raise InputError(f"can't read the credentials: {error}", where=str(file)) from error


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


@contextmanager
def _refusals(operation: str, policy: Policy) -> Iterator[None]:
    """Whatever the SDK raises, as ours. It raises much that it does not document; none of it may end the daemon."""
    import oci

    try:
        yield
    except oci.exceptions.ServiceError as error:
        status, code = int(error.status or 0), str(error.code or "")
        hint = _advice(operation, status, policy)
        raise Refusal(operation, status, code, str(error.message), str(error.request_id or ""), hint) from error
    except (InputError, CloudError):
        raise
    except Exception as error:
        raise Refusal(operation, 0, type(error).__name__, str(error)) from error
