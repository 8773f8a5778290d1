"""``lfs`` over ordinary directories: each storage target is a mount of its own, so a full one is really full.

A placed file is a symbolic link to an object on its target. Objects that no link points to are removed whenever room is
asked for, because removing a link cannot remove its object the way Lustre does. Configuration: the JSON file that
``LFS_STANDIN`` names::

    {"root": …, "targets": {"0": "/mnt/ost0", …}, "inactive": [3], "claims": {"1": bytes},
     "quota": {"user": [used KiB, limit KiB]}, "refuse": ["setstripe"], "calls": "/path/of/log"}

``claims`` is what ``df`` says of a target instead of the truth, as a client's cached numbers do.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path


def main(arguments: list[str]) -> int:
    setup = json.loads(Path(os.environ["LFS_STANDIN"]).read_text())
    if "calls" in setup:
        with Path(setup["calls"]).open("a") as log:
            log.write(" ".join(arguments) + "\n")
    command, rest = arguments[0], arguments[1:]
    if command in setup.get("refuse", ()):
        return fail(f"{command}: broken on purpose")
    path = str(Path(rest[-1]).absolute())
    if not (path + "/").startswith(setup["root"] + "/"):
        return fail(f"{command}: {path} is not on a Lustre filesystem")
    return COMMANDS[command](setup, rest, path)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def df(setup: dict, rest: list[str], path: str) -> int:
    collect(setup)
    inodes = "-i" in rest
    print("UUID                   1K-blocks        Used   Available Use% Mounted on")
    print(f"standin-MDT0000_UUID       100000       10       99990   1% {path}[MDT:0]")
    for name, mount in sorted(setup["targets"].items(), key=lambda pair: int(pair[0])):
        index = int(name)
        if index in setup.get("inactive", ()):
            print(f"OST{index:04x}             : inactive device")
            continue
        stat = os.statvfs(mount)
        total = stat.f_blocks * stat.f_frsize // 1024
        free = setup.get("claims", {}).get(name, stat.f_bavail * stat.f_frsize) // 1024
        if inodes:
            total, free = stat.f_files, stat.f_ffree
        use = 100 * (total - free) // total
        print(f"standin-OST{index:04x}_UUID {total:12d} {total - free:12d} {free:12d} {use:3d}% {path}[OST:{index}]")
    print("\nfilesystem_summary:       1000         100         900  10% /mnt/standin")
    return 0


def collect(setup: dict) -> None:
    stale: set[str] | None = None
    for _ in range(2):  # a directory renamed during one walk is seen by the other
        linked = set()
        for folder, _folders, files in os.walk(setup["root"]):
            links = [link for name in files if (link := Path(folder, name)).is_symlink()]
            linked |= {os.fspath(link.readlink()) for link in links}
        there = {os.fspath(found) for mount in setup["targets"].values() for found in Path(mount).glob("object-*")}
        stale = there - linked if stale is None else stale & (there - linked)
    for name in stale or ():
        Path(name).unlink()


def setstripe(setup: dict, rest: list[str], path: str) -> int:
    osts = [int(index) for index in rest[rest.index("-o") + 1].split(",")]
    if osts[0] in setup.get("inactive", ()):
        return fail(f"error on ioctl for '{path}': Cannot send after transport endpoint shutdown")
    target = Path(setup["targets"][str(osts[0])], f"object-{uuid.uuid4().hex}")
    Path(path).symlink_to(target)
    target.touch(exist_ok=False)
    return 0


def getstripe(setup: dict, rest: list[str], path: str) -> int:
    if "-d" in rest:
        print("stripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1")
        return 0
    target = os.fspath(Path(path).resolve().parent)
    index = next(name for name, mount in setup["targets"].items() if mount == target)
    print(f"{path}\nlmm_stripe_count:  1\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0")
    print(f"lmm_layout_gen:    0\nlmm_stripe_offset: {index}")
    print(f"\tobdidx\t\t objid\t\t objid\t\t group\n\t     {index}\t             2\t          0x2\t             0")
    return 0


def quota(setup: dict, rest: list[str], path: str) -> int:
    kind = {"-u": "user", "-g": "group", "-p": "project"}[rest[0]]
    used, limit = setup.get("quota", {}).get(kind, (0, 0))
    print(f"Disk quotas for {kind} {rest[1]}:")
    print("     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace")
    print(f"{path}\n                 {used}       0 {limit}       -       1       0       0       -")
    return 0


def project(_setup: dict, _rest: list[str], path: str) -> int:
    print(f"    0 - {path}")
    return 0


COMMANDS = {"df": df, "setstripe": setstripe, "getstripe": getstripe, "quota": quota, "project": project}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
