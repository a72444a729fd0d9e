"""The cloud, through Oracle's SDK: list instances by tag, launch, terminate, and what to do after a refusal.

`oci` takes 0.4 s to import, so it is imported where it is used. The SDK's retries are off: its default strategy retries
any 5xx, and "Out of host capacity" is one (HTTP 500). The loop and the executor send a request again in their own time.
"""

from __future__ import annotations

import configparser
import copy
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.decide.types import CloudInstance, Fault
from gpucluster.autoscaler.decide.words import ADVICE
from gpucluster.autoscaler.policy import Policy, PoolPolicy
from gpucluster.errors import CloudError, InputError
from gpucluster.oci import permissions, tags
from gpucluster.oci.host_tag import DefinedTags, Tagging, set_host_tag
from gpucluster.oci.refusals import (
    BAD_REQUEST,
    NOT_FOUND,
    PRECONDITION_FAILED,
    SERVER_ERROR,
    UNAUTHORIZED,
    Cause,
    cause_of,
    lasts,
)
from gpucluster.oci.states import ENDING, LifecycleState, WorkRequestStatus

KEYS = "ssh_authorized_keys"
# Seconds to connect and to wait for an answer. A launch that takes longer is sent again with the same token.
TIMEOUT = (10.0, 45.0)
PAGE = 1000

