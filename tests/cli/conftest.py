"""What the tests of commands share."""

from __future__ import annotations

import pytest
from support.cluster import free_port as free_port_of


@pytest.fixture
def free_port() -> int:
    """A port that nobody on loopback uses."""
    return free_port_of("127.0.0.2")
