"""Attempt, verdict, decision, next attempt: until the job is done or a decision ends it."""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from functools import partial
from pathlib import Path

import msgspec

from ezpz_elastic.decide.policy import chores, stop_line
from ezpz_elastic.decide.situation import Limits
from ezpz_elastic.errors import UsageError
from ezpz_elastic.journal import Journal
from ezpz_elastic.ledger import RunLedger, say
from ezpz_elastic.observe.scanner import warm_up
from ezpz_elastic.observe.text import readable
from ezpz_elastic.observe.writable import await_writable, place_of
from ezpz_elastic.process_tree import Guard
from ezpz_elastic.retry.judge import Facts, Judge
from ezpz_elastic.retry.pool import Pool
from ezpz_elastic.retry.steps import StepEye, newest_checkpoint
from ezpz_elastic.retry.stops import Stops
from ezpz_elastic.retry.stream import AttemptLog, ConsoleSink
from ezpz_elastic.retry.supervise import Attempt, Ended
from ezpz_elastic.signatures import load_library
from rendezvous.records import Action, Case, Decision, Retirement

__all__ = ["Options", "RetryLoop"]

logger = logging.getLogger(__name__)

HOSTFILE = "active.hostfile"

LOOK = 0.1
"""Seconds between two looks at whether storage has taken a write."""


class Options(msgspec.Struct, frozen=True):
    """What is to be run, and how.

    Args:
        command: program and arguments; ``{hostfile}`` and ``{nhosts}`` are put in.
        pool: the hosts to begin with.
        run_dir: where logs, journal and lists go; made if missing.
        machine: whose log lines and host names to expect.
        limits: how far the policy may go.
        idle_timeout: seconds of silence after which an attempt is stopped; 0: never.
        grace: seconds that processes get between SIGTERM and SIGKILL.
        deadline: when the allocation ends, seconds since the epoch; ``None`` if nobody tells.
        ranks_per_host: ranks on each host, block by block; ``None`` if nobody told.
        checkpoints: the job's checkpoint directory, if it is one of ours.
        tells_steps: the program prints its steps.
    """

    command: tuple[str, ...]
    pool: Pool
    run_dir: Path
    machine: str
    limits: Limits
    idle_timeout: float
    grace: float = 10.0
    deadline: float | None = None
    ranks_per_host: int | None = None
    checkpoints: Path | None = None
    tells_steps: bool = True


