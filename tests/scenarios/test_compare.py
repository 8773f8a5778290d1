"""A comparison that cannot be made has failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scenarios import journal
from scenarios.compare import METRICS, alike, identical
from scenarios.dumps import Dump, Key, Unreadable, digest, read, write

STEPS = range(1, 3)
Change = Callable[[Dump], Dump]


def dump(rank: int, world: int, batch: int = 4) -> Dump:
    """A rank's rows of a batch whose numbers do not depend on the number of ranks."""
    chance = torch.Generator().manual_seed(1)
    tensors = {name: torch.rand(3, generator=chance) for name in ("grad.w", "param.w", "optim.w.exp_avg")}
    first, end = batch * rank // world, batch * (rank + 1) // world
    tensors["act.head"] = torch.rand(batch, 2, generator=chance)[first:end].clone()
    metrics = dict.fromkeys(METRICS, 0.5) | {"rng": "ab", "position": 4, "stream": float(rank)}
    return Dump(tensors, {name: digest(tensor) for name, tensor in tensors.items()}, metrics, (first, end, batch))


def run(world: int = 2, round_number: int = 1) -> dict[Key, Dump]:
    """A whole run."""
    return {Key(step, round_number, rank): dump(rank, world) for step in STEPS for rank in range(world)}


def changed(change: Change, world: int = 2) -> dict[Key, Dump]:
    """A run with one dump that is not as it should be."""
    made = run(world)
    key = Key(2, 1, world - 1)
    return {**made, key: change(made[key])}


def with_tensor(name: str, tensor: torch.Tensor) -> Change:
    """A tensor replaced or added, with a sum that is right."""

    def change(dump: Dump) -> Dump:
        return dump._replace(tensors={**dump.tensors, name: tensor}, sums={**dump.sums, name: digest(tensor)})

    return change


def without_tensor(name: str) -> Change:
    """A tensor left out, with its sum."""
    return lambda dump: dump._replace(
        tensors={n: t for n, t in dump.tensors.items() if n != name},
        sums={n: s for n, s in dump.sums.items() if n != name},
    )


def with_metric(name: str, value: float) -> Change:
    """A metric replaced."""
    return lambda dump: dump._replace(metrics={**dump.metrics, name: value})


def without_metric(name: str) -> Change:
    """A metric left out."""
    return lambda dump: dump._replace(metrics={n: v for n, v in dump.metrics.items() if n != name})


def near(dump: Dump) -> Dump:
    """One bit of one number is another."""
    tensor = dump.tensors["grad.w"].clone()
    tensor.view(torch.int32)[1] ^= 1
    return with_tensor("grad.w", tensor)(dump)


def test_equal_runs_are_identical_and_alike():
    assert identical(run(), run(), STEPS) == []
    assert alike(run(), run(), STEPS) == []


def test_runs_of_different_numbers_of_ranks_are_alike_and_not_identical():
    assert alike(run(4), run(3), STEPS) == []
    assert identical(run(4), run(3), STEPS) != []


