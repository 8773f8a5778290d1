"""``--rdzv-conf``: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ezpz_elastic.errors import UsageError
from ezpz_elastic.settings import Settings, check_run_id, parse


def test_numbers_come_as_text_and_everything_has_a_default():
    assert parse({}) == Settings()
    assert parse({"settle": "0.5", "grace": "3", "on_blind": "never"}) == Settings(
        settle=0.5, grace=3.0, on_blind="never"
    )


def test_the_run_directory_is_named_after_the_run_unless_it_is_given():
    assert parse({}).directory("j7") == Path("ezpz-runs/j7")
    assert parse({"run_dir": "/tmp/x"}).directory("j7") == Path("/tmp/x")


@pytest.mark.parametrize(
    ("run_id", "name"),
    [("a/b", "a%2Fb"), ("../../x", "..%2F..%2Fx"), ("/etc", "%2Fetc"), ("..", "%2E%2E"), ("v1.2 é", "v1.2 é")],
)
def test_a_runs_name_leads_nowhere_but_into_the_directory_of_runs(run_id: str, name: str):
    check_run_id(run_id)
    assert parse({}).directory(run_id) == Path("ezpz-runs") / name


@pytest.mark.parametrize("run_id", ["", "none", "x" * 300, "\udcff\udcfe", "/" * 100])
def test_a_run_that_cannot_be_written_down_is_one_line(run_id: str):
    with pytest.raises(UsageError) as caught:
        check_run_id(run_id)
    assert "--rdzv-id" in caught.value.line()
    assert caught.value.line().encode()


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"lease": "3"}, "unknown --rdzv-conf key 'lease'; expected one of store"),
        ({"settle": "x"}, "settle"),
        ({"settle": "-1"}, "settle=-1.0; expected seconds, zero or more"),
        ({"settle": "nan"}, "settle=nan; expected seconds"),
        ({"grace": "inf"}, "grace=inf; expected seconds"),
        ({"join_timeout": "0"}, "join_timeout=0.0; expected seconds, more than zero"),
        ({"store": "redis"}, "store=redis; expected one of"),
        ({"warm": "maybe"}, "warm=maybe; expected one of on, off"),
        ({"nudge": "maybe"}, "nudge=maybe; expected one of on, off"),
        ({"deadline": "-5"}, "deadline=-5.0; expected seconds, zero or more"),
        ({"lease_ttl": "1e300"}, "lease_ttl=1e+300; expected seconds, 2000000 at most"),
        ({"grace": "1e7"}, "grace=1e+07; expected seconds, 2000000 at most"),
        ({"lease_ttl": "1e-9"}, "lease_ttl=1e-09; expected seconds, 0.5 at least"),
        ({"hang_timeout": "0.01"}, "hang_timeout=0.01; expected seconds, 0.5 at least"),
        ({"probes_dir": "/nonexistent"}, "probes_dir=/nonexistent; expected a directory"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(conf, words):
    with pytest.raises(UsageError) as caught:
        parse(conf)
    assert words in caught.value.line()
    assert "\n" not in caught.value.line()
