"""Whatever stands in the store, nothing of it is executed and one line names the key; the job goes on or stops."""

from __future__ import annotations

import ast
import logging
import os
import pickle
from pathlib import Path

import msgspec
import pytest
from support.builders import job, member, retire_the_lost
from support.fake_store import FakeStore, World

import rendezvous
from rendezvous.coordinator import Part
from rendezvous.lead import Means
from rendezvous.liveness import refused
from rendezvous.records import (
    JobRecord,
    Joined,
    Opening,
    RecordError,
    Roster,
    decode,
    decode_decision,
    decode_message,
    decode_opening,
    encode,
)
from rendezvous.replay import decision_key, opening_key

PICKLED = pickle.dumps(os.system)
"""What a reader that unpickles would execute."""

MESSAGES = [
    b"",
    b"null",
    PICKLED,
    b"\xff\xfe\x00",
    b'{"type":"Joined"}',
    b'{"type":"Shutdown"}',
    b'{"type":"Report","round":"one","member_id":"x","seq":0,"outcome":"failed"}',
    b'{"type":"Report","round":1,"member_id":"x","seq":0,"outcome":"exploded"}',
    b"[" * 200_000,
    b'{"type":"Joined","member":{"id":"a","host":"a","key":"a","addr":"a","port":99999999,"pid":1,"workers":1}}',
    b'{"type":"Joined","member":{"id":"a","host":"a","key":"a","addr":"a","port":1,"pid":1,"workers":-5}}',
    b'{"type":"Joined","member":{"id":"'
    + b"9" * 5000
    + b'","host":"a","key":"a","addr":"a","port":1,"pid":1,"workers":1}}',
]


class Unused:
    def opened(self, *_: object) -> None:
        pass

    def decided(self, *_: object) -> None:
        pass


def part(world: World, name: str = "h0") -> Part:
    return Part(
        Means(FakeStore(world), job(), member(name), retire_the_lost, Unused(), probe=lambda members, timeout: [])
    )


@pytest.mark.parametrize("bad", MESSAGES, ids=range(len(MESSAGES)))
def test_a_hostile_message_is_one_line_with_its_key_and_the_job_goes_on(bad, caplog):
    world = World()
    store = FakeStore(world)
    leader = part(world)
    with caplog.at_level(logging.ERROR):
        leader.turn()
        store.append(bad)
        for name in ("h0", "h1"):
            store.append(encode(Joined(member(name))))
        for _ in range(3):
            leader.turn()
    assert opening_key(1) in world.records
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "'inbox/1'" in errors[0]
    assert "\n" not in errors[0]


@pytest.mark.parametrize("host", ["²1²", "1" * 250, "a\0b", "ü" * 100, "-1", " "])
def test_an_odd_host_name_breaks_nothing(host):
    world = World()
    store = FakeStore(world)
    leader = part(world)
    leader.turn()
    for name in (host, "h1"):
        store.append(encode(Joined(member(name, addr=host, port=1))))
    leader.turn()
    roster = decode(world.records[opening_key(1)], Opening, "k").roster
    assert {item.host for item in roster.members} == {host, "h1"}
    assert refused([member(host, addr=host)], 0.2) == []


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"{]", "malformed"),
        (PICKLED, "malformed"),
        (encode(Opening(1)), "either a roster or a decision"),
        (encode(Opening(2, roster=Roster(2, (member("a"),)))), "speaks of rounds"),
        (encode(Opening(1, roster=Roster(3, (member("a"),)))), "speaks of rounds"),
        (encode(Opening(1, roster=Roster(1, ()))), "empty roster"),
        (encode(Opening(1, roster=Roster(1, (member("a"), member("a", 1))))), "two slots"),
        (encode(Opening(1, roster=Roster(1, (member("a"), member("a"))))), "two slots"),
    ],
)
def test_a_hostile_opening_stops_the_coordinator_with_one_line_that_names_it(record, why):
    world = World()
    FakeStore(world).create(opening_key(1), record)
    leader = part(world)
    leader.turn()
    with pytest.raises(RecordError, match=why) as caught:
        leader.turn()
    assert "'round/1/opening'" in str(caught.value)


def test_a_decision_about_another_round_is_refused_and_never_read_for_ever():
    world = World()
    store = FakeStore(world)
    store.create(opening_key(1), encode(Opening(1, roster=Roster(1, (member("a"), member("b"))))))
    store.create(decision_key(1), b'{"round":4,"action":"restart","kind":"k","cause":"c","reason":"r"}')
    leader = part(world)
    leader.turn()
    with pytest.raises(RecordError, match=r"'round/1/decision': it speaks of round 4"):
        leader.turn()


@pytest.mark.parametrize("field", ["lease_ttl", "min_hosts", "join_timeout"])
def test_a_job_record_with_impossible_numbers_is_refused(field):
    values = msgspec.to_builtins(job())
    with pytest.raises(RecordError, match="'job'"):
        decode(msgspec.json.encode({**values, field: -1}), JobRecord, "job")


@pytest.mark.parametrize("data", [b"", b"\x00", b"[" * 200_000, PICKLED, b'"x"', b"1e999"])
def test_every_reader_answers_bytes_that_are_no_record_with_the_same_error(data):
    for read in (
        lambda: decode(data, JobRecord, "k"),
        lambda: decode_message(data, "k"),
        lambda: decode_opening(data, 1, "k"),
        lambda: decode_decision(data, 1, "k"),
    ):
        with pytest.raises(RecordError, match="'k'"):
            read()


def test_nothing_in_the_rendezvous_can_execute_what_it_reads():
    """No pickle, marshal, shelve, eval, exec or yaml in the package that reads the store."""
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "eval", "exec", "compile"}
    files = sorted(Path(rendezvous.__file__).parent.rglob("*.py"))
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id}
            assert not names & forbidden, f"{file.name}: {names & forbidden}"
