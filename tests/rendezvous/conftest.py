"""Stores of every kind for the tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.etcd import Etcd

from rendezvous.stores.etcd import EtcdStore


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member that all tests share; each uses a run id of its own."""
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.close()


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    """A run of this test's own in the shared member."""
    made = etcd.store(uuid.uuid4().hex)
    yield made
    made.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    """Three members of this test's own."""
    made = Etcd(tmp_path, members=3)
    yield made
    made.close()
