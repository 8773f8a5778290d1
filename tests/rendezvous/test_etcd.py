"""etcd's own side: members that die, leases, TLS and logins, and what is left of a run."""

from __future__ import annotations

import random
import signal
import threading
import time
import uuid
from functools import partial
from pathlib import Path

import pytest
from support.etcd import Etcd, Waiter, insist, until

from rendezvous.stores import RunGone, StoreRefused, StoreUnavailable
from rendezvous.stores.etcd import PART, EtcdStore
from rendezvous.stores.etcd_client import EtcdClient, Login
from rendezvous.stores.etcd_run import lease_id


def test_waiting_for_a_record_costs_etcd_nothing_until_it_is_there(etcd, store):
    watched = etcd.store("watched")
    watched.wait("k", 0.0)
    calls = []
    original = watched._client.call
    watched._client.call = lambda operation: calls.append(operation) or original(operation)
    for _ in range(5):
        assert watched.wait("k", 0.05) is None
    etcd.store("watched").create("k", b"v")
    assert watched.wait("k", 60.0) == b"v"
    assert calls == []
    watched.close()


def test_a_lease_that_is_not_renewed_ends_and_the_key_of_a_living_agent_stays(store):
    store.renew("silent", 3.0)
    store.renew("living", 3.0)
    assert None not in store.leases(["silent", "living"])
    deadline = time.monotonic() + 60
    while (numbers := store.leases(["silent", "living"]))[0] is not None:
        assert time.monotonic() < deadline, "etcd does not end the lease"
        store.renew("living", 3.0)
        time.sleep(0.1)
    assert numbers[1] is not None
    store.renew("silent", 60.0)
    assert store.leases(["silent"]) != [None], "an agent that was silent too long takes a new lease"


def test_runs_do_not_see_each_other_even_if_one_name_begins_with_the_other(etcd):
    outer, inner = etcd.store("run"), etcd.store("run/1")
    outer.create("k", b"outer")
    assert inner.get("k") is None
    inner.renew("agent", 60.0)
    outer.end("nobody", over=True)
    assert outer.get("k") is None
    assert inner.leases(["agent"]) != [None]
    inner.end("agent", over=True)


def test_the_last_agent_of_a_job_that_is_over_removes_everything(etcd):
    run = uuid.uuid4().hex
    first, last = etcd.store(run), etcd.store(run)
    for name, own in (("first", first), ("last", last)):
        own.renew(name, 60.0)
        own.append(b"m")
    first.create("large", b"x" * (3 * PART))
    first.end("first", over=True)
    assert first.get("large") is not None, "the last agent may still have to read the decision"
    last.end("last", over=False)
    assert first.get("large") is not None, "the job is not over"
    last.renew("last", 60.0)
    last.end("last", over=True)
    assert [key for key in etcd.all_keys() if run in key] == []


def test_in_a_run_that_was_removed_nobody_writes_and_nothing_is_found_missing(etcd):
    """A later job of the same name is another run, too."""
    run = uuid.uuid4().hex
    last, away = etcd.store(run), etcd.store(run)
    for name, own in (("last", last), ("away", away)):
        own.create("job", b"{}")
        own.get("job")
        own.renew(name, 60.0)
    away.append(b"m")
    last.end("away", over=False)  # as whoever declares it lost does
    last.end("last", over=True)
    operations = [
        lambda: away.get("k"),
        lambda: away.create("k", b"v"),
        lambda: away.create("job", b"{}"),
        lambda: away.append(b"m"),
        lambda: away.read(0, 0.0),
        lambda: away.wait("k", 0.0),
        lambda: away.renew("away", 5.0),
    ]
    for operation in operations:
        with pytest.raises(RunGone, match="the job ended while this host was cut off"):
            operation()
    assert [key for key in etcd.all_keys() if run in key] == []
    other = etcd.store(run)
    other.create("job", b"{}")
    other.create("k", b"v")
    there = [key for key in etcd.all_keys() if run in key]
    for operation in operations:
        with pytest.raises(RunGone):
            operation()
    away.end("away", over=True)
    assert [key for key in etcd.all_keys() if run in key] == there
    other.end("nobody", over=True)


def test_a_wake_ends_a_read_and_no_wait_after_it(etcd, store):
    _, cursor = store.read(0, 0.0)
    threading.Timer(0.1, store.wake).start()
    assert store.read(cursor, 60.0) == ([], cursor)
    store.wake()
    assert store.read(cursor, 60.0) == ([], cursor), "a wake before the read is not lost"
    threading.Timer(0.1, lambda: store.connect().create("late", b"v")).start()
    assert store.wait("late", 30.0) == b"v"


def test_a_connection_that_is_closed_leaves_no_watch(store):
    store.get("k")
    watches = store._client._client.watcher._callbacks
    before = len(watches)
    other = store.connect()
    other.wait("never", 0.0)
    other.read(0, 0.0)
    assert len(watches) == before + 2
    other.close()
    assert len(watches) == before
    assert store.get("k") is None, "the channel goes on"


