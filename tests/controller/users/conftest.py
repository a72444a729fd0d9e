"""Fixtures that several tests of this folder use."""

from __future__ import annotations

import pytest

from tests.controller.users.directory_model import Directory


@pytest.fixture
def there() -> Directory:
    return Directory()
