"""The fork server of warm workers. Runs as a process of its own, stdlib only, started by ``client.WarmServer``.

``python -u server.py FD [-m] SCRIPT …``: FD is a stream socket to the agent, the rest is what workers will run (given
here too, so that ``ps`` shows it for them). The first message says what to import; each further one asks for a worker,
or for another server that starts with what this one has, or has more imported before there is any of them.
A worker is a fork that becomes what ``python -u [-m] SCRIPT …`` would have been and ends by the interpreter's own way
out. The server itself runs no threads, opens no device and, once ready, imports nothing.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's directory; nothing may be imported from it

import array
import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sysconfig
import time
import types
from collections.abc import Iterator
from typing import Any, NoReturn

LENGTH = struct.Struct("!I")
DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel/", "/dev/infiniband/")
HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""Signals that an agent handles unless ``--signals-to-handle`` says otherwise; torch's own default."""

LONGEST = 1 << 16
"""Bytes kept of what the imports print."""

ONCE_PER_PROCESS = ("mpi4py.MPI",)
"""Modules whose import makes the process a member of something, which a fork must not share."""


class Unfit(Exception):
    """An import has left something behind that a fork must not inherit."""


# -- messages: a length, then JSON; file descriptors travel with the length --------------------------------------------


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message of the agent and the descriptors that came with it.

    Raises:
        EOFError: the agent is gone.
    """
    descriptors = array.array("i")
    head, ancillary, _, _ = link.recvmsg(LENGTH.size, socket.CMSG_SPACE(8 * descriptors.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    head += _exactly(link, LENGTH.size - len(head))
    return json.loads(_exactly(link, LENGTH.unpack(head)[0])), list(descriptors)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def send(link: socket.socket, message: dict[str, Any]) -> None:
    """Answer the agent."""
    data = json.dumps(message).encode()
    link.sendall(LENGTH.pack(len(data)) + data)


# -- what the interpreter does with its command line -------------------------------------------------------------------


def safe_path() -> bool:
    """Whether the interpreter was told to keep the script's directory out of ``sys.path``."""
    return bool(getattr(sys.flags, "safe_path", False))


def first_path(words: list[str]) -> str:
    """What the interpreter would put at the head of ``sys.path``."""
    if words[0] == "-m":
        return os.getcwd()  # noqa: PTH109  # as the interpreter spells it
    if pkgutil.get_importer(words[0]) is not None:
        return _absolute(words[0])  # a directory or an archive with a __main__
    return os.path.dirname(os.path.realpath(words[0]))  # noqa: PTH120


def become(words: list[str]) -> None:
    """Run the script or module as ``__main__``; returns or raises what the program does."""
    # The same module object: others (multiprocessing among them) may have taken hold of it when they were imported.
    scope = vars(sys.modules["__main__"])
    scope.clear()
    empty = dict.fromkeys(("__doc__", "__package__", "__loader__", "__spec__"))
    scope.update(__name__="__main__", __builtins__=builtins, __annotations__={}, **empty)
    sys.orig_argv = [sys.orig_argv[0], "-u", *words]
    try:
        if words[0] == "-m":
            sys.argv = ["-m", *words[2:]]
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
            raise SystemExit
        sys.argv = list(words)
        if pkgutil.get_importer(words[0]) is not None:
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
            raise SystemExit
        exec(_read(words[0], scope), scope)
    except SystemExit:
        raise
    except BaseException as error:
        _forget_this_file(error)
        raise


def _read(script: str, scope: dict[str, Any]) -> types.CodeType:
    """Compile the script and complete its ``__main__``."""
    path = _absolute(script)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        text = f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        sys.stderr.write(text)
        raise SystemExit(2) from None
    loader: Any
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
    scope.update(__file__=path, __cached__=None, __loader__=loader)
    if path.endswith(".pyc"):
        return loader.get_code("__main__")  # type: ignore[no-any-return]
    return compile(source, path, "exec", dont_inherit=True)


