# ruff: noqa: N802 - the protocol names its calls
"""Terraform's plugin protocol 6 for the stand-in provider.

Terraform starts a process (`shared`), reads one line from its standard output and then calls it by gRPC. The messages
come from PyPI `tf`; its own servicer supports neither lists of blocks nor objects, so this module answers the calls.
The provider declares the legacy type system, as the real one does, which is built on Terraform's older SDK: Terraform
then accepts computed values after an apply that differ from the plan.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
import msgpack  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tf.gen import grpc_controller_pb2, grpc_controller_pb2_grpc, grpc_stdio_pb2_grpc
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

from gpucluster.localcloud.provider.composite_keys import CompositeKeyOperator
from gpucluster.localcloud.provider.operations import ResourceOperator, TaintedCreate, describe
from gpucluster.localcloud.provider.planning import (
    Path_,
    differences,
    dotted,
    with_kept_blocks,
    with_kept_zeros,
    with_unknowns,
)
from gpucluster.localcloud.provider.rest import ApiCredentials, CredentialsError, RestClient, ServiceError
from gpucluster.localcloud.provider.schema import UNKNOWN, Attribute, Json, ManagedResource, SchemaBlock, catalogue

ENDPOINT_VARIABLE = "GPUCLUSTER_LOCAL_ENDPOINT"
_WORKERS = 32  # Terraform runs 10 operations at a time by default; each occupies a worker while it waits
_PROVIDER_ARGUMENTS = {
    "fingerprint": "OCI_FINGERPRINT",
    "private_key_path": "OCI_PRIVATE_KEY_PATH",
    "region": "OCI_REGION",
    "tenancy_ocid": "OCI_TENANCY_OCID",
    "user_ocid": "OCI_USER_OCID",
}
_PROFILE_ENTRIES = {
    "tenancy_ocid": "tenancy",
    "fingerprint": "fingerprint",
    "private_key_path": "key_file",
    "security_token_file": "security_token_file",
}
_NESTING = {
    "list": pb.Schema.NestedBlock.NestingMode.LIST,
    "set": pb.Schema.NestedBlock.NestingMode.SET,
    "single": pb.Schema.NestedBlock.NestingMode.SINGLE,
}

# Values on the wire


def _decode(value: pb.DynamicValue) -> Any:
    if value.msgpack:
        return msgpack.unpackb(value.msgpack, ext_hook=lambda _code, _data: UNKNOWN)
    return json.loads(value.json) if value.json else None


def _encode(value: Any) -> pb.DynamicValue:
    def unknown(_value: object) -> msgpack.ExtType:
        return msgpack.ExtType(0, b"\x00")

    return pb.DynamicValue(msgpack=msgpack.packb(value, default=unknown))


def _schema_message(schema: SchemaBlock) -> pb.Schema:
    return pb.Schema(version=0, block=_block_message(schema))


def _block_message(block: SchemaBlock) -> pb.Schema.Block:
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=name,
                type=json.dumps(attribute.type).encode(),
                required=attribute.required,
                optional=attribute.optional,
                computed=attribute.computed,
            )
            for name, attribute in block.attributes.items()
        ],
        block_types=[
            pb.Schema.NestedBlock(
                type_name=name,
                block=_block_message(nested),
                nesting=_NESTING[nested.nesting],
                min_items=nested.min_items,
                max_items=nested.max_items,
            )
            for name, nested in block.blocks.items()
        ],
    )


def _error(text: str) -> list[pb.Diagnostic]:
    return [pb.Diagnostic(severity=pb.Diagnostic.ERROR, summary=text)]


def _attribute_path(block: SchemaBlock, path: Path_) -> pb.AttributePath:
    """The path up to the attribute: Terraform compares a map as a whole."""
    steps: list[pb.AttributePath.Step] = []
    for step in path:
        if isinstance(step, int):
            steps.append(pb.AttributePath.Step(element_key_int=step))
            continue
        steps.append(pb.AttributePath.Step(attribute_name=step))
        if step in block.attributes:
            break
        block = block.blocks[step]
    return pb.AttributePath(steps=steps)


Response = TypeVar("Response")


def _answered(kind: Callable[..., Response]) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """Turn any exception of a call into an error that Terraform shows; else it only reports a crash."""

    def wrap(method: Callable[..., Response]) -> Callable[..., Response]:
        @functools.wraps(method)
        def call(self: Servicer, request: Any, context: grpc.ServicerContext) -> Response:
            try:
                return method(self, request, context)
            except Exception as error:  # of any kind, see above; Terraform's log has the traceback
                os.write(self.errors, traceback.format_exc().encode())
                return kind(
                    diagnostics=_error(
                        f"the stand-in provider failed in {method.__name__}"
                        f" of {getattr(request, 'type_name', '') or 'the provider'}: {error!r}\n"
                        "This is a bug of gpucluster; please report it with the output of TF_LOG=debug."
                    )
                )

        return call

    return wrap


class Servicer(rpc.ProviderServicer):  # type: ignore[misc]
    """Answers Terraform's calls.

    Args:
        errors: file descriptor of what Terraform logs.
    """

    def __init__(self, errors: int) -> None:
        self.errors = errors
        self._operator: ResourceOperator | None = None

    @property
    def _ready(self) -> ResourceOperator:
        assert self._operator is not None, "Terraform configures a provider before it uses it"
        return self._operator

    def _operator_of(self, kind: ManagedResource) -> ResourceOperator | CompositeKeyOperator:
        return CompositeKeyOperator(self._ready.client) if kind.composite_key else self._ready

    def GetMetadata(self, request: Any, context: grpc.ServicerContext) -> pb.GetMetadata.Response:
        """The names of resources and data sources, without schemas."""
        return pb.GetMetadata.Response(
            server_capabilities=pb.ServerCapabilities(get_provider_schema_optional=True),
            resources=[pb.GetMetadata.ResourceMetadata(type_name=name) for name in catalogue().resources],
            data_sources=[pb.GetMetadata.DataSourceMetadata(type_name=name) for name in catalogue().data_sources],
        )

    @_answered(pb.GetProviderSchema.Response)
    def GetProviderSchema(self, request: Any, context: grpc.ServicerContext) -> pb.GetProviderSchema.Response:
        """All schemas."""
        argument = Attribute("string", required=False, optional=True, computed=False)
        arguments = {
            **dict.fromkeys(_PROVIDER_ARGUMENTS, argument),
            # Accepted without effect: nothing else adds tags here.
            "ignore_defined_tags": Attribute(["list", "string"], required=False, optional=True, computed=False),
        }
        return pb.GetProviderSchema.Response(
            provider=_schema_message(SchemaBlock(attributes=arguments, blocks={})),
            provider_meta=pb.Schema(version=0, block=pb.Schema.Block()),
            resource_schemas={name: _schema_message(kind.schema) for name, kind in catalogue().resources.items()},
            data_source_schemas={name: _schema_message(item.schema) for name, item in catalogue().data_sources.items()},
            server_capabilities=pb.ServerCapabilities(get_provider_schema_optional=True),
        )

    def ValidateProviderConfig(self, request: Any, context: grpc.ServicerContext) -> pb.ValidateProviderConfig.Response:
        """No checks beyond the schema."""
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: grpc.ServicerContext) -> pb.ValidateResourceConfig.Response:
        """No checks beyond the schema."""
        return pb.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(
        self, request: Any, context: grpc.ServicerContext
    ) -> pb.ValidateDataResourceConfig.Response:
        """No checks beyond the schema."""
        return pb.ValidateDataResourceConfig.Response()

    @_answered(pb.ConfigureProvider.Response)
    def ConfigureProvider(self, request: Any, context: grpc.ServicerContext) -> pb.ConfigureProvider.Response:
        """Read the credentials from the arguments or the environment, and the endpoint from the environment."""
        config = _decode(request.config) or {}
        values = {
            name: config.get(name) or os.environ.get(variable, "") for name, variable in _PROVIDER_ARGUMENTS.items()
        }
        endpoint = os.environ.get(ENDPOINT_VARIABLE, "")
        method = os.environ.get("OCI_AUTH", "ApiKey").lower()
        if method not in ("apikey", "securitytoken"):
            return pb.ConfigureProvider.Response(
                diagnostics=_error(f"OCI_AUTH is {method!r}; the local cloud's provider has ApiKey and SecurityToken")
            )
        session = _session() if method == "securitytoken" else None
        values |= session or {}
        needed = [name for name in _PROVIDER_ARGUMENTS if name not in ("region", *(["user_ocid"] if session else []))]
        missing = [_PROVIDER_ARGUMENTS[name] for name in needed if not values[name]]
        missing += [] if endpoint else [ENDPOINT_VARIABLE]
        if missing:
            return pb.ConfigureProvider.Response(
                diagnostics=_error(
                    f"the environment lacks {', '.join(missing)}\n"
                    "This provider stands in for oracle/oci on the local cloud of gpucluster;"
                    " gpucluster sets these variables when it runs Terraform."
                )
            )
        if not endpoint.startswith("http://"):
            return pb.ConfigureProvider.Response(
                diagnostics=_error(f"{ENDPOINT_VARIABLE} is {endpoint!r}; it must begin with http://")
            )
        credentials = ApiCredentials(
            values["tenancy_ocid"],
            values["user_ocid"],
            values["fingerprint"],
            Path(values["private_key_path"]),
            Path(values["security_token_file"]) if session else None,
        )
        try:
            self._operator = ResourceOperator(RestClient(endpoint, credentials))
        except CredentialsError as error:
            return pb.ConfigureProvider.Response(diagnostics=_error(str(error)))
        return pb.ConfigureProvider.Response()

    @_answered(pb.UpgradeResourceState.Response)
    def UpgradeResourceState(self, request: Any, context: grpc.ServicerContext) -> pb.UpgradeResourceState.Response:
        """Drop attributes that the schema no longer has; all schema versions are 0."""
        state = json.loads(request.raw_state.json)
        return pb.UpgradeResourceState.Response(
            upgraded_state=_encode(_fitting(catalogue().resources[request.type_name].schema, state))
        )

    @_answered(pb.ReadResource.Response)
    def ReadResource(self, request: Any, context: grpc.ServicerContext) -> pb.ReadResource.Response:
        """The current state; empty if the resource is gone."""
        kind = catalogue().resources[request.type_name]
        try:
            state = self._operator_of(kind).read(kind, _decode(request.current_state))
        except ServiceError as error:
            return pb.ReadResource.Response(
                new_state=request.current_state,
                diagnostics=_error(describe(error, kind.service, kind.operations["get"])),
            )
        return pb.ReadResource.Response(new_state=_encode(state))

    @_answered(pb.PlanResourceChange.Response)
    def PlanResourceChange(self, request: Any, context: grpc.ServicerContext) -> pb.PlanResourceChange.Response:
        """Plan a change. Terraform has merged the configuration into the earlier state, without computed values."""
        kind = catalogue().resources[request.type_name]
        before, proposed = _decode(request.prior_state), _decode(request.proposed_new_state)
        if proposed is None:
            return pb.PlanResourceChange.Response(planned_state=request.proposed_new_state, legacy_type_system=True)
        if before is None:
            return pb.PlanResourceChange.Response(
                planned_state=_encode(with_unknowns(kind.schema, proposed)), legacy_type_system=True
            )
        proposed = with_kept_zeros(kind.schema, before, with_kept_blocks(kind.schema, before, proposed))
        replacing = [
            _attribute_path(kind.schema, path)
            for path in differences(kind.schema, before, proposed)
            if kind.forces_replacement(dotted(path), before, proposed)
        ]
        return pb.PlanResourceChange.Response(
            planned_state=_encode(proposed), requires_replace=replacing, legacy_type_system=True
        )

    @_answered(pb.ApplyResourceChange.Response)
    def ApplyResourceChange(self, request: Any, context: grpc.ServicerContext) -> pb.ApplyResourceChange.Response:
        """Create, update or delete."""
        kind = catalogue().resources[request.type_name]
        before, planned = _decode(request.prior_state), _decode(request.planned_state)
        verb = "delete" if planned is None else "create" if before is None else "update"
        try:
            state = self._carry_out(kind, before, planned)
        except TaintedCreate as error:
            return pb.ApplyResourceChange.Response(
                new_state=_encode(error.state), diagnostics=_error(str(error)), legacy_type_system=True
            )
        except ServiceError as error:
            return pb.ApplyResourceChange.Response(
                new_state=request.prior_state,
                diagnostics=_error(describe(error, kind.service, kind.operations[verb])),
                legacy_type_system=True,
            )
        return pb.ApplyResourceChange.Response(new_state=_encode(state), legacy_type_system=True)

    def _carry_out(self, kind: ManagedResource, before: Json | None, planned: Json | None) -> Json | None:
        if planned is None:
            assert before is not None
            self._operator_of(kind).delete(kind, before)
            return None
        if before is None:
            return self._operator_of(kind).create(kind, planned)
        return self._ready.update(kind, before, planned)

    @_answered(pb.ImportResourceState.Response)
    def ImportResourceState(self, request: Any, context: grpc.ServicerContext) -> pb.ImportResourceState.Response:
        """Import a resource by its OCID."""
        kind = catalogue().resources[request.type_name]
        try:
            state = self._operator_of(kind).read(kind, {"id": request.id}, everything=True)
        except ServiceError as error:
            return pb.ImportResourceState.Response(
                diagnostics=_error(describe(error, kind.service, kind.operations["get"]))
            )
        if state is None:
            text = f"There is no {kind.noun} {request.id} to import."
            return pb.ImportResourceState.Response(diagnostics=_error(text))
        imported = pb.ImportResourceState.ImportedResource(
            type_name=request.type_name, state=_encode(_fitting(kind.schema, state))
        )
        return pb.ImportResourceState.Response(imported_resources=[imported])

    def MoveResourceState(self, request: Any, context: grpc.ServicerContext) -> pb.MoveResourceState.Response:
        """Resource types can't be converted."""
        return pb.MoveResourceState.Response(
            diagnostics=_error(f"{request.source_type_name} can't be moved to {request.target_type_name}.")
        )

    @_answered(pb.ReadDataSource.Response)
    def ReadDataSource(self, request: Any, context: grpc.ServicerContext) -> pb.ReadDataSource.Response:
        """Read a data source."""
        lookup = catalogue().data_sources[request.type_name]
        try:
            state = self._ready.find(lookup, _decode(request.config))
        except ServiceError as error:
            return pb.ReadDataSource.Response(diagnostics=_error(describe(error, lookup.service, lookup.operation)))
        return pb.ReadDataSource.Response(state=_encode(state))

    def GetFunctions(self, request: Any, context: grpc.ServicerContext) -> pb.GetFunctions.Response:
        """The provider has no functions."""
        return pb.GetFunctions.Response()

    def StopProvider(self, request: Any, context: grpc.ServicerContext) -> pb.StopProvider.Response:
        """Terraform was interrupted and waits. Running operations finish, so that their state is stored."""
        return pb.StopProvider.Response()


