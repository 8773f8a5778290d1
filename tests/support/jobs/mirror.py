# ruff: noqa: PTH109, PTH115, PTH208
"""Shows what a program can see of how it was started, then ends in the way that its last argument names."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path


class Doubled:
    """Something that only ``__main__`` knows, sent to other processes by name."""

    def __init__(self, value: int) -> None:
        self.value = 2 * value


def double(value: int) -> Doubled:
    return Doubled(value)


def children() -> None:
    """A DataLoader with fork and with spawn, and a spawned pool, all of which must find this ``__main__`` again."""
    import multiprocessing

    from torch.utils.data import DataLoader

    for method in ("fork", "spawn"):
        loader = DataLoader(range(4), batch_size=2, num_workers=1, multiprocessing_context=method, collate_fn=_collate)
        print(method, [batch.value for batch in loader])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("pool", pool.map(double, [3])[0].value, multiprocessing.get_start_method(allow_none=True))
        pool.close()  # or it is terminated, before or after its process has said its last words
        pool.join()


def _collate(items: list[int]) -> Doubled:
    return Doubled(sum(items))


def facts() -> dict[str, object]:
    """What must not depend on who started this process."""
    main = sys.modules["__main__"]
    here = {key: os.environ[key] for key in sorted(os.environ) if key.startswith(("RANK", "LOCAL_", "WORLD_", "ROLE_"))}
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path0": sys.path[0],
        "path": sys.path[1:],
        "name": __name__,
        "file": __file__,
        "main": sorted(key for key in vars(main) if key.startswith("__")),
        "spec": getattr(main.__spec__, "name", None),
        "package": main.__package__,
        "loader": type(main.__loader__).__name__,
        "cached": vars(main).get("__cached__"),
        "builtins": type(main.__dict__["__builtins__"]).__name__,
        "flags": str(sys.flags),
        "cwd": os.getcwd(),
        "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 3),
        "extra_sockets": [
            target
            for name in os.listdir("/proc/self/fd")
            if (target := _link(name)).startswith(("socket", "anon_inode:[pid"))
        ],
        "streams": [
            (s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.mode) for s in (sys.stdout, sys.stderr)
        ],
        "signals": {n.name: str(signal.getsignal(n)) for n in signal.valid_signals() if isinstance(n, signal.Signals)},
        "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "threads": [thread.name for thread in threading.enumerate()],
        "tasks": len(os.listdir("/proc/self/task")),
        "umask": oct(os.umask(0o22)),
        "hook": sys.excepthook is sys.__excepthook__,
        "meta_path": [
            type(finder).__name__ if not isinstance(finder, type) else finder.__name__ for finder in sys.meta_path
        ],
        "environment": here,
    }


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def end(how: str) -> None:
    """Leave in one of the ways a program can leave."""
    if how == "raise":
        raise ValueError("told to fail")
    if how == "chain":
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("told to fail twice") from error
    if how == "hook":
        sys.excepthook = lambda kind, value, trace: print("hooked", kind.__name__, value, trace.tb_lineno > 0)
        raise ValueError("told to fail")
    if how == "exit-text":
        raise SystemExit("a reason")
    if how == "exit-none":
        raise SystemExit(None)
    if how == "exit-300":
        sys.exit(300)
    if how == "exit-code":
        sys.exit(7)
    if how == "hard":
        os._exit(9)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "thread":
        threading.Thread(target=lambda: (time.sleep(0.2), print("a thread that is not a daemon is waited for"))).start()
    if how == "children":
        children()
    if how == "warn":
        warnings.warn("careful", stacklevel=1)
    if how == "record":
        from torch.distributed.elastic.multiprocessing.errors import record

        record(end)("raise")


class Last:
    """Something that is still there when the interpreter takes its modules apart."""

    def __del__(self) -> None:
        print("finalized")


last = Last()

if __name__ == "__main__":
    atexit.register(lambda: print("at exit", sys.argv[0], __name__))
    if sys.argv[-1] == "facts":
        Path(f"facts-{os.environ['RANK']}.json").write_text(json.dumps(facts(), indent=1))
    sys.stdout.write("unfinished")
    print(" line")
    print("to stderr", file=sys.stderr)
    end(sys.argv[-1])
