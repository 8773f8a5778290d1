"""What a person can get wrong: one line that says what, what was expected and what to do; nothing is left running."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.cluster import JOBS, Cluster

ARGUE = [str(JOBS / "argue.py")]


def the_line(cluster: Cluster, host: int = 2) -> str:
    """The one line for the person; warnings of torch's own logger apart."""
    lines = [line for line in cluster.output(host).splitlines() if line.startswith("[ezpz]")]
    assert "Traceback" not in cluster.output(host)
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("options", "conf", "expected"),
    [
        (["--rdzv-endpoint="], "", "no --rdzv-endpoint; expected HOST:PORT"),
        (["--rdzv-endpoint=127.0.0.2:http"], "", "expected HOST:PORT"),
        (["--rdzv-endpoint=no-such-host.invalid:29500"], "", "cannot resolve 'no-such-host.invalid'"),
        (["--rdzv-id=none"], "", "no --rdzv-id"),
        (["--rdzv-conf=run_dir=/proc/none"], "", "cannot write to the run directory /proc/none"),
        (["--local-addr=203.0.113.7"], "", "cannot listen on 203.0.113.7"),
        ([], "sttle=2", "unknown --rdzv-conf key 'sttle'; expected one of store, last_call"),
        ([], "settle=soon", "--rdzv-conf: Expected `float`, got `str` - at `$.settle`"),
        ([], "lease_ttl=0", "lease_ttl=0.0; expected seconds, more than zero"),
        ([], "on_blind=guess", "on_blind=guess; expected one of suspect, rotate, never"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(cluster, options, conf, expected):
    cluster.start(2, ARGUE, nnodes="1:1", conf=conf, options=options)
    assert cluster.wait(2) == 2
    assert expected in the_line(cluster)
    cluster.assert_nothing_left()


@contextmanager
def another_program(endpoint: str, words: bytes) -> Iterator[None]:
    """A program that holds the endpoint's port, and says something to whoever connects or nothing."""
    host, port = endpoint.split(":")
    with socket.create_server((host, int(port))) as other:

        def speak() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    connection, _ = other.accept()
                    callers.enter_context(connection)
                    connection.sendall(words)

        with contextlib.ExitStack() as callers:
            thread = threading.Thread(target=speak)
            thread.start()
            try:
                yield
            finally:
                other.shutdown(socket.SHUT_RDWR)
                thread.join()


@pytest.mark.parametrize(("own_address", "words"), [(2, b""), (2, b"SSH-2.0-x"), (3, b"SSH-2.0-x")])
def test_a_port_that_another_program_holds_is_one_line_for_who_serves_and_for_who_connects(cluster, own_address, words):
    host, port = cluster.endpoint.split(":")
    with another_program(cluster.endpoint, words):
        cluster.start(own_address, ARGUE, nnodes="1:1")
        assert cluster.wait(own_address) == 2
    line = the_line(cluster, own_address)
    assert f"{port} on {host} is taken" in line or f"{host}:{port} is taken" in line
    cluster.assert_nothing_left()


def test_who_connects_to_a_program_that_says_nothing_waits_for_the_store_as_long_as_for_any(cluster):
    with another_program(cluster.endpoint, b""):
        cluster.start(3, ARGUE, nnodes="1:1", conf="join_timeout=1")
        assert cluster.wait(3) == 1
    assert f"{cluster.endpoint} takes connections and says nothing" in the_line(cluster, 3)
    cluster.assert_nothing_left()


def test_a_store_that_never_comes_is_one_line_after_the_join_timeout(cluster):
    cluster.start(3, ARGUE, nnodes="1:1", conf="join_timeout=1")
    assert cluster.wait(3) == 1
    assert "no store within 1 s" in the_line(cluster, 3)
    cluster.assert_nothing_left()


def test_a_job_that_finds_too_few_hosts_has_failed(cluster):
    """Nobody had a slot, and yet the agent that waited is no spare that was not needed."""
    cluster.start(2, ARGUE, nnodes="2:2", conf="join_timeout=3")
    assert cluster.wait(2) == 1
    assert "[ezpz] FAILOVER STOP: exhausted (launch_error; no host; add hosts" in cluster.output(2)
    assert cluster.outcome()["exit_code"] == 1
    cluster.assert_nothing_left()


def test_a_second_job_of_another_size_under_the_same_id_is_told_so_and_the_first_goes_on(cluster):
    cluster.start(2, ["--no-python", "sleep", "3"])
    cluster.await_true(lambda: cluster.text("journal/127.0.0.2.jsonl"), "the first agent")
    cluster.start(4, ARGUE, nnodes="3:3")
    assert cluster.wait(4) == 2
    assert "run id 'job' is in use by a job of another size: min_hosts 2 there, 3 here" in the_line(cluster, 4)
    cluster.start(3, ["--no-python", "sleep", "3"])
    assert [cluster.wait(2), cluster.wait(3)] == [0, 0]
    cluster.assert_nothing_left()


def test_a_second_agent_on_the_same_host_is_refused_and_the_first_goes_on(cluster):
    cluster.start(2, ["--no-python", "sleep", "3"])
    cluster.await_true(lambda: cluster.text("journal/127.0.0.2.jsonl"), "the first agent")
    first = cluster.agents[2]
    twin = cluster.start(2, ["--no-python", "sleep", "3"])
    assert twin.wait(30) == 2
    assert "already has an agent in this job" in the_line(cluster)
    cluster.start(3, ["--no-python", "sleep", "3"])
    assert [first.wait(60), cluster.wait(3)] == [0, 0]
    cluster.assert_nothing_left()


def test_a_wrong_argument_of_the_script_is_a_user_error_with_its_own_message_and_code(cluster):
    began = time.monotonic()
    for host in (2, 3):
        cluster.start(host, [*ARGUE, "--learning-rate", "1"])
    assert [cluster.wait(2), cluster.wait(3)] == [2, 2]
    assert time.monotonic() - began < 30
    assert cluster.outcome()["kind"] == "user_error"
    assert cluster.outcome()["rounds"] == 1
    assert "unrecognized arguments: --learning-rate 1" in cluster.output(2)
    assert cluster.output(2).index("unrecognized arguments") < cluster.output(2).index("FAILOVER STOP: user_error")
    cluster.assert_nothing_left()


def test_a_crash_without_any_budget_stops_and_names_the_flag(cluster):
    for host in (2, 3):
        cluster.start(host, ["--no-python", "sh", "-c", "exit 7"], max_restarts=0)
    assert [cluster.wait(2), cluster.wait(3)] == [7, 7]
    assert "--max-restarts=0" in cluster.output(2)
    assert cluster.outcome()["rounds"] == 1
    cluster.assert_nothing_left()


@pytest.mark.parametrize("nnodes", ["3:2", "0", "two", "1:2:3"])
def test_impossible_nnodes_are_one_line_where_torch_has_a_traceback(cluster, nnodes):
    cluster.start(2, ARGUE, nnodes=nnodes, cold=True)
    assert cluster.wait(2) == 2
    assert f"--nnodes={nnodes}; expected N or MIN:MAX" in the_line(cluster)
    cluster.assert_nothing_left()
