"""I10: a stale round commits no checkpoint, and an agent that was cut off stops its workers when it sees the store."""

from __future__ import annotations

import msgspec
import pytest
import torch
from support.builders import decision, member
from support.fake_store import FakeStore, World

from ezpz_elastic.checkpoint import CheckpointError, CheckpointManager
from ezpz_elastic.fence import round_fence
from ezpz_elastic.settings import Settings
from ezpz_elastic.storefile import remember
from rendezvous.fencing import is_current
from rendezvous.records import Opening, Roster, encode
from rendezvous.replay import decision_key, opening_key
from rendezvous.stores import StoreUnavailable
from rendezvous.stores.tcpstore import StoreServer, TcpStore


def opening(number: int) -> bytes:
    return encode(Opening(number, roster=Roster(number, (member("a"),))))


def test_a_round_is_current_until_it_is_decided_or_followed():
    store = FakeStore(World())
    store.create(opening_key(1), opening(1))
    assert is_current(store, 1)
    store.create(decision_key(1), encode(decision(1)))
    assert not is_current(store, 1)
    store.create(opening_key(2), encode(Opening(2, ended=decision(2))))
    store.create(opening_key(3), opening(3))
    assert not is_current(store, 2), "a round that ended before it began leaves no decision, but it is over"
    assert is_current(store, 3)


def test_a_round_of_which_the_store_knows_nothing_is_over():
    """The last agent of a job takes everything away."""
    assert not is_current(FakeStore(World()), 1)


@pytest.fixture
def server():  # type: ignore[no-untyped-def]
    made = StoreServer("127.0.0.1", 0, "run")
    yield made
    made.close()


def environment(tmp_path, server, number: int) -> dict[str, str]:  # type: ignore[no-untyped-def]
    remember(tmp_path, server.endpoint, "run", Settings())
    return {"EZPZ_RUN_DIR": str(tmp_path), "EZPZ_ROUND": str(number), "TORCHELASTIC_RUN_ID": "run"}


def test_a_worker_of_a_round_that_is_over_commits_no_checkpoint(tmp_path, server):
    store = TcpStore("127.0.0.1", server.port, "run")
    store.create(opening_key(1), opening(1))
    fence = round_fence(environment(tmp_path, server, 1))
    assert fence is not None
    manager = CheckpointManager(tmp_path / "ckpts", fence=fence)
    state = {"weights": torch.ones(4)}
    manager.save(1, state)
    assert manager.latest() == tmp_path / "ckpts" / "step-1"
    store.create(decision_key(1), encode(decision(1)))
    with pytest.raises(CheckpointError):
        manager.save(2, state)
    assert manager.latest() == tmp_path / "ckpts" / "step-1"


def test_an_unreachable_store_stops_no_checkpoint(tmp_path):
    server = StoreServer("127.0.0.1", 0, "run")
    TcpStore("127.0.0.1", server.port, "run").create(opening_key(1), opening(1))
    fence = round_fence(environment(tmp_path, server, 1))
    assert fence is not None
    server.close()
    assert fence()


@pytest.mark.parametrize(
    "environ", [{}, {"EZPZ_RUN_DIR": "/no/such/run", "EZPZ_ROUND": "1"}, {"EZPZ_RUN_DIR": "x", "EZPZ_ROUND": "one"}]
)
def test_outside_of_an_elastic_run_there_is_no_fence(environ):
    assert round_fence(environ) is None


def test_no_worker_has_a_password_so_an_etcd_with_logins_gives_no_fence(tmp_path):
    remember(tmp_path, "etcd://127.0.0.1:1", "run", Settings())
    written = (tmp_path / "store.json").read_text()
    assert "assword" not in written
    assert '"store":"etcd"' in written, "whoever reads the file is told which store it is"
    environ = {"EZPZ_RUN_DIR": str(tmp_path), "EZPZ_ROUND": "1", "EZPZ_ETCD_USER": "u"}
    assert round_fence(environ) is None


def test_an_answer_that_is_not_known_is_an_error_here():
    world = World()
    world.down = True
    with pytest.raises(StoreUnavailable):
        is_current(FakeStore(world), 1)
    assert msgspec.json.decode(opening(1))["round"] == 1
