"""What a fork leaves of gRPC: nothing in the child, everything in the parent, and no handlers of gRPC's own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from support.etcd import Waiter, insist, until

from rendezvous.stores import StoreUnavailable

SWITCH = "GRPC_ENABLE_FORK_SUPPORT"

FORKS = """
import os, pathlib, sys
from rendezvous.stores.etcd import EtcdStore
from rendezvous.stores.etcd_client import EtcdClient
from rendezvous.stores.grpc_forks import grpc

EtcdStore(EtcdClient([("127.0.0.1", int(sys.argv[1]))]), "run").create("k", b"v")
another = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")  # without any channel gRPC would end its threads by itself
tasks = pathlib.Path("/proc/self/task")
threads = {task.name for task in tasks.iterdir() if "grpc_global_tim" in (task / "comm").read_text()}
child = os.fork()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(bool(threads), threads <= {task.name for task in tasks.iterdir()})
"""

LOADS = """
import os, sys

class Loading:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get(sys.argv[1]))

sys.meta_path.insert(0, Loading())
import rendezvous.stores.etcd
print(os.environ.get(sys.argv[1]))
"""


def printed(code: str, *arguments: str) -> list[str]:
    """The words that a program prints."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def test_nothing_of_grpc_is_alive_across_a_fork_and_the_parent_goes_on(store):
    """A watch, a heartbeat and a writer are busy while the process forks twenty times."""
    waiter = Waiter(store.connect(), "late")
    stop = threading.Event()
    beats = []

    def beat() -> None:
        own = store.connect()
        while not stop.is_set():
            insist(lambda: own.renew("agent", 5.0))
            beats.append(1)

    heart = threading.Thread(target=beat)
    heart.start()
    for _ in range(20):
        seen = len(beats)
        child = os.fork()
        if child == 0:
            try:
                store.get("k")
            except StoreUnavailable as error:
                os._exit(0 if "belongs to the parent" in str(error) and store._client._client is None else 3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        until(lambda seen=seen: len(beats) > seen, "the heartbeat goes on")
    stop.set()
    heart.join(60)
    assert not heart.is_alive()
    insist(lambda: store.create("late", b"v"))
    until(lambda: waiter.value == b"v", "the waiting agent is told")


def test_a_fork_does_not_stop_the_threads_of_grpc(etcd, monkeypatch):
    """Its own handlers do, and while a thread is inside gRPC they stand still for ever or abort the child."""
    monkeypatch.delenv(SWITCH, raising=False)
    assert printed(FORKS, str(etcd.endpoints[0][1])) == ["7", "True", "True"]


@pytest.mark.parametrize(("told", "read"), [(None, "0"), ("0", "0"), ("1", "1")])
def test_grpc_reads_the_users_word_or_else_ours_and_the_environment_stays_as_it_was(monkeypatch, told, read):
    monkeypatch.delenv(SWITCH, raising=False)
    if told is not None:
        monkeypatch.setenv(SWITCH, told)
    assert printed(LOADS, SWITCH) == [read, str(told)]


def test_starting_workers_does_not_disturb_the_connection(store):
    """``fork``/``exec`` of a worker runs nothing in between, so the channel stays; a worker gets no socket."""
    waiter = Waiter(store.connect(), "late")
    store.create("k", b"v")
    channel = store._client._client
    listing = "import os; print(sorted(os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')[:-1]))"
    for _ in range(10):
        done = subprocess.run(["python3", "-c", listing], check=True, capture_output=True, text=True, timeout=30)
        assert "socket" not in done.stdout
    store.create("late", b"v")
    until(lambda: waiter.value == b"v", "the waiting agent is told")
    assert store._client._client is channel
    assert waiter.outages == 0
