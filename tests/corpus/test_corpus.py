"""Every case of tests/corpus/*.txt: of the hosts that were named how many are right, and what was missed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from ezpz_elastic.attempt import classify_log
from ezpz_elastic.decide.verdict import Verdict

sys.path.insert(0, str(Path(__file__).parent))
from case import Case, read_cases

CASES = [case for path in sorted(Path(__file__).parent.glob("*.txt")) for case in read_cases(path)]


def judge(case: Case, directory: Path) -> Verdict:
    log = directory / "attempt.log"
    log.write_bytes(case.log)
    return classify_log(
        log,
        exit_code=case.exit_code,
        machine=case.machine,
        remaining=case.remaining,
        hosts=case.hosts,
        ranks_per_host=case.ranks_per_host,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}:{case.name}")
def test_a_case_of_the_corpus_names_no_healthy_host(case: Case, tmp_path: Path) -> None:
    named = {host.name for host in judge(case, tmp_path).hosts}
    assert named <= set(case.expected), f"healthy hosts named; the expert says: {case.why}"


def test_the_numbers_over_the_whole_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = right = wanted = kinds = causes = asked = 0
    confusion: Counter[tuple[str, str]] = Counter()
    wrong = []
    for case in CASES:
        verdict = judge(case, tmp_path)
        got = {host.name for host in verdict.hosts}
        named += len(got)
        right += len(got & set(case.expected))
        wanted += len(case.expected)
        kinds += verdict.kind.value == case.kind
        if case.cause != "any":
            asked += 1
            causes += verdict.cause.value == case.cause
            confusion[case.cause, verdict.cause.value] += 1
        told = {host.name: host.provenance.value for host in verdict.hosts}
        sources = dict(zip(case.expected, case.provenance, strict=False))
        if (
            verdict.kind.value != case.kind
            or got != set(case.expected)
            or any(sources.get(name, source) != source for name, source in told.items())
        ):
            wrong.append(
                f"  {case.file}:{case.name}: want {case.kind}/{case.cause} {sorted(case.expected)}, "
                f"got {verdict.kind.value}/{verdict.cause.value} {sorted(told.items())} | {verdict.reason[:160]}"
            )
    precision, recall = right / max(named, 1), right / max(wanted, 1)
    accuracy = kinds / max(len(CASES), 1)
    with capsys.disabled():
        print(f"\n{len(CASES)} cases: host precision {precision:.3f}, host recall {recall:.3f}, kind {accuracy:.3f}")
        print(f"cause {causes}/{asked}; expected -> got (off the diagonal):")
        for (expected, got_cause), count in sorted(confusion.items()):
            mark = "" if expected == got_cause else "   <--"
            print(f"  {expected:>18} -> {got_cause:<18} {count:4d}{mark}")
        if wrong:
            print("cases told otherwise than the expert does:\n" + "\n".join(wrong))
    assert precision == 1.0
    assert recall >= 0.97
    assert accuracy >= 0.97