# OCI needs up to some minutes until a policy is in force everywhere (docs: "How Policies Work"). Seconds.
_SETTLING = 600.0
# Bytes of a console history that are saved (OCI returns at most 1 MB at once).
_CONSOLE_BYTES = 1_048_576
# States of a console history that is not complete.
_CONSOLE_UNFINISHED = (LifecycleState.REQUESTED, "GETTING-HISTORY")
# What the launch details of an instance configuration have, and those of LaunchInstance have not (SDK: the two models).
_OF_CONFIGURATIONS = ("launchMode", "preferredMaintenanceAction")
# What OCI does when it takes the capacity back, as in LaunchInstanceDetails.
_TERMINATE_WITH_DISK = {"preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}}


class RequestFault(StrEnum):
    """A refusal that is not evidence about the launch itself."""

    THROTTLED = "throttled"  # too many requests: send the same one again, later
    UNAUTHENTICATED = "unauthenticated"  # send it once more with a new signer


_FAULTS: Mapping[Cause, Fault | RequestFault] = {
    Cause.CAPACITY: Fault.CAPACITY,
    Cause.LIMIT: Fault.LIMIT,
    Cause.THROTTLED: RequestFault.THROTTLED,
}


def classify(status: int, code: str, message: str) -> Fault | RequestFault:
    """What has to be done about a refusal.

    Args:
        status: of HTTP; 0 where there was no answer.
        code, message: of the answer's body, or of a work request's error (with the status 500).
    """
    if status == UNAUTHORIZED:
        return RequestFault.UNAUTHENTICATED
    known = _FAULTS.get(cause_of(status, code, message))
    return known or (Fault.CONFIGURATION if lasts(status, message) else Fault.TRANSIENT)


class RequestFailed(CloudError):
    """The cloud refused a request, or did not answer (`status` 0).

    Args:
        hint: what an administrator can do about it.
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
        """The code and the message, on one line, and after `ADVICE` what an administrator can do."""
        answer = " ".join(f"{self.code}: {self.message}".split())
        return f"{answer}{ADVICE}{self.hint}" if self.hint else answer


def _advice(operation: str, status: int, policy: Policy) -> str:
    if status == UNAUTHORIZED and policy.authentication.method == "api_key":
        return "OCI does not accept the controller's key. Run gpucluster apply: it installs the right one"
    if status == UNAUTHORIZED:
        return "OCI does not accept the controller's signature. Check its clock: it may be off by 5 minutes at most"
    return permissions.advice(operation, policy.cluster) if status == NOT_FOUND else ""


OnRequest = Callable[[str, str], None]


class OciCloud:
    """The instances of one cluster's elastic pools.

    Args:
        public_key: gives one line, for each launch again: a rotation changes it. The join service logs in with it to
            the nodes of pools without a baked image. Empty where there is no such pool.
        on_request: called for each request with the operation and the code of the answer ("200", or OCI's code).
    """

    def __init__(
        self,
        policy: Policy,
        *,
        public_key: Callable[[], str] = str,
        on_request: OnRequest = lambda _operation, _code: None,
    ) -> None:
        self._policy = policy
        self._public_key = public_key
        self._on_request = on_request
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._signer: Any = None
        self._signed_in = 0
        self._configurations: dict[str, Any] = {}
        self._locked_out_at: float | None = None
        self._sleep = time.sleep

    # --- reading -----

    def instances(self, remembered: Collection[str] = ()) -> tuple[CloudInstance, ...]:
        """Every elastic instance of the cluster that exists, is being created or is ending.

        Args:
            remembered: ids of instances that are returned also when TERMINATED, as long as the cloud lists them.

        Raises:
            RequestFailed: the instances can't be listed now.
        """
        try:
            return self._instances(remembered)
        except RequestFailed as refusal:
            if refusal.status == NOT_FOUND:
                self._locked_out_at = time.monotonic()
            raise

    def _instances(self, remembered: Collection[str]) -> tuple[CloudInstance, ...]:
        instances: list[CloudInstance] = []
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
                if instance and (instance.state != LifecycleState.TERMINATED or instance.id in remembered):
                    instances.append(instance)
            page = answer.headers.get("opc-next-page")
            if not page:
                return tuple(instances)

    def _elastic(self, raw: Mapping[str, Any]) -> CloudInstance | None:
        freeform_tags: Mapping[str, str] = raw.get("freeformTags") or {}
        node = tags.elastic_node(freeform_tags, self._policy.cluster, self._policy.identity)
        if not node:
            return None
        reboot = raw.get("timeMaintenanceRebootDue")
        return CloudInstance(
            id=raw["id"],
            node=node,
            pool=str(freeform_tags.get(tags.POOL, "")),
            generation=tags.generation(freeform_tags),
            state=raw["lifecycleState"],
            created_at=_seconds(raw["timeCreated"]),
            availability_domain=raw.get("availabilityDomain") or "",
            maintenance_at=_seconds(reboot) if reboot else None,
        )

    def maintenance_events(self, compartment_id: str) -> list[dict[str, Any]]:
        """The maintenance events of a compartment, as the API's JSON. Some that are over are among them.

        Raises:
            RequestFailed: they can't be listed now.
        """
        events: list[dict[str, Any]] = []
        page: str | None = None
        while True:
            answer = self._ask(
                "core.ComputeClient", "list_instance_maintenance_events", compartment_id, limit=PAGE, raw=True,
                **({"page": page} if page else {}),
            )  # fmt: skip
            events += answer.data
            page = answer.headers.get("opc-next-page")
            if not page:
                return events

    def move_maintenance(self, event_id: str, start: float) -> None:
        """Ask that a maintenance begins at another time.

        Args:
            start: seconds of the epoch.

        Raises:
            RequestFailed: the cloud refused.
        """
        from oci.core.models import UpdateInstanceMaintenanceEventDetails

        begin = datetime.fromtimestamp(start, UTC)
        details = UpdateInstanceMaintenanceEventDetails(time_window_start=begin)
        self._ask("core.ComputeClient", "update_instance_maintenance_event", event_id, details)

    def cause(self, instance_id: str) -> tuple[Fault, str] | None:
        """Why a launch failed after it was accepted, from the cloud's work requests; None if they name no error.

        Raises:
            RequestFailed: the work requests can't be read.
        """
        client = "work_requests.WorkRequestClient"
        works = self._ask(client, "list_work_requests", self._policy.compartment_id, resource_id=instance_id).data
        for work in works:
            if work.status != WorkRequestStatus.FAILED or "terminate" in work.operation_type.lower():
                continue
            for error in self._ask(client, "list_work_request_errors", work.id).data:
                kind = classify(SERVER_ERROR, error.code, error.message)
                fault = kind if isinstance(kind, Fault) and kind is not Fault.TRANSIENT else Fault.LOST
                return fault, f"{error.code}: {error.message}"
        return None

    def address(self, instance_id: str) -> str:
        """The private address of an instance; empty while it has none.

        Raises:
            RequestFailed: the cloud can't be asked.
        """
        attachments = self._ask(
            "core.ComputeClient", "list_vnic_attachments", self._policy.compartment_id, instance_id=instance_id
        ).data
        for attachment in attachments:
            if attachment.lifecycle_state == LifecycleState.ATTACHED:
                vnic = self._ask("core.VirtualNetworkClient", "get_vnic", attachment.vnic_id).data
                if vnic.is_primary:
                    return str(vnic.private_ip)
        return ""

    def console(self, instance_id: str, timeout: float = 60.0) -> str:
        """What an instance wrote to its serial console.

        Args:
            timeout: seconds to wait for the console history.

        Raises:
            RequestFailed: there is no console history, or not in time.
        """
        from oci.core.models import CaptureConsoleHistoryDetails

        client = "core.ComputeClient"
        details = CaptureConsoleHistoryDetails(instance_id=instance_id)
        history = self._ask(client, "capture_console_history", details).data
        deadline = time.monotonic() + timeout
        while history.lifecycle_state in _CONSOLE_UNFINISHED:
            if time.monotonic() > deadline:
                raise RequestFailed(
                    "capture_console_history", 0, "", f"still {history.lifecycle_state} after {timeout:g} s"
                )
            self._sleep(1.0)
            history = self._ask(client, "get_console_history", history.id).data
        if history.lifecycle_state != LifecycleState.SUCCEEDED:
            raise RequestFailed("capture_console_history", 0, "", f"it is {history.lifecycle_state}")
        content = self._ask(client, "get_console_history_content", history.id, length=_CONSOLE_BYTES).data
        return content.decode(errors="replace") if isinstance(content, bytes) else str(content)

    # --- writing -----

    def launch(
        self, pool: str, node: str, generation: int, token: str, metadata: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Launch the instance of a node. The same token always returns the same instance.

        Returns:
            The instance's id, and the opc-request-id of the answer.

        Raises:
            RequestFailed: `kind` determines what to do.
        """
        try:
            return self._launch(self._policy.pools[pool], node, generation, token, metadata or {})
        except RequestFailed as refusal:
            if refusal.status == NOT_FOUND and self._policies_settle():
                refusal.kind = Fault.TRANSIENT
            raise

    def _policies_settle(self) -> bool:
        """Whether a policy may not be in force yet: some minutes ago the listing was refused, too."""
        return self._locked_out_at is not None and time.monotonic() - self._locked_out_at < _SETTLING

    def _launch(
        self, chosen: PoolPolicy, node: str, generation: int, token: str, metadata: Mapping[str, str]
    ) -> tuple[str, str]:
        from oci.core.models import ComputeInstanceDetails

        details = self._launch_details(chosen, node, generation, metadata)
        if chosen.preemptible:
            body = self._preemptible(details)
            answer = self._ask("core.ComputeClient", "launch_instance", body, opc_retry_token=token)
        else:
            answer = self._ask(
                "core.ComputeManagementClient",
                "launch_instance_configuration",
                chosen.instance_configuration_id,
                ComputeInstanceDetails(launch_details=details),
                opc_retry_token=token,
            )
        return str(answer.data.id), str(answer.headers.get("opc-request-id", ""))

    def _preemptible(self, details: Any) -> dict[str, Any]:
        """The body of LaunchInstance with the values of an instance configuration, which itself is not for preemptible
        instances (docs: "Preemptible Instances"). Both requests have the same members, but for two."""
        client = self._client("core.ComputeClient", raw=False)
        wire = client.base_client.sanitize_for_serialization(details)
        body = {name: value for name, value in wire.items() if name not in _OF_CONFIGURATIONS}
        return {**body, "preemptibleInstanceConfig": _TERMINATE_WITH_DISK}

    def _launch_details(self, pool: PoolPolicy, node: str, generation: int, metadata: Mapping[str, str]) -> Any:
        """The instance configuration with this node's own values. OCI replaces a map whole where a launch names it."""
        details = copy.deepcopy(self._configuration(pool.instance_configuration_id))
        details.display_name = node
        details.create_vnic_details.hostname_label = node
        own = tags.for_elastic_node(self._policy.cluster, pool.name, node, generation)
        details.freeform_tags = tags.fitting({**(details.freeform_tags or {}), **own})
        details.metadata = {**(details.metadata or {}), **metadata}
        key = "" if pool.baked else self._public_key().strip()
        if key:
            keys = [line for line in str(details.metadata.get(KEYS, "")).splitlines() if line.strip()]
            details.metadata[KEYS] = "\n".join([*keys, key])
        if pool.compute_cluster_id:
            details.compute_cluster_id = pool.compute_cluster_id
        return details

    def _configuration(self, ocid: str) -> Any:
        """The launch details of an instance configuration. They never change, so one copy is kept."""
        if ocid not in self._configurations:
            answer = self._ask("core.ComputeManagementClient", "get_instance_configuration", ocid)
            details = getattr(answer.data.instance_details, "launch_details", None)
            if details is None or details.create_vnic_details is None:
                raise RequestFailed(
                    "get_instance_configuration", BAD_REQUEST, "InvalidParameter", f"{ocid} has no launch details"
                )
            self._configurations[ocid] = details
        return self._configurations[ocid]

    def terminate(self, instance_id: str) -> bool:
        """Terminate an instance with its boot volume. False if it is ending or gone already.

        Raises:
            CloudError: it does not carry the tags of an elastic node of this cluster. Nothing is done.
            RequestFailed: the cloud refused.
        """
        try:
            return self._terminate(instance_id)
        except RequestFailed as refusal:
            if refusal.status == NOT_FOUND:
                # Reading it was allowed and terminating it is not, unless it was removed between the two requests.
                return False if refusal.operation == "get_instance" else self._gone_or_raise(instance_id, refusal)
            if refusal.status != PRECONDITION_FAILED:
                raise
        return self._terminate(instance_id)  # it has changed: read its tags again

    def report_host(self, instance_id: str) -> bool:
        """Report the physical host of an instance to Oracle, with the tag that is set before it is terminated.

        Returns:
            False if the instance has the tag already, or is gone.

        Raises:
            CloudError: it does not carry the tags of an elastic node of this cluster, or the cloud has accepted the tag
                and the instance does not have it.
            RequestFailed: the cloud refused.
        """
        from oci.core.models import UpdateInstanceDetails

        def read() -> Any:
            try:
                return self._own_instance(instance_id)
            except RequestFailed as refusal:
                if refusal.status != NOT_FOUND:
                    raise
                return None

        def change(defined_tags: DefinedTags, etag: str) -> None:
            details = UpdateInstanceDetails(defined_tags=defined_tags)
            self._ask("core.ComputeClient", "update_instance", instance_id, details, if_match=etag)

        outcome = set_host_tag(read, change)
        if outcome is Tagging.LEFT_OUT:
            raise CloudError("the cloud has accepted the tag, and the instance does not have it", where=instance_id)
        return outcome is Tagging.SET

    def _own_instance(self, instance_id: str) -> Any:
        """The answer about an instance that carries the tags of an elastic node of this cluster."""
        answer = self._ask("core.ComputeClient", "get_instance", instance_id)
        if not tags.elastic_node(answer.data.freeform_tags, self._policy.cluster, self._policy.identity):
            raise CloudError("it is not an elastic node of this cluster and is not changed", where=instance_id)
        return answer

    def _gone_or_raise(self, instance_id: str, refusal: RequestFailed) -> bool:
        try:
            state = self._ask("core.ComputeClient", "get_instance", instance_id).data.lifecycle_state
        except RequestFailed as gone:
            if gone.status == NOT_FOUND:
                return False
            raise
        if state in ENDING:
            return False
        raise refusal

    def _terminate(self, instance_id: str) -> bool:
        answer = self._own_instance(instance_id)
        if answer.data.lifecycle_state in ENDING:
            return False
        etag = answer.headers.get("etag")
        self._ask("core.ComputeClient", "terminate_instance", instance_id, if_match=etag, preserve_boot_volume=False)
        return True

    # --- requests -----

    def _ask(self, client: str, operation: str, *args: Any, raw: bool = False, **options: Any) -> Any:
        """One request; after a 401 it is sent once more with a new signer."""
        signed_in = self._signed_in
        try:
            return self._once(client, operation, args, options, raw)
        except RequestFailed as refusal:
            if refusal.kind is not RequestFault.UNAUTHENTICATED:
                raise
        self._sign_in_again(signed_in)
        return self._once(client, operation, args, options, raw)

    def _once(self, client: str, operation: str, args: tuple[Any, ...], options: Mapping[str, Any], raw: bool) -> Any:
        code = "error"
        try:
            with _as_request_failed(operation, self._policy):
                answer = getattr(self._client(client, raw), operation)(*args, **options)
            code = str(answer.status)
            return answer
        except RequestFailed as refusal:
            code = refusal.code or str(refusal.status or "no answer")
            raise
        finally:
            self._on_request(operation, code)

    def _client(self, name: str, raw: bool) -> Any:
        """The SDK's client of this thread: threads may not share a session of `requests`.

        Args:
            raw: return the answer's JSON. Making objects of a thousand listed instances takes longer than all the rest.
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
        from oci.retry import NoneRetryStrategy

        with self._lock:
            if self._signer is None:
                endpoint = self._policy.authentication.endpoint
                # The cloud's own endpoint follows from the region. A cloud elsewhere has both services at one address.
                options = {"federation_endpoint": f"{endpoint}/v1/x509"} if endpoint else {}
                # The next pass asks again. By default it would ask eight times, in minutes without a word: systemd's
                # watchdog then ends the daemon before it has reported that there is no metadata service.
                once = NoneRetryStrategy()
                self._signer = InstancePrincipalsSecurityTokenSigner(
                    retry_strategy=once, federation_client_retry_strategy=once, **options
                )
            return self._signer

    def _sign_in_again(self, seen: int) -> None:
        """Get a new token, or read the key again; once, however many threads were refused at the same time."""
        with self._lock:
            if self._signed_in != seen:
                return
            if self._signer is not None:
                with _as_request_failed("sign_in", self._policy):
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
def _as_request_failed(operation: str, policy: Policy) -> Iterator[None]:
    """Turn every exception of the SDK into RequestFailed. It raises undocumented ones; none may end the daemon."""
    import oci

    try:
        yield
    except oci.exceptions.ServiceError as error:
        status, code = int(error.status or 0), str(error.code or "")
        hint = _advice(operation, status, policy)
        raise RequestFailed(operation, status, code, str(error.message), str(error.request_id or ""), hint) from error
    except (InputError, CloudError):
        raise
    except Exception as error:  # what it raises beside is documented nowhere; it is raised, by another name
        raise RequestFailed(operation, 0, type(error).__name__, str(error)) from error