def _absolute(path: str) -> str:
    return path if os.path.isabs(path) else f"{os.getcwd()}/{path}"  # noqa: PTH109, PTH117


def _forget_this_file(error: BaseException) -> None:
    """Have the interpreter print the traceback as if nothing had stood between it and the script."""
    hook = sys.excepthook
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next

    def report(kind: type[BaseException], value: BaseException, _: object) -> None:
        sys.excepthook = hook
        sys.last_traceback = trace
        value.__traceback__ = trace
        hook(kind, value, trace)

    sys.excepthook = report


# -- importing ahead ---------------------------------------------------------------------------------------------------


def preload(names: list[str], tree: str) -> None:
    """Import modules, in order, that do not belong to the script's own tree; one that cannot be imported is left out.

    Raises:
        Unfit: a fork of this process would not be what a fresh one is; the module is the argument.
    """
    threads, descriptors = _threads(), _descriptors()
    for name in names:
        if name in sys.modules or not _outside(name, tree):
            continue
        try:
            importlib.import_module(name)
        except (Exception, SystemExit):
            continue
        if (now := (_threads(), _descriptors())) != (threads, descriptors):
            _check(name)
            threads, descriptors = now
        if any(module in sys.modules for module in ONCE_PER_PROCESS):
            raise Unfit(name)


@contextlib.contextmanager
def rarely_collecting() -> Iterator[None]:
    """No look for garbage, of which an import makes little: torch's takes a seventh less without.

    What a module sets for itself stays, as it would in a fresh process.
    """
    before, rare = gc.get_threshold(), (1 << 30, 10, 10)
    gc.set_threshold(*rare)
    try:
        yield
    finally:
        if gc.get_threshold() == rare:
            gc.set_threshold(*before)


def _outside(name: str, tree: str) -> bool:
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if spec.origin in {"built-in", "frozen"}:
        return True
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    libraries = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return all(any(_inside(place, library) for library in libraries) or not _inside(place, tree) for place in places)


def _inside(path: str, directory: str) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(directory), ""))  # noqa: PTH118


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _check(name: str) -> None:
    """Refuse threads that outlive a fork (some libraries end theirs before one) and open devices."""
    if _threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if _threads() > 1:
            raise Unfit(name)
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except OSError:
            continue  # the one that listed the directory
        if target.startswith(DEVICES):
            raise Unfit(name)


