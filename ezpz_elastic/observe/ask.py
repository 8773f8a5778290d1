"""Asks other people's programs, with a limit that holds even for one that no signal ends.

A vendor's tool that touches a broken device goes to uninterruptible sleep, and so does whatever looks at a file system
that is away: SIGKILL ends neither, and who waits for them waits for ever.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence

__all__ = ["NoAnswer", "ask"]

REAP = 0.1
"""Seconds in which a program that was killed has ended; one that has not is left alone."""


class NoAnswer(Exception):
    """A program has not come to a word of its own: it did not start, did not end in time, or a signal ended it."""


def ask(command: Sequence[str], seconds: float, stderr: int = subprocess.STDOUT) -> tuple[int, str]:
    """Run a program to its end.

    Args:
        command: program and arguments; it reads nothing.
        seconds: how long it may take.
        stderr: where its errors go, as ``subprocess`` names it; otherwise among the output.

    Returns:
        its exit code and what it has printed.

    Raises:
        NoAnswer: there is none; the message says why.
    """
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
    except OSError as error:
        raise NoAnswer(f"it does not start: {error}") from error
    assert program.stdout is not None
    with program.stdout:
        try:
            said, _ = program.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(REAP)
            raise NoAnswer(f"not within {seconds:g} s") from None
    if program.returncode < 0:
        raise NoAnswer(f"signal {-program.returncode} has ended it")
    return program.returncode, said.decode(errors="replace")
