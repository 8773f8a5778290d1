"""Where a process stands in the kernel's control groups, version 1 and 2."""

from __future__ import annotations

from pathlib import Path

__all__ = ["UNIFIED", "directories"]

UNIFIED = ""
"""Name under which the one hierarchy of version 2 is listed; those of version 1 have their controllers' names."""


def directories(pid: int | str = "self", root: Path = Path("/")) -> dict[str, Path]:
    """The directories of a process's control groups, by controller.

    Args:
        pid: the process.
        root: of the file system, for tests.

    Returns:
        Only what is mounted; a directory may be out of sight all the same. Empty where the kernel tells nothing.
    """
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    groups: dict[str, str] = {}
    for line in lines:
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    found: dict[str, Path] = {}
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2)
        inside, place = left.split(" ")[3:5]
        names = [UNIFIED] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            if name in groups:
                below = groups[name].removeprefix(inside if inside != "/" else "").lstrip("/")
                found.setdefault(name, root / place.lstrip("/") / below)
    return found