def _fitting(block: SchemaBlock, state: Mapping[str, Any]) -> Json:
    """A state with exactly the members of the schema."""
    fitted: Json = {name: state.get(name) for name in block.attributes}
    for name, nested in block.blocks.items():
        value = state.get(name)
        if isinstance(value, list):
            fitted[name] = [_fitting(nested, item) for item in value]
        elif isinstance(value, dict):
            fitted[name] = _fitting(nested, value)
        else:
            fitted[name] = None if nested.nesting == "single" else []
    return fitted


# The process


class _Controller(grpc_controller_pb2_grpc.GRPCControllerServicer):  # type: ignore[misc]
    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def Shutdown(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Terraform does not need this provider any more."""
        self._stop()
        return grpc_controller_pb2.Empty()


class _Stdio(grpc_stdio_pb2_grpc.GRPCStdioServicer):  # type: ignore[misc]
    def StreamStdio(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """An empty stream: the provider prints nothing but its first line."""
        return iter(())


class Provider:
    """One provider of a process that may have several.

    Args:
        identity: the process's certificate, and its credentials for gRPC.
        path: where its socket comes.
        errors: file descriptor of what Terraform logs.
        stop: called when Terraform asks for the end.
    """

    def __init__(
        self, identity: tuple[str, grpc.ServerCredentials], path: Path, errors: int, stop: Callable[[], None]
    ) -> None:
        certificate, credentials = identity
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=_WORKERS))
        rpc.add_ProviderServicer_to_server(Servicer(errors), self._server)
        grpc_controller_pb2_grpc.add_GRPCControllerServicer_to_server(_Controller(stop), self._server)
        grpc_stdio_pb2_grpc.add_GRPCStdioServicer_to_server(_Stdio(), self._server)
        self._server.add_secure_port(f"unix:{path}", credentials)
        self._server.start()
        # Versions of handshake and protocol, network type, address, protocol kind, certificate.
        self.line = f"1|6|unix|{path}|grpc|{certificate}\n"

    def end(self) -> None:
        """Answer no more calls."""
        self._server.stop(grace=1.0).wait()


def opener() -> Callable[[Path, int, Callable[[], None]], Provider]:
    """Prepare a process; returns what starts a provider in it."""
    return functools.partial(Provider, _credentials())


def _session() -> dict[str, str]:
    """The profile of a session, which the real provider looks for in the same file (utils.GetHomeFolder)."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.read(Path(os.environ.get("TF_HOME_OVERRIDE") or Path.home()) / ".oci" / "config")
    profile = os.environ.get("OCI_CONFIG_FILE_PROFILE", "")
    entries = parser[profile] if parser.has_section(profile) else {}
    return {name: entries.get(entry, "") for name, entry in _PROFILE_ENTRIES.items()}


def _credentials() -> tuple[str, grpc.ServerCredentials]:
    """A new certificate, one for all providers of this process.

    There is no client certificate: Terraform offers one on curve P-521, which gRPC's TLS library does not accept. The
    folder of the socket restricts access: only the user of this process may enter it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = grpc.ssl_server_credentials([(pem, certificate.public_bytes(Encoding.PEM))])
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode().rstrip("="), credentials
