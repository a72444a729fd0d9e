"""Which events of Podman are a reboot by the instance itself."""

from __future__ import annotations

import json

from gpucluster.localcloud.engine.containers import rebooted

# The server is killed in the middle, and the network goes at the end.


def test_only_a_restart_by_the_instance_itself_is_one() -> None:
    def event(status: object, **attributes: str) -> str:
        return json.dumps({"ContainerExitCode": status, "Attributes": attributes, "Status": "died"})

    given = {"gpucluster.ocid": "ocid1.instance.local..a"}
    assert rebooted(event(129, **given)) == "ocid1.instance.local..a"
    for other in (event(130, **given), event(137, **given), event(0, **given), event(129), event(None), "", "[]", "{"):
        assert rebooted(other) == ""
