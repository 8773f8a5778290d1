"""Asks other people's programs, with a limit that holds even for one that no signal ends.

A vendor's tool that touches a broken device goes to uninterruptible sleep, and so does whatever looks at a file system
that is away: SIGKILL ends neither, and who waits for them waits for ever.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Answer", "NoAnswer", "ask"]

REAP = 0.1
"""Seconds in which a program that was killed has ended; one that has not is left alone."""


class NoAnswer(Exception):
    """A program has not come to a word of its own: it did not start, did not end in time, or a signal ended it."""


class Answer(NamedTuple):
    """What a program came to.

    Args:
        code: its exit code.
        said: its output.
        complained: its errors, if they were asked for apart.
    """

    code: int
    said: str
    complained: str


def ask(
    command: Sequence[str], seconds: float, stderr: int = subprocess.STDOUT, env: Mapping[str, str] | None = None
) -> Answer:
    """Run a program to its end.

    Args:
        command: program and arguments; it reads nothing.
        seconds: how long it may take.
        stderr: where its errors go, as ``subprocess`` names it; otherwise among the output.
        env: its environment, if it is not ours.

    Raises:
        NoAnswer: there is none; the message says why, and an ``OSError`` is the cause if it did not start.
    """
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=env)
    except OSError as error:
        raise NoAnswer(f"it does not start: {error}") from error
    assert program.stdout is not None
    with program.stdout, program.stderr or contextlib.nullcontext():
        try:
            said, complained = program.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(REAP)
            raise NoAnswer(f"not within {seconds:g} s") from None
    if program.returncode < 0:
        raise NoAnswer(f"signal {-program.returncode} has ended it")
    return Answer(program.returncode, said.decode(errors="replace"), (complained or b"").decode(errors="replace"))
