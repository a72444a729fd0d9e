"""Judges the `config` of a NetworkAttachmentDefinition as the plugins that it names would.

To an API server it is any text; a plugin refuses it when a pod starts, which then stays in ContainerCreating. What each
refuses is from the source of the release in images.toml:

  host-device   "specify either device, hwaddr, kernelpath or pciBusID" (plugins/main/host-device/host-device.go)
  rdma          it follows another plugin; without `deviceID` it looks for the MAC among virtual functions, which fails
                for a whole device (cmd/rdma/main.go, CmdAdd and deriveDeviceIDFromResult)
  tuning        it follows another plugin, and a sysctl is one of the network (plugins/meta/tuning/tuning.go, cmdAdd)
  sbr           "This plugin must be called as chained plugin" (plugins/meta/sbr/main.go, parseConf)
  whereabouts   a range, or one of several, in CIDR form (pkg/config/config.go, LoadIPAMConfig)
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PLACES = ("device", "hwaddr", "kernelpath", "pciBusID")
#: A definition with it gets `deviceID` from Multus, for the device that a device plugin gave (its annotation).
_RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


def problems(definition: Mapping[str, Any]) -> Iterator[str]:
    """What its plugins would refuse."""
    try:
        config = json.loads(definition["spec"]["config"])
    except ValueError as error:
        yield f"config is not JSON: {error}"
        return
    given = bool(definition["metadata"].get("annotations", {}).get(_RESOURCE))
    plugins = config.get("plugins", [config])
    if not config.get("cniVersion") or (len(plugins) > 1 and not config.get("name")):
        yield "a chain has a cniVersion and a name"
    for number, plugin in enumerate(plugins):
        judge = _JUDGES.get(str(plugin.get("type")))
        if judge is None:
            yield f"nothing is known of the plugin {plugin.get('type')}: add what it refuses, with its source"
            continue
        if number == 0 and judge in _CHAINED:
            yield f"{plugin['type']} follows another plugin"
        yield from judge(plugin, given)


def _host_device(plugin: Mapping[str, Any], given: bool) -> Iterator[str]:
    if not given and not any(plugin.get(each) for each in _PLACES):
        yield f"host-device needs one of {', '.join(_PLACES)}"
    yield from _addresses(plugin.get("ipam", {}))


def _addresses(ipam: Mapping[str, Any]) -> Iterator[str]:
    if not ipam:
        return
    if ipam.get("type") != "whereabouts":
        yield f"nothing is known of the address plugin {ipam.get('type')}"
        return
    ranges = [ipam["range"]] if ipam.get("range") else [each.get("range", "") for each in ipam.get("ipRanges", [])]
    if not ranges:
        yield "whereabouts needs a range"
    for each in ranges:
        try:
            ipaddress.ip_network(each.rpartition("-")[2], strict=False)
        except ValueError as error:
            yield f"whereabouts: invalid CIDR: {error}"


def _rdma(plugin: Mapping[str, Any], given: bool) -> Iterator[str]:
    if not given and not plugin.get("deviceID"):
        yield "rdma has no deviceID, and would look for a virtual function"


def _tuning(plugin: Mapping[str, Any], _given: bool) -> Iterator[str]:
    for name, value in plugin.get("sysctl", {}).items():
        if not name.startswith("net."):
            yield f"tuning: {name} is no setting of the network"
        if not isinstance(value, str):
            yield f"tuning: the value of {name} is not a text"


def _sbr(_plugin: Mapping[str, Any], _given: bool) -> Iterator[str]:
    return iter(())


_JUDGES: dict[str, Callable[[Mapping[str, Any], bool], Iterator[str]]] = {
    "host-device": _host_device,
    "rdma": _rdma,
    "tuning": _tuning,
    "sbr": _sbr,
}
_CHAINED = (_rdma, _tuning, _sbr)
