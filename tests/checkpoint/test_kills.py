"""kill -9 at every point where the disk changes, and at random moments: 300 times, in one directory."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint import lives
from checkpoint.ranks import context

from ezpz_elastic.checkpoint import care

KILLS = 300
# step-*, .lock, .writer, and what one interrupted save and one interrupted removal can leave.
MOST_ENTRIES = lives.KEEP + 1 + 2 + 4


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is a file system for that: a kill is a kill, and a disk's syncs would only take time."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


class Lives:
    """One life after the other in one directory, each checked against what the one before had finished."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "ckpts"
        self._diary = directory / "diary"
        self.kills = 0
        self.durable = 0
        self.begun = 0

    def start(self, saves: int = 1_000_000, die_at: int = 0, beside: bool = False) -> Any:
        """Start a life; returns its process."""
        self._diary.write_text("")
        self._ready = context.Event()
        process = context.Process(
            target=lives.live, args=(str(self.directory), str(self._diary), self._ready, saves, die_at, beside)
        )
        process.start()
        return process

    def notes(self) -> list[list[str]]:
        """What the life has written so far."""
        return [line.split() for line in self._diary.read_text().splitlines()]

    def check(self, exitcode: int | None) -> None:
        """After a death: what the life was given was right, and what it left is."""
        if exitcode == -signal.SIGKILL:
            self.kills += 1
        else:
            assert exitcode == 0
        for word, number, *rest in self.notes():
            if word == "restored":
                assert rest == ["right"]
                step = int(number) if number != "None" else 0
                assert self.durable <= step <= self.begun, f"restored {step}, of {self.durable}…{self.begun}"
                self.durable = self.begun = step
            elif word == "begin":
                self.begun = int(number)
            elif word == "done":
                self.durable = int(number)
        if not self.directory.exists():
            assert self.durable == 0
            return
        assert len(list(self.directory.iterdir())) <= MOST_ENTRIES
        for row in care.survey(self.directory, sums=True):
            assert row.state in {"verified", "leftover"}, row

    def run_until(self, moment: float, beside: bool) -> bool:
        """A life that is killed ``moment`` seconds after its first save began; returns whether that was in a save."""
        process = self.start(beside=beside)
        assert self._ready.wait(60)
        process.join(moment)  # the moment of a fault, not a wait for anything
        process.kill()
        process.join()
        saving = self.notes()[-1][0] == "begin"
        self.check(process.exitcode)
        return saving

    def run(self, saves: int, die_at: int, beside: bool) -> bool:
        """A whole life; returns whether it was killed."""
        process = self.start(saves, die_at, beside)
        process.join()
        self.check(process.exitcode)
        return process.exitcode != 0


def test_300_kills_lose_nothing_that_was_durable_and_offer_nothing_that_was_not(directory: Path) -> None:
    chronicle = Lives(directory)
    for beside in (False, True):
        assert not chronicle.run(saves=5, die_at=0, beside=beside)
        calls = int(next(number for word, number, *_ in chronicle.notes() if word == "calls"))
        assert calls > 60
        for point in range(1, calls + 1, 1 if not beside else 3):
            chronicle.run(saves=5, die_at=point, beside=beside)
    enumerated = chronicle.kills
    assert enumerated > 80
    choice = random.Random(20)
    amid = 0
    while chronicle.kills < KILLS:
        amid += chronicle.run_until(choice.random() * 0.06, beside=chronicle.kills % 2 == 0)
    assert chronicle.kills == KILLS
    assert amid > (KILLS - enumerated) / 2
    assert not chronicle.run(saves=3, die_at=0, beside=False)
    assert chronicle.durable > 20
    names = {path.name for path in chronicle.directory.iterdir()}
    last = chronicle.durable
    assert names == {".lock", ".writer", *(f"step-{last - back}" for back in range(lives.KEEP))}
