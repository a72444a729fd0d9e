"""Certificates of the control plane: until when they are valid, and their renewal by kubeadm.

They are read from the files, so this works with an API server that is dead because of them. kubeadm renews what its
CAs sign for a year; the CAs themselves are valid for ten and are not renewed.
"""

from __future__ import annotations

import base64
import calendar
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.controller.kubernetes import containers
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

KUBERNETES = Path("/etc/kubernetes")
#: The configuration with which kubeadm made this control plane.
CONFIG = KUBERNETES / "kubeadm.yaml"
#: The certificate with which kubelet talks to the API server; it renews it itself while it runs.
KUBELET = Path("/var/lib/kubelet/pki/kubelet-client-current.pem")
#: Fewer days than these, and apply or the timer renews. kubeadm gives certificates of a year.
RENEW_WITHIN_DAYS = 90.0
#: Fewer days than these, and `status` and `verify` warn: renewal should have happened long ago.
WARN_WITHIN_DAYS = 30
_DAY_S = 86400.0
#: Seconds for kubeadm, and for the control plane to answer again.
_KUBEADM_S, _ANSWERS_WITHIN_S, _POLL_S = 120.0, 180.0, 2.0
_AUTHORITIES = ("ca.crt", "front-proxy-ca.crt")
_END = re.compile(r"notAfter=(\w{3}\s+\d+ \d\d:\d\d:\d\d \d{4}) GMT")
_EMBEDDED = re.compile(r"client-certificate-data:\s*([A-Za-z0-9+/=]+)")


class Certificate(NamedTuple):
    """A certificate.

    Attributes:
        file: its path.
        expires: seconds since 1970.
        authority: whether it is a CA.
    """

    file: str
    expires: float
    authority: bool

    def days(self, now: float) -> float:
        """Days that are left; negative if it has expired."""
        return (self.expires - now) / _DAY_S

    def to_dict(self, now: float) -> dict[str, Any]:
        """As a JSON object; days are rounded down."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires))
        return {"file": self.file, "expires": until, "days": int(self.days(now) // 1), "authority": self.authority}


def to_renew(
    certificates: Iterable[Certificate], now: float, within_days: float = RENEW_WITHIN_DAYS
) -> list[Certificate]:
    """Those that are to be renewed: signed ones with fewer days left."""
    return [each for each in certificates if not each.authority and each.days(now) < within_days]


def outlived(
    certificates: Iterable[Certificate], now: float, within_days: float = RENEW_WITHIN_DAYS
) -> list[Certificate]:
    """The CAs that end soon: kubeadm can't renew them, and what they sign ends with them."""
    return [each for each in certificates if each.authority and each.days(now) < within_days]


def read(folder: Path = KUBERNETES) -> list[Certificate]:
    """The certificates of a control plane, by their files.

    Raises:
        Failed: there is no control plane, or a file can't be read.
    """
    files = sorted((folder / "pki").rglob("*.crt"))
    if not files:
        raise Failed(f"{folder}/pki has no certificates: this host has no control plane yet", "Run: gpucluster apply")
    certificates = [
        Certificate(str(file), end_of(file, file.read_bytes()), file.name in _AUTHORITIES) for file in files
    ]
    for file in sorted(folder.glob("*.conf")):
        # That of kubelet is its own affair: kubelet renews it, in another file.
        embedded = None if file.name == "kubelet.conf" else _EMBEDDED.search(_text(file))
        if embedded:
            certificates.append(Certificate(str(file), end_of(file, base64.b64decode(embedded[1])), authority=False))
    return certificates


def kubelet_expired(now: float, file: Path = KUBELET) -> bool:
    """Whether the certificate of kubelet on this host has expired; False where it has none."""
    return file.exists() and Certificate(str(file), end_of(file, file.read_bytes()), authority=False).days(now) <= 0


def renew_kubelet(now: float, folder: Path = KUBERNETES, file: Path = KUBELET, config: Path = CONFIG) -> bool:
    """Make kubelet of this host a new certificate if its own has expired, as on a controller that was off for long:
    kubelet does not start with it. Returns whether that was so.

    Raises:
        Failed: kubeadm could not make one.
    """
    if not kubelet_expired(now, file):
        return False
    (folder / "kubelet.conf").unlink(missing_ok=True)
    programs.run(
        "kubeadm", "init", "phase", "kubeconfig", "kubelet", f"--config={config}", f"--kubeconfig-dir={folder}",
        seconds=_KUBEADM_S,
    )  # fmt: skip
    for old in file.parent.glob("kubelet-client-*.pem"):
        old.unlink()
    programs.run("systemctl", "restart", "kubelet", seconds=_KUBEADM_S)
    return True


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def end_of(file: Path, pem: bytes) -> float:
    """When a certificate ends, in seconds since 1970.

    Args:
        file: where it was found, for the message.

    Raises:
        Failed: it is not a certificate.
    """
    result = programs.call(["openssl", "x509", "-noout", "-enddate"], pem.decode("ascii", errors="replace"))
    ends = _END.search(result.stdout)
    if result.returncode != 0 or not ends:
        raise Failed(f"{file} holds no certificate that openssl can read", "Restore it: gpucluster restore FILE")
    return float(calendar.timegm(time.strptime(ends[1], "%b %d %H:%M:%S %Y")))


def renew(
    kubectl: Kubectl,
    wait: Callable[[float], None],
    folder: Path = KUBERNETES,
    *,
    within_days: float = RENEW_WITHIN_DAYS,
) -> list[str]:
    """Renew all certificates if one has fewer days left, and start the control plane again so that it uses them.

    Returns:
        The files of those that were due; empty if nothing was done.

    Raises:
        Failed: kubeadm did not renew them, or the control plane does not answer afterwards.
    """
    due = to_renew(read(folder), time.time(), within_days)
    if not due:
        return [str(KUBELET)] if renew_kubelet(time.time(), folder) else []
    result = programs.call(["kubeadm", "certs", "renew", "all"], seconds=_KUBEADM_S)
    if result.returncode != 0:
        why = (result.stderr.strip() or result.stdout.strip() or f"status {result.returncode}").splitlines()[-1]
        raise Failed(f"kubeadm did not renew the certificates: {why}", "Run: gpucluster backup; then gpucluster apply")
    left = to_renew(read(folder), time.time(), min(within_days, 1.0))
    if left:
        raise Failed(
            f"{left[0].file} is not valid after its renewal", "Compare the clock of the controller: date --utc"
        )
    kubelet = [str(KUBELET)] if renew_kubelet(time.time(), folder) else []
    containers.end_control_plane()
    await_server(kubectl, wait)
    return [each.file for each in due] + kubelet


def await_server(kubectl: Kubectl, wait: Callable[[float], None], seconds: float = _ANSWERS_WITHIN_S) -> None:
    """Wait until the API server is ready.

    Raises:
        Failed: it is not within this time; the reason is its own.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            kubectl.run("get", "--raw=/readyz", seconds=5)
            return
        except Failed as error:
            if time.monotonic() > end:
                raise Failed(
                    f"the API server is not ready after {seconds:.0f} s: {error.message}",
                    "Look why: gpucluster kubernetes status",
                ) from None
        wait(_POLL_S)
