"""The two clouds behind one interface: Oracle Cloud Infrastructure and the local cloud.

Which cloud a cluster is in is decided in `open_cloud` and nowhere else: all other code talks to a `CloudProvider`. Only
`local` imports `gpucluster.localcloud`, and only the cloud that is used is imported.
"""

from __future__ import annotations

from gpucluster.cloud.providers.interface import CloudProvider, ControllerAccess
from gpucluster.events import Sink
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec

__all__ = ["CloudProvider", "ControllerAccess", "open_cloud"]


def open_cloud(spec: ClusterSpec, paths: ClusterPaths, on_event: Sink, provider: str = "bundled") -> CloudProvider:
    """The cloud that cluster.yml names.

    Args:
        provider: where the local cloud takes Terraform's provider from; see `LocalCloudProvider`.

    Raises:
        InputError: the OCI configuration file, its profile or one of its entries is missing.
    """
    if spec.cloud.provider == "local":
        from gpucluster.cloud.providers.local import LocalCloudProvider

        return LocalCloudProvider(spec, paths, on_event, provider)
    from gpucluster.cloud.providers.oci import OciCloudProvider

    return OciCloudProvider(spec)
