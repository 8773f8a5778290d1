"""Proof that a fault was done, written by the victim in its last act or by an injector that saw it land.

A receipt is also what makes a fault one-shot: its name in the directory can be taken once only, by whichever process
comes first, and everybody who comes later finds it taken. A harness that cannot tell a fault that was survived from one
that never landed reports the second as the first, so whoever checks a run checks its receipts.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec

__all__ = ["Receipt", "Receipts"]


class Receipt(msgspec.Struct, frozen=True):
    """One fault as its witness saw it.

    Args:
        mode: which, a name of ``faults.modes.MODES``.
        number: how many times this fault has been done, this one included.
        landed: ``True`` if the harm was seen to be done (a process seen dead, an error seen raised), ``False`` if it
            was seen not to be, ``None`` if the victim announced it with its last act: then the exit that follows, told
            by its parent, has to agree.
        witness: ``victim`` or ``injector``.
        attempt: the attempt or round it fell into, from 1; 0 if the witness cannot tell.
        step: the training step, as far as the witness knows it.
        rank: the victim's global rank, if it is one process of several.
        host: the host it was done to; empty if it is everybody's.
        named: the host that the victim printed as the culprit; empty if it printed none.
        pids: the processes it was done to; those seen dead where ``landed`` is true.
        errno: of the ``OSError`` that was seen raised.
        text: what was done, or the error.
        seconds: from the deed to its being seen.
    """

    mode: str
    number: int
    landed: bool | None
    witness: str
    attempt: int = 0
    step: int | None = None
    rank: int | None = None
    host: str = ""
    named: str = ""
    pids: tuple[int, ...] = ()
    errno: int | None = None
    text: str = ""
    seconds: float = 0.0


class Receipts:
    """A directory of receipts, shared by all processes of a run.

    Args:
        directory: made when the first receipt is left.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def leave(self, receipt: Receipt, name: str = "") -> bool:
        """Leave a receipt; a reader sees all of it or nothing, and it is on the disk before this returns.

        Args:
            receipt: its ``number`` is part of the file's name.
            name: the fault's name in this run, if one mode is done under several; the mode by default.

        Returns:
            Whether it was left: ``False`` if this fault already has a receipt of that number.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        final = self._directory / f"{name or receipt.mode}-{receipt.number}.json"
        partial = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(receipt) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, final)
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        return True

    def claim(self, receipt: Receipt, times: int = 1, name: str = "") -> Receipt | None:
        """Leave a receipt under the first number from 1 to ``times`` that is free.

        Returns:
            the receipt with its number, or ``None`` if the fault was done ``times`` times already.
        """
        for number in range(1, times + 1):
            numbered = msgspec.structs.replace(receipt, number=number)
            if self.leave(numbered, name):
                return numbered
        return None

    def count(self, name: str) -> int:
        """How many times a fault was done."""
        return sum(1 for _ in self._directory.glob(f"{name}-[0-9]*.json"))

    def read(self) -> tuple[Receipt, ...]:
        """All receipts there are, by name and number."""
        read = [
            (path.name.rpartition("-")[0], msgspec.json.decode(path.read_bytes(), type=Receipt))
            for path in self._directory.glob("[!.]*.json")
        ]
        return tuple(receipt for _, receipt in sorted(read, key=lambda item: (item[0], item[1].number)))