def test_what_is_kept_stays_and_what_nobody_removes_hangs_on_a_lease(etcd):
    kept, left = (uuid.uuid4().hex for _ in range(2))
    for run, keep in ((kept, True), (left, False)):
        own = etcd.store(run, keep=keep)
        own.create("k", b"v")
        own.renew("a", 5.0)
        if keep:
            own.end("a", over=True)

    def lease(run: str) -> int:
        lines = etcd.ctl("get", f"/ezpz/{run}/k", "--write-out=fields").splitlines()
        return next(int(line.split(":")[1]) for line in lines if line.startswith('"Lease"'))

    assert lease(kept) == 0
    assert lease(left) != 0


def test_a_lost_lease_of_the_run_is_taken_again(etcd, store):
    store.create("k", b"v")
    store._client.call(lambda client: client.revoke_lease(store._run.lease))
    assert store.get("k") is None
    assert store.create("k", b"again") == b"again"


def test_a_reader_goes_on_from_its_revision_after_the_connection_was_lost_and_the_history_compacted(etcd, store):
    store.append(b"one")
    messages, cursor = store.read(0, 5.0)
    assert len(messages) == 1
    other = etcd.store(store._run.prefix.split("/")[2])
    broken = store._client._client
    other.append(b"two")
    other.append(b"three")
    revision = other._client.call(lambda client: client.get_response("x")).header.revision
    other._client.call(lambda client: client.compact(revision))
    broken.close()
    seen: list[bytes] = []
    while len(seen) < 2:
        messages, cursor = insist(partial(store.read, cursor, 5.0))
        seen += [data for _, data in messages]
    assert seen == [b"two", b"three"]


def test_a_large_value_that_lost_the_race_leaves_no_parts(etcd, store):
    store.create("k", b"x" * (2 * PART))
    before = [key for key in etcd.all_keys() if key.startswith(store._run.prefix)]
    assert len(before) == 3
    store.create("k", b"y" * (2 * PART))
    assert [key for key in etcd.all_keys() if key.startswith(store._run.prefix)] == before


@pytest.mark.parametrize(
    "stored", [b"\0ezpz parts\0{", b'\0ezpz parts\0{"id":"gone","count":1,"size":5}', b"\0ezpz parts\0\xff"]
)
def test_parts_that_are_not_there_are_handed_on_for_the_reader_to_refuse(store, stored):
    store._write(store._key("k"), stored)
    assert store.get("k") == stored


def test_a_huge_claim_of_parts_costs_no_more_than_the_parts_there_are(store):
    stored = b'\0ezpz parts\0{"id":"gone","count":99999999999,"size":999999999999999}'
    store._write(store._key("k"), stored)
    assert store.get("k") == stored


# -- three members -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_the_leader_dies_or_hangs_and_the_others_go_on(three, signum):
    store = three.store(timeout=1.0)
    insist(lambda: store.renew("agent", 30.0))
    waiter = Waiter(store.connect(), "late")
    insist(lambda: store.append(b"before"))
    leader = three.leader()
    three.signal(leader, signum)
    insist(lambda: store.append(b"after"))
    insist(lambda: store.renew("agent", 30.0))
    insist(lambda: store.create("late", b"v"))
    until(lambda: waiter.value == b"v", "the waiting agent is told")
    assert insist(lambda: [data for _, data in store.read(0, 0.0)[0]])[-1] == b"after"
    assert insist(lambda: store.leases(["agent"])) != [None]
    store.close()


def at_home(etcd: Etcd, member: int) -> EtcdStore:
    """A store whose heartbeat and other calls are with this member; on a busy machine several may have left it."""
    deadline = time.monotonic() + 60
    while True:
        made = EtcdStore(EtcdClient(etcd.endpoints, first=member), "run")
        try:
            made.renew("agent", 5.0)
            made.get("k")
        except StoreUnavailable:
            made.close()
            if time.monotonic() >= deadline:
                raise
        else:
            return made


def test_a_heartbeat_leaves_a_member_that_hangs_long_before_its_lease_ends_and_disturbs_nobody(three):
    """A call may take 5 s, which is all that a lease has."""
    hung = (three.leader() + 1) % 3
    store = at_home(three, hung)
    pulse, channel = store._run.pulse(5.0), store._client._client
    assert pulse.timeout == 1.0
    assert "TTL(6s)" in three.ctl("lease", "timetolive", f"{lease_id(store._run.prefix + 'agent'):x}")
    three.signal(hung, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable):
        store.renew("agent", 5.0)
    insist(lambda: store.renew("agent", 5.0))
    assert pulse._at != hung
    assert store._client._client is channel, "the others' calls have their own time"
    three.signal(hung, signal.SIGCONT)
    store.close()


def test_agents_begin_at_different_members_and_leave_the_programs_dice_alone():
    dice = random.getstate()
    began = {EtcdClient([("h1", 1), ("h2", 1), ("h3", 1)])._at for _ in range(100)}
    assert began == {0, 1, 2}
    assert random.getstate() == dice


