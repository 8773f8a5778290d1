"""A retry loop, ended with every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.retry_loop import Loop


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.close()
