"""What a refusal of OCI means, and which last."""

from __future__ import annotations

import pytest

from gpucluster.oci import refusals
from gpucluster.oci.refusals import Cause, cause_of, lasts


@pytest.mark.parametrize(
    ("status", "code", "message", "operation", "cause"),
    [
        (500, "InternalError", "Out of host capacity.", "LaunchInstance", Cause.CAPACITY),
        (400, "TenantCapacityExceeded", "", "LaunchInstance", Cause.LIMIT),
        (429, "", "", "", Cause.THROTTLED),
        (401, "NotAuthenticated", "clock skew", "", Cause.CLOCK),
        (401, "NotAuthenticated", "", "", Cause.CREDENTIALS),
        (404, "NotAuthorizedOrNotFound", "", "GetVcn", Cause.GONE),
        (404, "NotAuthorizedOrNotFound", "", "", Cause.PERMISSION),
        (409, "IncorrectState", "is being changed", "", Cause.BUSY),
        (503, "", "", "", Cause.SERVICE),
        (400, "InvalidParameter", "no such shape", "", Cause.INPUT),
        (0, "", "", "", Cause.UNKNOWN),
    ],
)
def test_causes(status: int, code: str, message: str, operation: str, cause: Cause) -> None:
    assert cause_of(status, code, message, operation) is cause


def test_which_refusals_last() -> None:
    assert lasts(400, "no such shape")
    assert lasts(404, "")
    assert not lasts(409, "")
    assert not lasts(412, "")
    assert not lasts(500, "")
    assert not lasts(0, "")
    assert not lasts(400, "hostnameLabel c-e1 is already in use by VNIC ocid1.vnic")
    assert {Cause.SERVICE, Cause.INPUT, Cause.UNKNOWN} == refusals.GENERAL