def test_a_member_that_lost_the_quorum_is_left_for_one_that_has_it(three):
    """A watch on the lonely member would be silent for ever."""
    store = three.store(timeout=1.0)
    at = store._client
    waiter = Waiter(store.connect(), "late")
    until(lambda: at._client is not None, "connected")
    mine = at._at
    others, before = [member for member in range(3) if member != mine], waiter.outages
    for member in others:
        three.signal(member, signal.SIGSTOP)
    until(lambda: waiter.outages > before, "the outage is noticed")
    for member in others:
        three.signal(member, signal.SIGCONT)
    insist(lambda: three.store(timeout=1.0).create("late", b"v"))
    until(lambda: waiter.value == b"v", "the waiting agent is told")
    store.close()


def test_all_members_restart_and_nothing_is_forgotten(three):
    store = three.store(timeout=1.0)
    insist(lambda: store.renew("agent", 30.0))
    insist(lambda: store.create("k", b"v"))
    waiter = Waiter(store.connect(), "late")
    for member in range(3):
        three.signal(member, signal.SIGKILL)
    with pytest.raises(StoreUnavailable):
        store.get("k")
    until(lambda: waiter.outages, "the waiting agent notices it")
    for member in range(3):
        three.start(member)
    assert insist(lambda: store.get("k")) == b"v"
    assert insist(lambda: store.leases(["agent"])) != [None], "etcd has not forgotten the lease"
    insist(lambda: store.create("late", b"v"))
    until(lambda: waiter.value == b"v", "the waiting agent is told")
    store.close()


# -- TLS and logins ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Three members with TLS, client certificates and users."""
    made = Etcd(tmp_path_factory.mktemp("guarded"), members=3, tls=True)
    made.add_users()
    yield made
    made.close()


def test_a_run_over_tls_with_a_login_survives_a_member(guarded):
    store = guarded.store("guarded", timeout=2.0)
    waiter = Waiter(store.connect(), "late")
    insist(lambda: store.renew("agent", 30.0))
    assert insist(lambda: store.create("k", b"v")) == b"v"
    victim = (guarded.leader() + 1) % 3
    guarded.signal(victim, signal.SIGKILL)
    insist(lambda: store.append(b"m"))
    insist(lambda: store.create("late", b"v"))
    until(lambda: waiter.value == b"v", "the waiting agent is told")
    insist(lambda: store.end("agent", over=True))
    store.close()
    guarded.start(victim)
    guarded.await_ready()


def test_a_login_is_taken_in_the_clear_too_and_its_want_is_told(tmp_path):
    """gRPC sends no credentials of its own over such a channel: the token has to go another way."""
    plain = Etcd(tmp_path)
    try:
        plain.add_users()
        store = plain.store("plain")
        waiter = Waiter(store.connect(), "late")
        store.renew("agent", 30.0)
        assert store.create("late", b"v") == b"v"
        until(lambda: waiter.value == b"v", "the watch has the login too")
        store.end("agent", over=True)
        store.close()
        nobody = EtcdStore(EtcdClient(plain.endpoints), "plain")
        with pytest.raises(StoreRefused, match="EZPZ_ETCD_USER and EZPZ_ETCD_PASSWORD"):
            nobody.get("k")
        nobody.close()
    finally:
        plain.close()


def test_a_wrong_password_is_refused_for_good_and_stands_in_no_error(guarded):
    tls = guarded.credentials.load()
    word = "not-the-password"
    for login, why in ((Login("ezpz", word), "authentication failed"), (None, "permission denied|user name is empty")):
        store = EtcdStore(EtcdClient(guarded.endpoints, tls, login), "run")
        with pytest.raises(StoreRefused, match=why) as caught:
            store.get("k")
        assert word not in str(caught.value)
        assert caught.value.__cause__ is None
        store.close()


def test_a_user_without_the_right_is_refused_for_good(guarded):
    store = guarded.store("run")
    with pytest.raises(StoreRefused, match="permission denied"):
        store._client.call(lambda client: client.put("/elsewhere", b"v"))
    assert store.create("k", b"v") == b"v", "the connection itself is fine"
    store.close()


def test_a_login_that_etcd_has_forgotten_is_made_again(guarded):
    """etcd forgets its tokens when their time is over and when the rights change."""
    store = guarded.store("forgotten")
    store.create("k", b"v")
    store._client._client.metadata = (("token", "forgotten.1"), ("hasleader", "true"))
    with pytest.raises(StoreUnavailable, match="invalid auth token"):
        store.get("k")
    assert insist(lambda: store.get("k")) == b"v"
    store.close()


def test_an_authority_that_did_not_sign_is_told_apart_from_an_outage(guarded, tmp_path):
    from support.etcd import make_certificates

    stranger = make_certificates(tmp_path / "other")
    store = EtcdStore(EtcdClient(guarded.endpoints, stranger.load(), guarded.login), "run")
    with pytest.raises(StoreRefused, match="CERTIFICATE_VERIFY_FAILED"):
        store.get("k")
    store.close()


def test_a_server_is_found_or_the_run_fails_in_ci(monkeypatch):
    from support.etcd import binary

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no etcd"):
        binary()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no etcd"):
        binary()
    assert not Path("/nonexistent").exists()