CHANGES: dict[str, Change] = {
    "a gradient differs in its last bit": near,
    "a tensor is missing": without_tensor("param.w"),
    "a tensor is there that nobody compares with": with_tensor("grad.extra", torch.ones(1)),
    "a tensor of an unknown kind is there": with_tensor("buffer", torch.ones(1)),
    "a tensor is empty": with_tensor("grad.w", torch.empty(0)),
    "all activations are missing": without_tensor("act.head"),
    "a tensor has another shape": with_tensor("grad.w", torch.ones(3, 1)),
    "a tensor has another type": with_tensor("grad.w", torch.ones(3, dtype=torch.float64)),
    "a number is not one": with_tensor("grad.w", torch.tensor([1.0, float("nan"), 1.0])),
    "a number is infinite": with_tensor("grad.w", torch.tensor([1.0, float("inf"), 1.0])),
    "a tensor has no sum": lambda dump: dump._replace(sums={}),
    "a sum is of something else": lambda dump: dump._replace(sums={**dump.sums, "grad.w": "00"}),
    "a metric is missing": without_metric("grad_norm"),
    "all metrics are missing": lambda dump: dump._replace(metrics={}),
    "a metric is there that nobody knows": with_metric("speed", 1.0),
    "a metric is not a number": with_metric("loss", float("nan")),
    "a metric differs in its last bit": with_metric("loss", 0.5 + 2**-53),
    "the rows are others": lambda dump: dump._replace(rows=(1, 3, 4)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_identical_complains_whichever_side_is_changed(change: Change):
    assert identical(changed(change), run(), STEPS)
    assert identical(run(), changed(change), STEPS)


@pytest.mark.parametrize(
    "change",
    [c for name, c in CHANGES.items() if "last bit" not in name],
    ids=[n for n in CHANGES if "last bit" not in n],
)
def test_alike_complains_of_all_but_a_rounding(change: Change):
    assert alike(changed(change), run(), STEPS)
    assert alike(run(), changed(change), STEPS)


def test_a_zero_of_another_sign_is_not_identical():
    plus, minus = (changed(with_tensor("grad.w", torch.tensor([1.0, zero, 1.0]))) for zero in (0.0, -0.0))
    assert identical(plus, plus, STEPS) == []
    assert identical(plus, minus, STEPS)


def test_a_nan_on_both_sides_is_not_equal():
    broken = changed(with_tensor("grad.w", torch.full((3,), float("nan"))))
    assert identical(broken, broken, STEPS)
    assert alike(broken, broken, STEPS)


def test_alike_allows_a_rounding_and_no_more():
    def off(by: float) -> dict[Key, Dump]:
        made = run(1)
        return {key: with_tensor("param.w", value.tensors["param.w"] * (1 + by))(value) for key, value in made.items()}

    assert alike(run(1), off(1e-6), STEPS) == []
    assert alike(run(1), off(1e-4), STEPS)
    assert alike(run(1), {k: with_metric("loss", 0.5001)(v) for k, v in run(1).items()}, STEPS)
    assert alike(run(1), {k: with_metric("lr", 0.5 + 2**-53)(v) for k, v in run(1).items()}, STEPS)


def test_alike_complains_of_replicas_that_differ_among_themselves():
    one_replica = changed(with_tensor("param.w", dump(0, 2).tensors["param.w"] + 1e-9), world=2)
    assert alike(run(), one_replica, STEPS)


@pytest.mark.parametrize("compared", [identical, alike])
def test_missing_steps_ranks_and_rows_are_complaints(compared):
    everything = run()
    assert compared({}, {}, STEPS)
    assert compared(everything, {}, STEPS)
    assert compared({}, everything, STEPS)
    assert compared(everything, everything, range(0))
    first_step = {key: value for key, value in everything.items() if key.step == 1}
    assert compared(everything, first_step, STEPS)
    assert compared(first_step, everything, STEPS)
    assert compared(everything, {**everything, Key(3, 1, 0): dump(0, 2)}, STEPS), "a step nobody expected"
    for lost in (0, 1):
        fewer = {key: value for key, value in everything.items() if key != Key(2, 1, lost)}
        assert compared(everything, fewer, STEPS)
        assert compared(fewer, everything, STEPS)


def test_the_last_round_that_made_a_step_counts_and_half_of_it_is_not_enough():
    redone = {**run(), Key(2, 2, 0): dump(0, 2), Key(2, 2, 1): dump(1, 2)}
    assert identical(run(), redone, STEPS) == []
    assert identical(run(), {**redone, Key(2, 2, 1): near(dump(1, 2))}, STEPS)
    half = {key: value for key, value in redone.items() if key != Key(2, 2, 1)}
    assert identical(run(), half, STEPS)


def test_what_is_written_is_read_and_what_is_damaged_is_not(tmp_path: Path):
    whole = dump(0, 1)
    write(tmp_path, Key(1, 1, 0), whole.tensors, whole.metrics, whole.rows)
    assert identical({Key(1, 1, 0): whole}, read(tmp_path), range(1, 2)) == []
    path = next(tmp_path.iterdir())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(Unreadable):
        read(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(Unreadable):
        read(tmp_path)
    path.rename(tmp_path / "step-1.round-1.rank-0.partial")
    with pytest.raises(Unreadable):
        read(tmp_path)


def line(event: str, round_number: int, **fields: object) -> str:
    common = {"ts": float(round_number), "host": "127.0.0.2", "run_id": "job", "round": round_number, "event": event}
    return json.dumps({**common, **fields}) + "\n"


STORY = [
    line("round_committed", 1, roster=["127.0.0.2"]),
    line("decision", 1, action="finish", kind="success", cause="unknown", lost=[]),
    line("finished", 1, kind="success", rounds=1, exit_code=0),
]
EXPECTED = [journal.opened(1, [0]), journal.finished(1)]


def told(directory: Path, lines: list[str]) -> Path:
    (directory / "journal").mkdir()
    (directory / "journal" / "127.0.0.2.jsonl").write_text("".join(lines))
    return directory


def test_a_journal_must_tell_exactly_the_expected_story(tmp_path: Path):
    assert journal.differences(told(tmp_path, STORY), EXPECTED) == []


STORIES = {
    "nothing": [],
    "an event is missing": STORY[:2],
    "an event is there twice": [*STORY, STORY[2]],
    "the order is another": [STORY[0].replace("1.0", "9.0"), *STORY[1:]],
    "the roster is another": [STORY[0].replace('127.0.0.2"]', '127.0.0.9"]'), *STORY[1:]],
    "a line is cut off": [*STORY[:2], STORY[2][:40]],
    "a line is no JSON": [*STORY, "}{\n"],
    "a line is no event": [*STORY, '{"ts": 1.0}\n'],
    "a line is a number": [*STORY, "1\n"],
    "a line is empty": [*STORY, "\n"],
    "a line is no text": [*STORY, '{"event": "\udcff"}\n'],
}


@pytest.mark.parametrize("lines", STORIES.values(), ids=STORIES)
def test_another_story_or_a_malformed_line_is_a_complaint(tmp_path: Path, lines: list[str]):
    directory = tmp_path
    (directory / "journal").mkdir()
    (directory / "journal" / "127.0.0.2.jsonl").write_bytes("".join(lines).encode(errors="surrogateescape"))
    assert journal.differences(directory, EXPECTED)


def test_a_run_without_a_journal_is_a_complaint(tmp_path: Path):
    assert journal.differences(tmp_path, EXPECTED)


def test_a_baseline_with_a_journal_is_a_complaint(tmp_path: Path):
    assert journal.silent(tmp_path) == []
    told(tmp_path, STORY)
    assert journal.silent(tmp_path)