class Recorder:
    """Notes what a worker imports beyond what it was given; finds nothing itself.

    It keeps no descriptor: a program that closes all it did not open would fail at its next import, or find our notes
    in a file of its own.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, f"{name}\n".encode())
            finally:
                os.close(file)
        except OSError:
            return  # what is not noted is not imported ahead, and that is all


# -- serving -----------------------------------------------------------------------------------------------------------


class Server:
    """Forks workers and tells how they ended.

    ``said`` is what the imports of the server that this one was forked from have printed.
    """

    def __init__(self, link: int, said: dict[int, bytes]) -> None:
        os.set_inheritable(link, False)
        self._link = socket.socket(fileno=link)
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._tellers: dict[int, tuple[int, int]] = {}  # pid: its pidfd, and where to tell of its end
        self._inherited = self.said = said  # by the imports; the streams are others in a worker

    def introduce(self) -> None:
        """Tell the agent who its new server is."""
        with contextlib.suppress(OSError):  # it is gone: the next thing that this server learns
            send(self._link, {"pid": os.getpid()})

    def serve(self) -> dict[str, Any]:
        """Until the agent is gone. Returns only in a fork: what it has to become, a worker or another server."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    job = self._next_job()
                    if job is not None:
                        return job
                else:
                    self._reap(key.data)

    def _next_job(self) -> dict[str, Any] | None:
        try:
            job, descriptors = receive(self._link)
        except (EOFError, ConnectionError):
            os._exit(0)  # not by the interpreter's way out: exit handlers belong to workers
        if "modules" in job:
            self.warm(job)
            return None
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if job:
                send(self._link, {"error": str(error), "errno": error.errno})
            return None
        if pid == 0:
            self._detach(*descriptors[:3])
            _enter(job.get("group"))
            return {**job, "link": descriptors[3:]}
        teller, *rest = descriptors
        for descriptor in rest:
            os.close(descriptor)
        watch = os.pidfd_open(pid)
        self._tellers[pid] = watch, teller
        self._selector.register(watch, selectors.EVENT_READ, pid)
        if job:  # a server answers for itself
            send(self._link, {"pid": pid})
        return None

    def warm(self, order: dict[str, Any]) -> None:
        """Import what is ordered and say so; a server that cannot fork any more after that ends."""
        try:
            with rarely_collecting():
                preload(order["modules"], order["tree"])
        except Unfit as error:
            refuse(self._link, {"unfit": str(error)})
        self.said = {
            stream: text
            for stream in (1, 2)
            if (text := self._inherited.get(stream, b"") + os.pread(stream, LONGEST, 0))
        }
        gc.collect()  # not gc.freeze: what is frozen would not be finalized when a worker ends
        send(self._link, {"ready": True})

    def _detach(self, teller: int, stdout: int, stderr: int) -> None:
        """In the worker: a session of its own, its own output, and nothing of the server's left open."""
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for descriptor in (teller, stdout, stderr):
            os.close(descriptor)
        for watch, other in self._tellers.values():
            os.close(watch)
            os.close(other)
        self._selector.close()
        self._link.close()

    def _reap(self, pid: int) -> None:
        watch, teller = self._tellers.pop(pid)
        self._selector.unregister(watch)
        os.close(watch)
        _, status, usage = os.wait4(pid, 0)
        end = {
            "status": status,
            "peak_rss_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "at": time.monotonic(),
        }
        with contextlib.suppress(BrokenPipeError):  # the agent has stopped listening to this one
            os.write(teller, json.dumps(end).encode())
        os.close(teller)


def _enter(group: str | None) -> None:
    """In the worker: enter its control group. One that cannot be entered is a fact; the agent has other ways."""
    if group:
        with contextlib.suppress(OSError):
            descriptor = os.open(group, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)


def settle_in(job: dict[str, Any], said: dict[int, bytes]) -> None:
    """In the worker: the directory, environment and randomness that a fresh process would have had."""
    if job["cwd"] != os.getcwd():  # noqa: PTH109
        os.chdir(job["cwd"])
    environment = job["env"]
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    for name in environment.get("TORCHELASTIC_SIGNALS_TO_HANDLE", HANDLED).split(","):
        number = signal.Signals.__members__.get(name.strip())
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            # Ignored since before the agent (nohup, a shell's background job). The agent handles it, and what a
            # process handles its executed children find at its default.
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    for stream, text in said.items():
        os.write(stream, text)  # what the imports printed, which a fresh process would have printed too
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
    if job.get("record"):
        sys.meta_path.insert(0, Recorder(job["record"]))


def refuse(link: socket.socket, message: dict[str, Any]) -> NoReturn:
    """Say why this server is of no use and end it."""
    send(link, message)
    os._exit(0)


def main() -> None:
    """Import, serve, and in each worker be the script."""
    if not safe_path():
        sys.path.insert(0, first_path(sys.argv[2:]))
    server = Server(int(sys.argv[1]), {})
    job = server.serve()
    while job["link"]:
        server = Server(job["link"][0], server.said)
        server.introduce()
        job = server.serve()
    settle_in(job, server.said)
    become(job["words"])


if __name__ == "__main__":
    # Under a name of its own, because __main__ has to become the script's.
    own = importlib.util.spec_from_file_location("_ezpz_warm_server", __file__)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    module.main()
