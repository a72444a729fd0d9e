"""Trees of files like the kernel's."""

from __future__ import annotations

from collections.abc import Iterable
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
