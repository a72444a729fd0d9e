"""Sockets of systemd that roles install, and where they stand in the order of a boot."""

from __future__ import annotations

from gpucluster.node_agent.state_volume import layout
from tests.ansible.loading import ANSIBLE


def test_no_socket_that_waits_for_the_state_volume_comes_before_basic_target() -> None:
    """The unit of the volume comes after it. systemd would leave out one of them at a boot, and all that needs it."""
    sockets = [name for name in layout.SERVICES if name.endswith(".socket")]
    assert sockets
    for name in sockets:
        (file,) = ANSIBLE.glob(f"roles/*/*/{name}*")
        assert "\nDefaultDependencies=no\n" in file.read_text(), name
