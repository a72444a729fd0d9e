"""What all tests of the controller's programs share: the same as those of the programs of nodes."""

from tests.node_agent.conftest import own_umask

__all__ = ["own_umask"]
