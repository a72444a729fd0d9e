"""What all tests of the agent share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Programs of the agent set the umask of their process, which is that of all later tests as well."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
