"""``--rdzv-conf``: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ezpz_elastic.errors import UsageError
from ezpz_elastic.settings import Settings, parse


def test_numbers_come_as_text_and_everything_has_a_default():
    assert parse({}) == Settings()
    assert parse({"settle": "0.5", "grace": "3", "on_blind": "never"}) == Settings(
        settle=0.5, grace=3.0, on_blind="never"
    )


def test_the_run_directory_is_named_after_the_run_unless_it_is_given():
    assert parse({}).directory("j7") == Path("ezpz-runs/j7")
    assert parse({"run_dir": "/tmp/x"}).directory("j7") == Path("/tmp/x")


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
    ],
)
def test_a_value_that_cannot_be_is_one_line(conf, words):
    with pytest.raises(UsageError) as caught:
        parse(conf)
    assert words in caught.value.line()
    assert "\n" not in caught.value.line()
