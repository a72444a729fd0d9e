"""Refusals understood: the real provider's words, the stand-in's, and Terraform's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpucluster.localcloud.provider.operations import describe
from gpucluster.localcloud.provider.rest import ServiceError
from gpucluster.terraform import diagnosis, summary
from gpucluster.terraform.addresses import human_name
from gpucluster.terraform.diagnosis import Cause, CloudRefusal, Lock, diagnose

POOL = 'module.pool["compute"].oci_core_cluster_network.this[0]'
SUBNET = "module.network.oci_core_subnet.private"
REQUEST = "2B1E0C7C8E9F4A55A8E2/AF2F0E1C4AF0/0D1E2F"


def real(first: str, operation: str = "LaunchInstance", *, service: str = "Core Instance") -> str:
    """As oracle/oci 8.28.0 lays an error out."""
    return "\n".join(
        [
            first,
            f"Suggestion: Please retry or contact support for help with service: {service}",
            "Documentation: https://docs.example/resources/core_instance ",
            f"API Reference: https://docs.oracle.com/iaas/api/#/en/iaas/20160918/Instance/{operation} ",
            "Request Target: POST https://iaas.us-ashburn-1.oraclecloud.com/20160918/instances/ ",
            "Provider version: 8.28.0, released on 2026-01-14. This provider is 1 Update(s) behind to current. ",
            f"Service: {service} ",
            f"Operation Name: {operation} ",
            f"OPC request ID: {REQUEST} ",
        ]
    )


def one(text: str, address: str = POOL, **more: Any) -> diagnosis.Diagnosis:
    return diagnose(
        {"severity": "error", "summary": text, "detail": "", "address": address, **more}, "gpucluster apply"
    )


@pytest.mark.parametrize(
    ("first", "operation", "cause"),
    [
        ("500-InternalError, Out of host capacity.", "LaunchInstance", Cause.CAPACITY),
        (
            "500-InternalError, Out of capacity for shape BM.GPU4.8 in availability domain AD-1.",
            "LaunchInstance",
            Cause.CAPACITY,
        ),
        (
            "400-LimitExceeded, The following service limits were exceeded: gpu4-count. Request a service limit "
            "increase from the service limits page in the console.",
            "LaunchInstance",
            Cause.LIMIT,
        ),
        ("400-QuotaExceeded, You have reached your compartment's quota.", "CreateVolume", Cause.LIMIT),
        ("429-TooManyRequests, Too many requests for the user.", "GetInstance", Cause.THROTTLED),
        ("401-NotAuthenticated, The required information to complete authentication was not provided or was "
         "incorrect.", "GetVcn", Cause.CREDENTIALS),
        ("401-NotAuthenticated, Date 'Mon, 02 Jan 2026' is not within allowed clock skew. Current 'Tue, 03 Jan 2026'",
         "GetVcn", Cause.CLOCK),
        ("404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found.", "LaunchInstance",
         Cause.PERMISSION),
        ("404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found.", "UpdateInstance",
         Cause.GONE),
        ("400-RelatedResourceNotAuthorizedOrNotFound, subnet not found", "LaunchInstance", Cause.PERMISSION),
        ("409-Conflict, The Subnet ocid1.subnet.oc1.iad.aaa references the VNIC ocid1.vnic.oc1.iad.bbb. You must "
         "remove the reference to proceed with this operation.", "DeleteSubnet", Cause.IN_USE),
        ("409-IncorrectState, Instance pool is SCALING; one operation at a time", "UpdateClusterNetwork", Cause.BUSY),
        ("409-NotAuthorizedOrResourceAlreadyExists, Authorization failed or bucket exists", "Create", Cause.EXISTS),
        ("500-InternalServerError, Internal Server Error", "CreateVcn", Cause.SERVICE),
        ("400-InvalidParameter, dnsLabel has invalid characters", "CreateVcn", Cause.INPUT),
    ],
)  # fmt: skip
def test_each_refusal_of_the_real_provider_is_known(first: str, operation: str, cause: Cause) -> None:
    trouble = one(real(first, operation))
    assert trouble.cause is cause
    assert trouble.refusal.request_id == REQUEST
    assert trouble.refusal.operation == operation
    assert trouble.subject == "the cluster network of the pool compute"
    assert REQUEST in trouble.where
    assert POOL in trouble.where
    assert "gpucluster apply" in trouble.advice
    assert "Suggestion" not in trouble.sentence
    assert len(trouble.sentence) < 500


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("timeout while waiting for state to become 'RUNNING' (last state: 'PROVISIONING', timeout: 1h30m0s)",
         Cause.TIMEOUT),
        ("During creation, Terraform expected the resource to reach state(s): RUNNING, but the service reported "
         "unexpected state: TERMINATED.", Cause.WORK_REQUEST),
        ("work request did not succeed, workId: ocid1.coreservicesworkrequest.oc1.iad.x, entity: instance, action: "
         "CREATED. Message: Out of host capacity.", Cause.CAPACITY),
        ("work request did not succeed, workId: ocid1.w.x, entity: instance. Message: Boot failed.",
         Cause.WORK_REQUEST),
        ("can not create client, bad configuration: did not find a proper configuration for private key",
         Cause.CREDENTIALS),
        ("Failed to load plugin schemas", Cause.PROVIDER),
        ("Plugin did not respond", Cause.PROVIDER),
        ('Get "https://iaas.us-ashburn-1.oraclecloud.com/": dial tcp: lookup iaas: no such host', Cause.NETWORK),
        ("Failed to save state", Cause.STATE),
        ("something that nobody has heard of", Cause.UNKNOWN),
    ],
)  # fmt: skip
def test_what_no_single_request_was_refused_with_is_known_too(text: str, cause: Cause) -> None:
    trouble = one(text)
    assert trouble.cause is cause
    assert "gpucluster apply" in trouble.advice


def late(kind: str, message: str) -> str:
    """As oracle/oci 8.28.0 lays an error out that no request was answered with (its errors.go)."""
    return (
        f"{kind} \nProvider version: 8.28.0, released on 2026-08-19. This provider is 1 Update(s) behind to current. \n"
        f"Service: Core Instance \nError Message: {message} \nResource OCID: ocid1.instance.oc1..x \n"
        "Suggestion: Please retry or contact support for help with service: Core Instance\n"
    )


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("Work Request error", "work request did not succeed, workId: ocid1.w.x, entity: instance, action: CREATED. "
         "Message: Out of host capacity.", Cause.CAPACITY),
        ("Work Request error", "work request did not succeed, workId: ocid1.w.x, entity: instance, action: CREATED. "
         "Message: The first.\nOut of host capacity.", Cause.CAPACITY),
        ("Operation Timeout", "timeout while waiting for state to become 'RUNNING' (last state: 'STARTING', timeout: "
         "45m0s)", Cause.TIMEOUT),
        ("Unexpected LifeCycle state", "During creation, Terraform expected the resource to reach state(s): RUNNING, "
         "but the service reported unexpected state: TERMINATED.", Cause.WORK_REQUEST),
    ],
)  # fmt: skip
def test_what_failed_after_its_request_was_accepted_has_its_reason(kind: str, message: str, cause: Cause) -> None:
    trouble = one(late(kind, message))
    assert trouble.cause is cause
    assert " ".join(message.split()).rstrip(".") in trouble.sentence
    assert kind not in trouble.sentence
    assert "Suggestion" not in trouble.sentence
    if "workId" in message:
        assert trouble.where.endswith("opc-request-id ocid1.w.x")


@pytest.mark.parametrize(
    ("code", "kind"),
    [("WorkRequestFailed", "Work Request error"), ("Timeout", "Operation Timeout"),
     ("UnexpectedState", "Unexpected LifeCycle state")],
)  # fmt: skip
def test_the_stand_in_lays_it_out_in_the_same_way(code: str, kind: str) -> None:
    message = "work request did not succeed, workId: w, Message: Out of host capacity."
    theirs = diagnosis.refusal_of(late(kind, message))
    text = describe(ServiceError(0, code, message), "Core Instance", "LaunchInstance")
    assert diagnosis.refusal_of(text) == theirs
    assert text.startswith(f"{kind} \n")


def test_a_work_request_is_what_there_is_to_ask_for() -> None:
    trouble = one("work request did not succeed, workId: ocid1.w.x, entity: instance. Message: Boot failed.")
    assert trouble.where.endswith("opc-request-id ocid1.w.x")


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (404, "NotAuthorizedOrNotFound"), (409, "X")])
def test_the_stand_in_words_an_error_as_the_real_provider_does(status: int, code: str) -> None:
    error = ServiceError(status, code, "Out of host capacity.", target="POST /x", request_id=REQUEST)
    read = diagnosis.refusal_of(describe(error, "Core Instance", "LaunchInstance"))
    wanted = diagnosis.refusal_of(real(f"{status}-{code}, Out of host capacity."))
    assert read == CloudRefusal(**{**vars(wanted), "target": "POST /x"})


def test_what_is_in_a_subnet_is_named_and_how_to_look() -> None:
    said = "409-Conflict, The Subnet ocid1.subnet.oc1.iad.aaa references the VNIC ocid1.vnic.oc1.iad.bbb."
    trouble = one(real(said, "DeleteSubnet"), SUBNET)
    assert trouble.subject == "the subnet private"
    assert "ocid1.vnic.oc1.iad.bbb" in trouble.sentence
    assert "private-ip list --subnet-id ocid1.subnet.oc1.iad.aaa" in trouble.advice
    other = one(real("409-Conflict, The instance configuration ocid1.ic.a is used by the instance pool ocid1.pool.b"))
    assert "Remove what uses it (ocid1.ic.a, ocid1.pool.b)" in other.advice


def test_a_fault_of_the_configuration_has_its_place() -> None:
    trouble = one("Invalid index", "", range={"filename": "main.tf", "start": {"line": 7}})
    assert trouble.where == "main.tf:7"
    assert trouble.cause is Cause.INPUT


def test_who_holds_a_state() -> None:
    told = (
        "Error acquiring the state lock\nError message: resource temporarily unavailable\nLock Info:\n"
        "  ID:        6d0b\n  Path:      terraform.tfstate\n  Operation: OperationTypeApply\n"
        "  Who:       ada@here\n  Version:   1.11.4\n  Created:   2026-01-02 03:04:05 +0000 UTC\n  Info:      \n"
    )
    assert diagnosis.lock_of(told) == Lock("6d0b", "ada@here", "2026-01-02 03:04:05 +0000 UTC", "OperationTypeApply")
    http = told.replace("resource temporarily unavailable", "HTTP remote state already locked: ID=99ff")
    assert diagnosis.lock_of(http) == Lock("99ff"), "under Lock Info is what we wanted to write ourselves"
    assert diagnosis.lock_of("Error acquiring the state lock: connection refused") is None


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (POOL, "the cluster network of the pool compute"),
        ('module.pool["gpu"].oci_core_instance.node["gpu-2"]', "the instance node gpu-2 of the pool gpu"),
        ('module.pool["cpu"].module.instance["cpu-1"].oci_core_instance.this', "the instance cpu-1 of the pool cpu"),
        ("module.controller.oci_core_instance.this", "the instance of the controller"),
        (SUBNET, "the subnet private"),
        ("module.network.oci_core_vcn.this", "the VCN"),
        ("module.home.oci_file_storage_mount_target.this", "the mount target"),
        ("module.iam[0].oci_identity_dynamic_group.controller", "the dynamic group controller"),
        ("data.oci_core_images.all", "the images all"),
        ("var.pools", "var.pools"),
        ("", ""),
    ],
)
def test_resources_have_names_for_users(address: str, name: str) -> None:
    assert human_name(address) == name


def test_one_trouble_is_a_sentence_several_are_grouped_and_none_is_lost() -> None:
    capacity = one(real("500-InternalError, Out of host capacity."))
    what, where, hint = summary.of([capacity], "terraform apply")
    assert what.startswith("terraform apply failed: the cluster network of the pool compute: the cloud has no free")
    assert where == f"{POOL}, opc-request-id {REQUEST}"
    assert hint.startswith("Try again later: gpucluster apply")

    refused = [
        one(real("401-NotAuthenticated, Wrong key."), f"module.network.oci_core_route_table.table{number}")
        for number in range(5)
    ]
    what, where, hint = summary.of([capacity, *refused], "terraform apply")
    lines = what.splitlines()
    assert lines[0] == "terraform apply failed in 6 places:"
    assert [line.strip()[:14] for line in lines[1:]] == [
        "- the cluster ", "- the route ta", "also the route", "also the route", "and 2 more",
    ]  # fmt: skip
    assert what.count(REQUEST) == 4
    assert hint.count("gpucluster apply") == 2
    assert where == ""


def test_an_endless_message_is_cut() -> None:
    assert len(one("word " * 1000).sentence) < 600
    assert one("word " * 1000).detail.count("word") == 1000


def test_how_long_a_lock_is_held_is_told_in_each_form_of_a_time() -> None:
    now = datetime(2026, 1, 2, 3, 16, 8, tzinfo=UTC)
    for text in ("2026-01-02 03:04:05.678901234 +0000 UTC", "2026-01-02T03:04:05Z", "2026-01-02 04:04:05 +0100 CET"):
        assert diagnosis.since_when(text, now) == f" since {text} (12 min 3 s ago)"
    assert diagnosis.since_when("", now) == ""
    assert diagnosis.since_when("yesterday", now) == " since yesterday"
    assert diagnosis.since_when("2026-01-02T04:00:00Z", now) == " since 2026-01-02T04:00:00Z", "a clock that is ahead"