class RetryLoop:
    """One job.

    Args:
        options: what is to be run.
        console: the descriptor that the job's output is copied to; ``None`` if there is no console.

    Raises:
        UsageError: the run directory cannot be made, or a signature file of the user's cannot be read.
    """

    def __init__(self, options: Options, console: int | None = 1) -> None:
        self._options = options
        self._host = socket.gethostname()
        self._run_id = readable(options.run_dir.name)
        try:
            options.run_dir.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(options.run_dir, self._host, self._run_id)
            self._last = _last_attempt(options.run_dir)
        except OSError as error:
            raise UsageError(f"cannot use {options.run_dir}: {error.strerror}", expected="a directory") from error
        self._ledger = RunLedger(self._journal, unit="attempt")
        self._judge = Judge(options.limits, options.machine, options.ranks_per_host, options.tells_steps, self._host)
        self._pool = options.pool
        self._retired: list[Retirement] = []
        self._tag = uuid.uuid4().hex
        self._first: int | None = None  # the step that the first attempt which shows one begins with
        self._durable: int | None = None
        self._hostfile = options.run_dir / HOSTFILE
        self._before: tuple[str, ...] = ()
        self._chores: tuple[str, ...] = ()
        self._console = ConsoleSink(console)
        # Compiling the signatures takes half a second, which no failure should wait for.
        self._scanner = threading.Thread(target=partial(warm_up, load_library()), name="ezpz-scanner")

    def run(self) -> int:
        """Run to the end.

        Returns:
            the job's exit code: 0 if it is done, else as the decision says.
        """
        self._scanner.start()
        process_guard = Guard(self._tag, [])
        try:
            code = self._attempts()
            process_guard.dismiss()  # after an exception it stays, and sees to what may be left when we are gone
            return code
        finally:
            self._journal.close()

    def _attempts(self) -> int:
        """One attempt after the other, to the decision that ends the job; its exit code."""
        began = time.monotonic()
        with Stops() as stops:
            for number in itertools.count(self._last + 1):
                decision = self._attempt(number, began, stops)
                self._record(decision)
                if decision.action is not Action.RESTART:
                    say(stop_line(decision))
                    return decision.exit_code
                self._pool = self._pool.after(decision)
                self._chores = chores(decision)
                stops.wait(decision.delay)
                self._await_storage(decision, stops)
        raise AssertionError("there is always another attempt")

    def _await_storage(self, decision: Decision, stops: Stops) -> None:
        """Where storage has failed the next attempt waits until it can be written to from here."""
        if decision.hold is None:
            return
        directory, over = place_of(decision.hold.path, self._options.run_dir), threading.Event()
        number, until = decision.round, time.monotonic() + decision.hold.seconds

        def refused(why: str) -> None:
            self._journal.write("host_probed", number, probes={"storage": why}, unhealthy=["storage"])
            say(f"attempt {number}: storage at {directory} takes no writes: {why}")

        asking = threading.Thread(target=await_writable, args=(directory, over, refused), daemon=True)
        asking.start()
        while asking.is_alive() and (left := until - time.monotonic()) > 0 and not stops.wait(min(LOOK, left)):
            continue
        over.set()

    def _attempt(self, number: int, began: float, stops: Stops) -> Decision:
        """One attempt, to the decision on it."""
        options, eye = self._options, StepEye()
        log = AttemptLog(options.run_dir / f"attempt-{number}.log")
        try:
            if stops.received is None:
                self._open_round(number)
                attempt = Attempt(self._tag, log, self._console, eye.see, options.idle_timeout, options.grace, stops)
                ended = attempt.run(self._command(), self._environment(number), partial(self._started, number))
                self._console.flush()
                eye.finish()
                self._tell(number, eye, ended)
            else:  # told to stop while no attempt was running: this one does not begin
                ended = Ended(0, False, stops.received, 0.0, 0.0)
        finally:
            log.close()
        deciding = time.monotonic()
        self._scanner.join()
        remaining = None if options.deadline is None else options.deadline - time.time()
        facts = Facts(number, ended, self._pool, time.monotonic() - began, remaining, self._durable)
        decision = self._judge.decide(facts, log)
        self._journal.span(number, "decide", time.monotonic() - deciding)
        return decision

    def _open_round(self, number: int) -> None:
        hosts, spares = self._pool.active, self._pool.spares
        text = "".join(f"{host}\n" for host in hosts)
        self._hostfile = _write_hostfile(self._options.run_dir.absolute() / HOSTFILE, text)
        self._journal.write("round_committed", number, roster=list(hosts), spares=list(spares))
        for slot, host in enumerate(hosts):
            if self._before and host not in self._before:
                self._journal.write("spare_admitted", number, admitted=host, slot=slot)
                say(f"attempt {number}: {host} takes slot {slot}")
        self._before = hosts
        say(f"attempt {number}: {len(hosts)} active, {len(spares)} spare, hostfile {self._hostfile}")

    def _command(self) -> list[str]:
        values = {"{hostfile}": str(self._hostfile), "{nhosts}": str(len(self._pool.active))}
        pattern = re.compile("|".join(map(re.escape, values)))
        return [pattern.sub(lambda found: values[found[0]], word) for word in self._options.command]

    def _environment(self, number: int) -> dict[str, str]:
        """The child's. Python children flush every line: a watchdog that listens must not wait for a full buffer."""
        ours = {
            "EZPZ_RUN_DIR": str(self._options.run_dir.absolute()),
            "EZPZ_ATTEMPT": str(number),
            "EZPZ_CHORES": ",".join(self._chores),
            "EZPZ_HOSTFILE": str(self._hostfile),
        }
        return {"PYTHONUNBUFFERED": "1", **os.environ, **ours}

    def _started(self, number: int, pid: int) -> None:
        self._journal.write("launcher_started", number, pid=pid, command=[readable(word) for word in self._command()])

    def _tell(self, number: int, eye: StepEye, ended: Ended) -> None:
        """Write down how an attempt ended and how far it came."""
        code = ended.exit_code
        self._journal.write(
            "launcher_exited",
            number,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            idle=ended.idle,
            told=ended.signalled,
            left=list(ended.left),
        )
        self._journal.span(number, "attempt", ended.seconds)
        self._journal.span(number, "stop", ended.stopping)
        saved = [eye.saved, newest_checkpoint(self._options.checkpoints), self._durable]
        if eye.first is not None:
            self._first = eye.first if self._first is None else self._first
            saved.append(eye.first - 1 if eye.first > self._first else None)
        self._durable = max((step for step in saved if step is not None), default=None)
        self._journal.write("progress", number, first_step=eye.first, durable_step=self._durable)

    def _record(self, decision: Decision) -> None:
        hosts = len(self._pool.active)
        case = Case(decision.round, None, (), (), (), hosts, hosts, decision.elapsed)
        self._ledger.decided(case, decision, self._retired)
        self._retired += decision.retired


def _last_attempt(run_dir: Path) -> int:
    """The number of the last attempt of an earlier run in this directory; nobody's log is written over."""
    numbers = (re.fullmatch(r"attempt-(\d{1,9})\.log", path.name) for path in run_dir.iterdir())
    return max((int(found[1]) for found in numbers if found), default=0)


def _write_hostfile(path: Path, text: str) -> Path:
    """Replace the hostfile; where that cannot be done, write one that can.

    A launcher that reads an old list starts on a host that was taken out, so a full disk may not keep it as it is.

    Raises:
        UsageError: no place takes it.
    """
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)
        return path
    except OSError as error:
        logger.warning("cannot write %s: %s; the hostfile of this attempt is a temporary one", path, error)
    try:
        descriptor, other = tempfile.mkstemp(prefix="ezpz-hostfile-")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"no place takes a hostfile: {error.strerror}", hint="make room on the disk") from error
    return Path(other)
