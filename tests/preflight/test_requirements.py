"""What a spec requires of the cloud: machines, limits and names of hosts."""

from __future__ import annotations

from pathlib import Path

from gpucluster import handover
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import (
    ExistingInstance,
)
from tests.preflight.cases import (
    CONTROLLER,
)
from tests.preflight.preflight_facts import (
    AD1,
    CORES,
    GPUS,
    desired,
)


def test_demands_add_up_pools_of_one_limit(tmp_path: Path) -> None:
    second = ("pools:\n", "pools:\n  more:\n    shape: BM.GPU.H100.8\n    count: 1\n"
              "    image: {ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}\n")  # fmt: skip
    wanted = requirements.machines(desired(tmp_path, second), (AD1,))
    demand = requirements.demands(wanted, ())[GPUS]
    assert (demand.permanent, demand.most, demand.users) == (24, 72, ("pools.more", "pools.h100"))


def test_the_names_of_hosts_are_those_of_the_handover(tmp_path: Path) -> None:
    spec = desired(tmp_path)
    assert requirements.host_names(spec, "private") == set(handover.permanent_names("h100", spec.pools["h100"]))
    assert requirements.host_names(spec, "public") == {"controller"}


WITH_LOGIN = ("pools:", "login: {count: 2, shape: VM.Standard.E5.Flex, ocpus: 10, memory_gb: 100}\npools:")


def test_login_nodes_take_their_part_of_limits_and_addresses(tmp_path: Path) -> None:
    spec = desired(tmp_path, WITH_LOGIN)
    (login,) = [machine for machine in requirements.machines(spec, (AD1,)) if machine.login]
    assert (login.place, login.count) == ("login", 2)
    first = ExistingInstance("prod-login-1", login.shape, AD1, 10, 100, login=True)
    assert requirements.still_missing(login, [CONTROLLER, first]) == 1
    (controller,) = [machine for machine in requirements.machines(spec, (AD1,)) if machine.name == "controller"]
    assert requirements.still_missing(controller, [first]) == 1
    needed = requirements.demands(requirements.machines(spec, (AD1,)), [first])[CORES]
    assert needed.permanent == (spec.controller.ocpus or 0) + 10
    assert requirements.addresses(spec, "public") == (3, 3)
    assert {"controller", "login-1", "login-2"} == requirements.host_names(spec, "public")
