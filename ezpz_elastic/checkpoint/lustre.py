"""Asking Lustre: ``lfs`` with a deadline, and what to do where there is none.

Whatever goes wrong with ``lfs`` itself means "treat this as not Lustre", said once; it never fails a save.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ezpz_elastic.checkpoint import lustre_text
from ezpz_elastic.checkpoint.lustre_text import Layout, Quota
from ezpz_elastic.checkpoint.striping import Ost, Placement
from ezpz_elastic.observe.ask import NoAnswer, ask

__all__ = ["Lfs", "LfsError", "find", "on_lustre"]

_log = logging.getLogger(__name__)

LUSTRE_MAGIC = 0x0BD00BD0  # LUSTRE_SUPER_MAGIC in lustre_user.h
# ``lfs df`` waits for targets that are down; a save does not.
DEADLINE = 10.0


class LfsError(OSError):
    """``lfs`` refused; carries the errno it printed where it printed one."""


def on_lustre(path: Path) -> bool:
    """Whether the kernel says that ``path``, or its nearest existing parent, is on Lustre."""
    while not path.exists() and path != path.parent:
        path = path.parent
    buffer = ctypes.create_string_buffer(256)  # struct statfs is 120 bytes; f_type is its first word
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return False
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF == LUSTRE_MAGIC


class Lfs:
    """The ``lfs`` program.

    Args:
        program: its path.
        deadline: seconds per call.
    """

    def __init__(self, program: str, deadline: float = DEADLINE) -> None:
        self._program = program
        self._deadline = deadline

    def _run(self, *arguments: str) -> str:
        try:
            code, said, complained = ask(
                [self._program, *arguments],
                self._deadline,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
            )
        except NoAnswer as why:
            cause = why.__cause__
            number = cause.errno if isinstance(cause, OSError) else errno.ETIMEDOUT
            raise LfsError(number, f"lfs {arguments[0]}: {why}") from None
        if code != 0:
            refusal = " ".join((complained or said).split())
            raise LfsError(_errno_in(refusal, code), f"lfs {' '.join(arguments)}: {refusal}")
        return said

    def df(self, path: Path, pool: str = "") -> tuple[Ost, ...]:
        """The targets of the file system of ``path``, with room and free objects.

        Args:
            path: on the file system.
            pool: only this pool's targets.

        Raises:
            LfsError: it is no Lustre file system, or does not answer.
        """
        narrowed = ("-p", pool) if pool else ()
        inodes = lustre_text.parse_inodes(self._run("df", "-i", *narrowed, str(path)))
        return lustre_text.parse_df(self._run("df", *narrowed, str(path)), inodes)

    def getstripe(self, path: Path) -> Layout | None:
        """Layout of a file, or default layout of a directory."""
        only = ("-d",) if path.is_dir() else ()
        return lustre_text.parse_getstripe(self._run("getstripe", *only, str(path)))

    def setstripe(self, path: Path, placement: Placement, pool: str = "") -> None:
        """Create ``path`` with a layout; it must not exist.

        The targets are given as a list, which Lustre takes literally; a start index is only a wish.

        Raises:
            LfsError: it was not created.
        """
        arguments = ["-c", str(len(placement.osts)), "-o", ",".join(map(str, placement.osts))]
        if placement.stripe_size:
            arguments += ["-S", str(placement.stripe_size)]
        if pool:
            arguments += ["-p", pool]
        self._run("setstripe", *arguments, str(path))

    def quotas(self, path: Path) -> tuple[Quota, ...]:
        """What user, group and project may still write; those without a limit or an answer are left out."""
        asked: list[tuple[str, Sequence[str]]] = [
            ("user", ("-u", str(os.geteuid()))),
            ("group", ("-g", str(os.getegid()))),
        ]
        found = []
        try:
            project = lustre_text.parse_project(self._run("project", "-d", str(path)))
        except LfsError as error:
            _log.debug("no project id: %s", error)
            project = None
        if project is not None:
            asked.append(("project", ("-p", str(project))))
        for kind, who in asked:
            try:
                quota = lustre_text.parse_quota(kind, self._run("quota", *who, str(path)))
            except LfsError as error:
                _log.debug("no %s quota: %s", kind, error)
                continue
            if quota is not None and quota.limit:
                found.append(quota)
        return tuple(found)


def find(path: Path, deadline: float = DEADLINE) -> Lfs | None:
    """``lfs`` for ``path``, or ``None`` where it is not Lustre or ``lfs`` cannot be used; says so once."""
    program = shutil.which("lfs")
    lustre = on_lustre(path)
    if program is None:
        if lustre:
            _log.warning("%s is on Lustre and there is no lfs: shards are placed by the file system", path)
        return None
    lfs = Lfs(program, deadline)
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if lfs.df(existing):
            return lfs
    except OSError as error:
        if lustre:
            _log.warning("lfs cannot be used on %s (%s): shards are placed by the file system", path, error)
        else:
            _log.debug("%s is not on Lustre: %s", path, error)
    return None


def _errno_in(text: str, returncode: int) -> int:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESHUTDOWN, errno.ESTALE, errno.EEXIST, errno.EINVAL):
        if os.strerror(code) in text:
            return code
    match = re.search(r"\((-?\d+)\)", text)
    return abs(int(match.group(1))) if match else returncode
