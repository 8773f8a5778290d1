"""The story, told with the commands a user would type; ends with the self-check."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from ezpz_elastic.demo.checks import Ending, complaints, witnessed
from ezpz_elastic.demo.disk import SmallDisk
from ezpz_elastic.demo.faults import kill
from ezpz_elastic.demo.job import Job
from ezpz_elastic.demo.narrator import Narrator
from ezpz_elastic.demo.plot import ACTIVE, PLOT, SPARE, Chapter
from ezpz_elastic.demo.receipts import Fault, read_receipts
from ezpz_elastic.demo.story import Journals, Round, rounds
from ezpz_elastic.demo.table import rounds_table, spans_table

__all__ = ["DemoFailed", "Scenario"]

LOOK = 0.02
"""Seconds between two looks at the job's files; a training step takes about as long."""

FORMING, TRAINING, LEAVING = 60.0, 90.0, 20.0
"""Seconds that a round may take to open, that training may take to the next chapter, and that agents take to leave."""

_STEP = re.compile(rb"^step (\d+) loss", re.M)


class DemoFailed(Exception):
    """The demo did not hold; the message is one line."""


class Scenario:
    """One performance.

    Args:
        run_dir: the run directory; exists and is empty.
        console: where the story is told.
        mount: whether the disk may be a file system of the demo's own.
    """

    def __init__(self, run_dir: Path, console: Console, mount: bool = True) -> None:
        self._run_dir, self._console = run_dir, console
        self._receipts = run_dir / "receipts"
        self._disk = SmallDisk(run_dir / "disk", mount)
        self._checkpoints = self._disk.path / "checkpoints"
        self._job = Job(run_dir, self._checkpoints, self._receipts)
        self._journals = Journals(run_dir)
        self._narrator = Narrator(console)

    def perform(self) -> None:
        """Play every chapter, then check.

        Raises:
            DemoFailed: something did not come to pass, or the self-check complains.
        """
        try:
            self._begin()
            for chapter in PLOT:
                self._play(chapter)
            self._wait(self._job.ended, "the agents to leave", TRAINING)
            self._wait(lambda: not self._job.left(), "the job's last process to end", LEAVING)
            ending = self._ending()
        finally:
            self._job.close()
        self._conclude(ending)

    def keep(self, target: Path) -> None:
        """Copy the checkpoints to where they stay."""
        shutil.copytree(self._checkpoints, target)

    def close(self) -> None:
        """Remove what the small disk holds where it is an ordinary directory."""
        if not self._disk.real:
            shutil.rmtree(self._disk.path)

    # -- the chapters --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._disk.real:
            self._narrator.say(
                f"no disk of our own ({self._disk.why_not}): a limit on file sizes plays it, with EFBIG for ENOSPC"
            )
        self._narrator.say("$ " + " ".join(self._job.command(ACTIVE[0])))
        for host in ACTIVE:
            self._job.start(host)
        self._narrator.say(f"the same on {ACTIVE[1]} and, once both hold a slot, on {SPARE}")
        self._wait(lambda: self._life(1) is not None, "round 1 to open", FORMING)
        self._job.start(SPARE)
        self._wait(lambda: self._joined(SPARE), f"{SPARE} to stand by", FORMING)

    def _play(self, chapter: Chapter) -> None:
        number = chapter.round
        self._wait(lambda: self._life(number) is not None, f"round {number} to open", FORMING)
        if chapter.fault is Fault.DISK_FULL:
            self._fill(chapter)
        else:
            self._wait(lambda: (self._step(number) or 0) >= chapter.at, f"step {chapter.at}", TRAINING)
            self._kill(chapter)
        self._wait(lambda: self._decided(number), f"the decision on round {number}", FORMING)

    def _kill(self, chapter: Chapter) -> None:
        life = self._life(chapter.round)
        workers = life.workers.get(chapter.victim, ()) if life is not None else ()
        victims = dict.fromkeys(workers, f"the worker of {chapter.victim}")
        if chapter.fault is Fault.HOST_LOST:
            victims = {self._job.agents[chapter.victim].pid: f"the agent of {chapter.victim}", **victims}
        self._narrator.say(f"FAULT: {chapter.intent}", "bold red")
        receipt = kill(chapter, victims, self._receipts, self._step(chapter.round), self._complete)
        seen = f"{receipt.text}; seen dead after {receipt.seconds * 1000:.1f} ms, at step {receipt.step}"
        self._narrator.say(f"receipt: {seen if receipt.landed else 'it did NOT land'}", "red")

    def _fill(self, chapter: Chapter) -> None:
        """Fill the disk behind a complete checkpoint, see the next save fail on it, and give the room back."""
        complete = self._checkpoints / f"step-{chapter.at}" / ".complete"
        self._wait(complete.exists, f"the checkpoint of step {chapter.at}", TRAINING)
        self._narrator.say(f"FAULT: {chapter.intent}", "bold red")
        self._wait(self._refused, "a save to meet the full disk", TRAINING)
        for receipt in read_receipts(self._receipts):
            if receipt.fault is Fault.DISK_FULL:
                self._narrator.say(f"receipt: {receipt.witness}, saving step {receipt.step}: {receipt.text}", "red")
        self._disk.heal()
        self._narrator.say("the disk has room again")

    def _refused(self) -> bool:
        if any(receipt.fault is Fault.DISK_FULL for receipt in read_receipts(self._receipts)):
            return True
        self._disk.fill()  # again, since old checkpoints are removed meanwhile
        return False

    # -- looking -------------------------------------------------------------------------------------------------------

    def _wait(self, happened: Callable[[], bool], what: str, seconds: float) -> None:
        """Look until it has happened, and tell the story meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            self._narrator.tell(self._journals.poll())
            if happened():
                return
            self._check_agents(what)
            if time.monotonic() >= deadline:
                raise DemoFailed(f"waited {seconds:.0f} s for {what}; the consoles are in {self._run_dir / 'agents'}")
            time.sleep(LOOK)

    def _check_agents(self, what: str) -> None:
        """An agent that ends badly, other than by our own hand, ends the demo: what is waited for will not come."""
        for host, code in self._job.exit_codes().items():
            if code not in {0, -9}:
                log = self._job.log(host)
                raise DemoFailed(f"the agent of {host} ended with {code} while waiting for {what}; see {log}")

    def _life(self, number: int) -> Round | None:
        return next((life for life in rounds(self._journals.events) if life.number == number), None)

    def _joined(self, host: str) -> bool:
        return any(event.name == "member_joined" and event.host == host for event in self._journals.events)

    def _decided(self, number: int) -> bool:
        life = self._life(number)
        return life is not None and life.action != ""

    def _step(self, number: int) -> int | None:
        """The last step that rank 0 has printed in a round."""
        try:
            steps = _STEP.findall((self._run_dir / "rounds" / str(number) / "0" / "stdout.log").read_bytes())
        except FileNotFoundError:
            return None
        return int(steps[-1]) if steps else None

    def _complete(self) -> int | None:
        """The newest complete checkpoint, by the mark that is written last."""
        return max(
            (
                int(mark.parent.name[5:])
                for mark in self._checkpoints.glob("step-*/.complete")
                if mark.parent.name[5:].isdigit()
            ),
            default=None,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        outcome, bad_nodes = self._run_dir / "outcome.json", self._run_dir / "bad_nodes.txt"
        return Ending(
            outcome=msgspec.json.decode(outcome.read_bytes(), type=dict[str, object]) if outcome.exists() else None,
            bad_nodes=tuple(bad_nodes.read_text().splitlines()) if bad_nodes.exists() else (),
            exit_codes=self._job.exit_codes(),
            left=self._job.left(),
        )

    def _conclude(self, ending: Ending) -> None:
        self._narrator.tell(self._journals.poll())
        receipts = read_receipts(self._receipts)
        lives = witnessed(rounds(self._journals.events), receipts)
        self._console.print(rounds_table(lives), spans_table(lives))
        wrong = complaints(lives, receipts, ending, self._disk.errno)
        if wrong:
            raise DemoFailed("; ".join(wrong))
        losses = [loss for life in lives for loss in life.losses]
        self._narrator.say(
            f"every fault landed and was answered as it had to be; validation loss {losses[0]:.3f} -> {losses[-1]:.3f}",
            "bold green",
        )
