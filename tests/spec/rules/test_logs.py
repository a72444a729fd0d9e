"""Rules of `logs`."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL


def test_journals_are_kept_where_the_controller_reaches_hosts() -> None:
    assert loads(f"{LOCAL}logs: {{keep_days: 30}}\n").logs.keep_days == 30
    assert loads(LOCAL).logs.keep_days == 0


def test_without_the_home_share_they_are_refused() -> None:
    without = LOCAL.replace("storage:\n  home:\n", "storage:\n  home:\n    enabled: false\n", 1)
    with pytest.raises(InputError) as error:
        loads(f"{without}logs: {{keep_days: 1}}\n")
    assert "logs.keep_days" in str(error.value)
