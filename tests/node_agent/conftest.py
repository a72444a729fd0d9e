"""What all tests of the agent share."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# On the oldest Python of hosts (test_oldest_python.py) a few examples show that the code runs there at all. All of them
# are tried on the newer one.
if sys.version_info < (3, 10):
    settings.register_profile("oldest-python", settings.get_profile("tests"), max_examples=10)
    settings.load_profile("oldest-python")


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Programs of the agent set the umask of their process, which is that of all later tests as well."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
