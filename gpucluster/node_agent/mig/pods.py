"""The node as one of Kubernetes: which pods have its GPUs, and what offers them to pods.

A device plugin holds every GPU, and lists them once, when it starts. So it is ended before a GPU is divided in another
way; kubelet, which is away as long, starts it again.

Sources: Kubernetes, pkg/kubelet/cm/devicemanager/checkpoint (which pod has which device); NVIDIA's mig-parted,
deployments/container/reconfigure-mig.sh (which programs its manager pauses); gpu-operator, assets (their containers).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucluster.node_agent.mig.plan import NotPossible
from gpucluster.node_agent.rules.devices import is_of_nvidia_gpus

if TYPE_CHECKING:
    from gpucluster.node_agent.mig.apply import MigNode

KUBELET = "kubelet.service"
#: Where kubelet remembers which pod has which devices.
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
#: Names of containers: our plugin, and what NVIDIA's operator runs beside it.
OFFER = frozenset({"nvidia-device-plugin", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-dcgm-ctr"})
_CRICTL = "/usr/local/bin/crictl"
_LABELS = "io.kubernetes.{}"
_SECONDS = 60.0
#: Seconds that a plugin gets to end by itself.
_GRACE = "20"
_MOST_NAMED = 5


@contextlib.contextmanager
def away(node: MigNode) -> Iterator[None]:
    """Let kubelet start no pod meanwhile, and end what offers GPUs. Nothing is done where no kubelet runs: at a boot.

    Raises:
        NotPossible: a pod that runs has a GPU or an instance of one, or the runtime does not report which pods run.
    """
    if node.run(["systemctl", "is-active", "--quiet", KUBELET], _SECONDS).status != 0:
        yield
        return
    node.run(["systemctl", "stop", KUBELET], _SECONDS)
    try:
        running = _running(node)
        busy = holders(running, _checkpoint(node))
        if busy:
            more = f" and {len(busy) - _MOST_NAMED} more" if len(busy) > _MOST_NAMED else ""
            raise NotPossible(
                f"pods have GPUs of this node ({', '.join(busy[:_MOST_NAMED])}{more}): drain the node, and apply again"
            )
        for each in running:
            if each.get("name") in OFFER:
                node.run([*_crictl(node), "stop", "--timeout", _GRACE, each["id"]], _SECONDS)
        yield
    finally:
        # Where this program runs as a unit, kubelet comes after it and would wait for it.
        node.run(["systemctl", "start", "--no-block", KUBELET], _SECONDS)


def holders(running: Iterable[Mapping[str, str]], checkpoint: str | None) -> list[str]:
    """The pods, as NAMESPACE/NAME, that have a GPU or an instance, and of which a container runs. Pure.

    kubelet forgets a pod that has ended only when another one wants its devices.

    Args:
        running: containers, as `{id, name, uid, pod}`.
        checkpoint: what kubelet remembers; None where it has never given a device.

    Raises:
        NotPossible: that can't be read.
    """
    if checkpoint is None:
        return []
    try:
        entries = json.loads(checkpoint)["Data"]["PodDeviceEntries"] or []
        owners = {str(each["PodUID"]) for each in entries if is_of_nvidia_gpus(str(each["ResourceName"]))}
    except (ValueError, KeyError, TypeError) as error:
        raise NotPossible(f"{CHECKPOINT} can't be read ({type(error).__name__}): which pods have GPUs?") from None
    return sorted({each["pod"] for each in running if each["uid"] in owners})


def _checkpoint(node: MigNode) -> str | None:
    try:
        return node.path(CHECKPOINT).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotPossible(f"{CHECKPOINT} can't be read: {error.strerror}") from None


def _running(node: MigNode) -> list[dict[str, str]]:
    answer = node.run([*_crictl(node), "ps", "--state", "Running", "--output", "json"], _SECONDS)
    # Where it has no configuration it warns before its answer.
    text = answer.output[answer.output.find("{") :] if answer.status == 0 else ""
    try:
        # What follows the answer is what it has written to its errors.
        containers: Any = json.JSONDecoder().raw_decode(text)[0]["containers"] or []
        return [_container(each["id"], each["labels"]) for each in containers]
    except (ValueError, KeyError, TypeError):
        last = (answer.output.strip().splitlines() or ["no answer"])[-1]
        raise NotPossible(f"crictl does not report which pods run here: {last[:200]}") from None


def _container(number: str, labels: Mapping[str, str]) -> dict[str, str]:
    name, uid, pod, namespace = (
        str(labels[_LABELS.format(key)]) for key in ("container.name", "pod.uid", "pod.name", "pod.namespace")
    )
    return {"id": str(number), "name": name, "uid": uid, "pod": f"{namespace}/{pod}"}


def _crictl(node: MigNode) -> Sequence[str]:
    """The program: sudo of Oracle Linux has no /usr/local/bin in its path; images of OKE have crictl elsewhere."""
    return [_CRICTL if node.path(_CRICTL).exists() else "crictl"]
