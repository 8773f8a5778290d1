"""Young's and Daly's interval against numbers and a simulation."""

from __future__ import annotations

import random

import pytest

from ezpz_elastic.checkpoint.interval import advise, daly, parse_duration, young
from ezpz_elastic.errors import UsageError


def test_the_contracts_example() -> None:
    # sqrt(2 * 24 * 3600) = 415.7; Daly: 415.7 * (1 + sqrt(24/7200)/3 + 24/7200/9) - 24
    assert young(3600, 24) == pytest.approx(415.69, abs=0.01)
    assert daly(3600, 24) == pytest.approx(399.84, abs=0.01)


def test_a_save_that_takes_longer_than_the_time_between_failures() -> None:
    assert daly(60, 120) == 60


def _wall(mtbf: float, save: float, restart: float, interval: float, work: float) -> float:
    """Wall time of ``work`` seconds with failures at random; the same seed for every interval."""
    source = random.Random(7)
    wall, done = 0.0, 0.0
    left = source.expovariate(1 / mtbf)
    while done < work:
        need = interval + save
        if left >= need:
            left -= need
            wall += need
            done += interval
            continue
        wall += left
        left = source.expovariate(1 / mtbf)
        while left < restart:  # a failure may hit the restart
            wall += left
            left = source.expovariate(1 / mtbf)
        wall += restart
        left -= restart
    return wall


def test_no_interval_far_from_it_is_better_and_the_overhead_is_what_it_says() -> None:
    mtbf, save, restart, work = 3600.0, 24.0, 90.0, 2e7
    advice = advise(mtbf, save, restart)
    best = _wall(mtbf, save, restart, advice.daly, work)
    assert all(_wall(mtbf, save, restart, advice.daly * factor, work) > best for factor in (0.4, 2.5))
    assert 1 - work / best == pytest.approx(advice.overhead, abs=0.01)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24", 24), ("24s", 24), ("1h", 3600), ("1h30m", 5400), ("1.5 h", 5400), ("2d", 172800), ("5min", 300)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-5s", "1h foo"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration(text)


def test_numbers_that_make_no_sense_are_told() -> None:
    with pytest.raises(UsageError, match="mtbf 0 s"):
        advise(0, 24)
