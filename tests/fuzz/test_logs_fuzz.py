"""Whatever a log holds: no exception, no host but those told, no verdict changed by noise, no line that costs more."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ezpz_elastic.decide.classify import Context, classify
from ezpz_elastic.decide.evidence import LogMatch
from ezpz_elastic.decide.verdict import Verdict
from ezpz_elastic.machines import machines
from ezpz_elastic.observe.matching import Matcher
from ezpz_elastic.observe.scanner import Scanner
from ezpz_elastic.signatures import load_library

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from case import Case, read_cases

LIBRARY = load_library()
CASES = [case for path in sorted((Path(__file__).parents[1] / "corpus").glob("*.txt")) for case in read_cases(path)]
BOUNDED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

NOISE = (
    b"Loading checkpoint shards: 50%",
    b"[I] building model: 2.0e9 parameters",
    b"WARNING: Logging before flag parsing goes to stderr.",
    b"UserWarning: torch.utils.checkpoint: use_reentrant should be passed explicitly",
    b"\x1b[32mINFO\x1b[0m tokenizer ready",
    b"nid000000: GPU 0 ok, 0 errors",
    b"error_rate=0.01 accuracy=0.99",
    b"",
    b"\xff\xfe\x00\x80",
    b"srun: job 1234 queued and waiting for resources",
    b"a" * 5000,
)
WRAPPERS = (
    b"2026-11-29T12:00:00.123Z ",
    b"[2026-11-29 12:00:00,123] ",
    b"2026-11-29 12:00:00,123 - INFO - ",
    b"Nov 29 12:00:00 login1 job[4242]: ",
    b"1764417600.123 ",
    b"[stdout] ",
    b"\x1b[0m",
)
CASCADES = (
    b"HOST: rank 7 died from signal 15",
    b"HOST: rank 7 died from signal 11",
    b"slurmstepd: error: *** STEP 1234.0 ON HOST CANCELLED AT 2026-11-29T12:00:00 ***",
    b"srun: error: HOST: task 3: Terminated",
    b"srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    b"[rank3]: To avoid data inconsistency, we are taking the entire process down.",
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    b"[mpiexec@HOST] HYDT_bscu_wait_for_completion (tools/bootstrap/utils/bscu_wait.c:76): terminated badly",
    b"W1129 10:00:00.000 1 torch/distributed/elastic/multiprocessing/api.py] Sending process 1 closing signal SIGTERM",
)


def scan(data: bytes, pieces: list[int] | None = None) -> tuple[tuple[LogMatch, ...], int | None]:
    matcher = Matcher(LIBRARY, "log")
    scanner = Scanner(LIBRARY, matcher.take)
    at = 0
    for size in pieces or []:
        scanner.feed(data[at : at + size])
        at += size
    scanner.feed(data[at:])
    scanner.finish()
    return tuple(matcher.take_all()), scanner.last_step


def judge(data: bytes, case: Case) -> Verdict:
    matches, last_step = scan(data)
    machine = machines().get(case.machine, machines()["generic"])
    whole = all(machine.key(host) is not None for host in case.hosts)
    context = Context(
        hosts=case.hosts,
        ranks_per_host=case.ranks_per_host,
        exit_code=case.exit_code,
        remaining=case.remaining,
        last_step=last_step,
        key=machine.key if whole else machines()["generic"].key,
        spell=machine.spell,
    )
    return classify(matches, context)


def named(verdict: Verdict) -> set[str]:
    return {host.name for host in verdict.hosts}


@BOUNDED
@given(st.binary(max_size=4000), st.lists(st.integers(0, 500), max_size=6))
def test_any_bytes_are_read_in_any_pieces_alike(data: bytes, pieces: list[int]) -> None:
    assert [m.line for m in scan(data)[0]] == [m.line for m in scan(data, pieces)[0]]


@BOUNDED
@given(st.sampled_from(CASES), st.lists(st.integers(0, 300), max_size=8))
def test_a_case_is_read_alike_in_any_pieces(case: Case, pieces: list[int]) -> None:
    whole, split = scan(case.log), scan(case.log, pieces)
    assert whole == split


@BOUNDED
@given(st.sampled_from(CASES), st.binary(max_size=300), st.integers(0, 10**6))
def test_garbage_anywhere_raises_nothing_and_names_only_hosts_of_the_attempt(
    case: Case, garbage: bytes, place: int
) -> None:
    at = place % (len(case.log) + 1)
    verdict = judge(case.log[:at] + garbage + case.log[at:], case)
    if case.hosts:
        assert named(verdict) <= set(case.hosts)


@BOUNDED
@given(st.sampled_from(CASES), st.lists(st.sampled_from(NOISE), min_size=1, max_size=12))
def test_noise_appended_never_changes_a_verdict(case: Case, noise: list[bytes]) -> None:
    before = judge(case.log, case)
    after = judge(case.log.rstrip(b"\n") + b"\n" + b"\n".join(noise) + b"\n", case)
    assert (after.kind, after.cause, after.hosts) == (before.kind, before.cause, before.hosts)


@BOUNDED
@given(st.sampled_from(CASES), st.data())
def test_noise_between_lines_never_changes_a_verdict(case: Case, data: st.DataObject) -> None:
    lines = case.log.split(b"\n")
    mixed: list[bytes] = []
    for line, following in zip(lines, [*lines[1:], b""], strict=True):
        mixed.append(line)
        block = line.startswith((b"=", b"  ", b"---")) or following.startswith(b"---")  # printed at once
        if not block and data.draw(st.booleans()):
            mixed.append(data.draw(st.sampled_from(NOISE[:6])))
    before, after = judge(case.log, case), judge(b"\n".join(mixed), case)
    assert (after.kind, after.hosts) == (before.kind, before.hosts)


@BOUNDED
@given(st.sampled_from(CASES), st.sampled_from(WRAPPERS))
def test_a_log_behind_somebody_elses_heads_of_lines_names_no_other_host(case: Case, head: bytes) -> None:
    if case.file == "order.txt":  # whose own times decide, which those of the heads hide
        return
    wrapped = b"\n".join(head + line if line.strip() else line for line in case.log.split(b"\n"))
    before, after = judge(case.log, case), judge(wrapped, case)
    assert named(after) <= named(before) | set(case.expected)


@BOUNDED
@given(st.sampled_from(CASES), st.lists(st.sampled_from(CASCADES), min_size=1, max_size=6), st.data())
def test_a_cascade_line_added_names_no_host(case: Case, cascades: list[bytes], data: st.DataObject) -> None:
    hosts = case.hosts or ("nid000001",)
    added = [line.replace(b"HOST", data.draw(st.sampled_from(hosts)).encode()) for line in cascades]
    before = judge(case.log, case)
    after = judge(case.log.rstrip(b"\n") + b"\n" + b"\n".join(added) + b"\n", case)
    assert named(after) <= named(before) | set(case.expected)


@BOUNDED
@given(st.sampled_from(CASES), st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_two_cases_interleaved_name_only_hosts_of_the_attempt(one: Case, other: Case, random: object) -> None:
    lines = [(line, 0) for line in one.log.split(b"\n")], [(line, 1) for line in other.log.split(b"\n")]
    queues = [list(reversed(part)) for part in lines]
    mixed = []
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])  # type: ignore[attr-defined]
        mixed.append(queue.pop()[0])
    verdict = judge(b"\n".join(mixed), one)
    if one.hosts:
        assert named(verdict) <= set(one.hosts)


@pytest.mark.parametrize("signature", LIBRARY.signatures, ids=lambda signature: signature.id)
def test_no_line_costs_more_than_its_length(signature: object) -> None:
    """Steps of a pattern grow with the line and not with its square: eight times the line, well under eight squared."""
    example = signature.entry.example  # type: ignore[attr-defined]
    regex = signature.regex  # type: ignore[attr-defined]

    def cost(size: int) -> float:
        lines = [
            (example[:-1] * (size // len(example) + 1))[:size],
            (example[: len(example) // 2] * (2 * size // len(example) + 1))[:size],
            (" " * size),
            ("a1.-" * (size // 4)),
        ]
        best = min(_timed(regex, lines) for _ in range(3))
        return max(best, 2e-5)

    assert cost(8192) < 40 * cost(1024)


def _timed(regex: object, lines: list[str]) -> float:
    began = time.process_time()
    for line in lines:
        regex.search(line)  # type: ignore[attr-defined]
    return time.process_time() - began
