"""Trees of files like the kernel's, and pages as Prometheus' own parser reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: As seed 003 lists them: Intel's irdma.
IRDMA: list[str] = (  # noqa: SIM905 - as they are listed
    "RxECNMrkd cnpIgnored ip4InMcastPkts ip4InTruncatedPkts ip4OutOctets ip6InMcastOctets ip6InReasmRqd ip6OutNoRoutes "
    "iwInRdmaReads iwOutRdmaSends lifespan tcpInSegs RxUDP cnpSent ip4InOctets ip4OutMcastOctets ip4OutPkts "
    "ip6InMcastPkts ip6InTruncatedPkts ip6OutOctets iwInRdmaSends iwOutRdmaWrites rxVlanErrors tcpOutSegs TxUDP "
    "ip4InDiscards ip4InPkts ip4OutMcastPkts ip4OutSegRqd ip6InOctets ip6OutMcastOctets ip6OutPkts iwInRdmaWrites "
    "iwRdmaBnd tcpInOptErrors tcpRetransSegs cnpHandled ip4InMcastOctets ip4InReasmRqd ip4OutNoRoutes ip6InDiscards "
    "ip6InPkts ip6OutMcastPkts ip6OutSegRqd iwOutRdmaReads iwRdmaInv tcpInProtoErrors"
).split()
#: Of mlx5, as the kernel names them.
MLX5: list[str] = (  # noqa: SIM905 - as above
    "duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets "
    "out_of_buffer out_of_sequence packet_seq_err req_cqe_error rnr_nak_retry_err roce_adp_retrans roce_slow_restart "
    "rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_read_requests rx_write_requests"
).split()
IB = (
    "excessive_buffer_overrun_errors", "link_downed", "port_rcv_data", "port_rcv_errors", "port_xmit_data",
    "port_xmit_wait",
)  # fmt: skip

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def port(sysfs: Path, device: str, counters: Iterable[str], hw: Iterable[str], number: str = "1") -> Path:
    """A port whose counters have their place in the list as value."""
    folder = sysfs / "class/infiniband" / device / "ports" / number
    for kind, names in (("counters", counters), ("hw_counters", hw)):
        for value, name in enumerate(names):
            write(folder / kind / name, f"{value}\n")
    for name, text in (("state", "4: ACTIVE"), ("rate", "100 Gb/sec (4X EDR)"), ("link_layer", "Ethernet")):
        write(folder / name, text + "\n")
    write(folder / "gid_attrs/ndevs/0", f"net_{device}\n")
    write(folder.parents[1] / "fw_ver", "28.39.1002\n")
    write(folder.parents[1] / "board_id", "MT_0000000838\n")
    return folder


def series(text: str) -> Series:
    """What Prometheus' parser makes of a page; each series once, each sample of a metric that says its type.

    Where the parser is missing (the oldest Python of hosts) the page is read by its grammar.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    names: list[str] = []
    for name, kind, samples in _families(text):
        names.append(name)
        assert kind in ("counter", "gauge"), name
        for sample, labels, value in samples:
            assert sample.endswith("_total") == (kind == "counter"), sample
            key = (sample, frozenset(labels.items()))
            assert key not in found, key
            found[key] = float(value)
    assert len(names) == len(set(names)), "a metric is in two places"
    return found


def _families(text: str) -> Iterator[tuple[str, str, list[tuple[str, Mapping[str, str], float]]]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families as parsed
    except ImportError:
        yield from _by_grammar(text)
        return
    for family in parsed(text):
        assert family.documentation
        yield family.name, family.type, [(each.name, each.labels, each.value) for each in family.samples]


def _by_grammar(text: str) -> Iterator[tuple[str, str, list[tuple[str, Mapping[str, str], float]]]]:
    def unescaped(value: str) -> str:
        return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)

    for block in re.split(r"^# HELP ", text, flags=re.MULTILINE)[1:]:
        help_line, type_line, *lines = block.removesuffix("\n").split("\n")
        name, kind = type_line.replace("# TYPE ", "", 1).split(" ")
        assert help_line.startswith(f"{name} ")
        samples: list[tuple[str, Mapping[str, str], float]] = []
        for line in lines:
            match = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line, re.DOTALL)
            assert match, line
            labels = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2] or "", re.DOTALL)
            samples.append((match[1], {key: unescaped(value) for key, value in labels}, float(match[3])))
        yield name, kind, samples


def of(found: Series, name: str, **labels: str) -> float | None:
    """The value of one series."""
    return found.get((name, frozenset(labels.items())))


def having(found: Series, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """All series of a metric."""
    return {tuple(sorted(labels)): value for (metric, labels), value in found.items() if metric == name}
