"""What all tests of the agent share."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gpucluster.node_agent import host_certificates
from tests.node_agent.processes import Note, kill
from tests.waiting import PATIENCE_S

# On the oldest Python of hosts (test_oldest_python.py) a few examples show that the code runs there at all. All of them
# are tried on the newer one.
if sys.version_info < (3, 10):
    settings.register_profile("oldest-python", settings.get_profile("tests"), max_examples=10)
    settings.load_profile("oldest-python")


@pytest.fixture
def patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a host wait until a program of the controller has had a processor."""
    monkeypatch.setattr(host_certificates, "_ANSWER_SECONDS", PATIENCE_S)


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Programs of the agent set the umask of their process, which is that of all later tests as well."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Note]:
    made = Note(tmp_path / "pid")
    yield made
    if made.is_written():
        with contextlib.suppress(ProcessLookupError):
            kill(made.pid(), signal.SIGKILL)
