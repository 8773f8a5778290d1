"""Judges a finished run: ``python -m ezpz_elastic.faults.analyze RUN_DIR``.

Who was in the job (I1 to I5), what was decided and on which grounds, what was trained, where the time went. A check
that the run left nothing for is named as not made; it has not passed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from ezpz_elastic.errors import UsageError
from ezpz_elastic.faults.analysis.data import replicas, samples
from ezpz_elastic.faults.analysis.decisions import conformity, retirements
from ezpz_elastic.faults.analysis.membership import invariants
from ezpz_elastic.faults.analysis.read import Malformed, RunFiles, read_run
from ezpz_elastic.faults.analysis.spans import Outage, outages, sums
from ezpz_elastic.faults.analysis.story import Finding, told

__all__ = ["CHECKS", "Analysis", "analyze", "main"]

CHECKS = ("membership", "retirements", "policy", "samples", "replicas", "spans")


class Analysis(msgspec.Struct, frozen=True):
    """What came of it.

    Args:
        findings: everything that should not be.
        made: the checks that were made.
        outages: every host's time between two rounds, where workers told their spans.
        rounds: how many there were.
    """

    findings: tuple[Finding, ...]
    made: frozenset[str]
    outages: tuple[Outage, ...]
    rounds: int

    @property
    def not_made(self) -> tuple[str, ...]:
        """The checks that the run left nothing for."""
        return tuple(name for name in CHECKS if name not in self.made)


def analyze(files: RunFiles, on_blind: str = "suspect") -> Analysis:
    """Judge a run.

    Args:
        files: what it left.
        on_blind: the job's blind policy.
    """
    story = told(files.events)
    findings = [*invariants(story), *retirements(story, files.bad_nodes), *conformity(story, on_blind)]
    made = {"membership", "retirements", "policy"}
    if any(record.name == "step_trained" for record in files.records):
        made |= {"samples", "replicas"}
        findings += [*samples(files.records), *replicas(files.records)]
    found = outages(story, files.events)
    if found:
        made.add("spans")
        findings += sums(found)
    return Analysis(tuple(findings), frozenset(made), tuple(found), len(story.lives))


def main(arguments: list[str] | None = None) -> int:
    """Read, judge and tell.

    Returns:
        0 if nothing was found, 1 if something was, 2 if the run cannot be read.
    """
    parser = argparse.ArgumentParser("python -m ezpz_elastic.faults.analyze", description="Judges a finished run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--on-blind", choices=("suspect", "rotate", "never"), default="suspect")
    options = parser.parse_args(arguments)
    try:
        result = analyze(read_run(options.run_dir), options.on_blind)
    except (UsageError, Malformed) as error:
        print(error.line() if isinstance(error, UsageError) else error, file=sys.stderr)
        return 2
    for finding in result.findings:
        print(f"round {finding.round}: {finding.check}: {finding.text}")
    for outage in result.outages:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in outage.spans.items())
        out = f"out for {outage.seconds:.2f} s ({parts}, rest {outage.unexplained:.2f})"
        print(f"round {outage.round}: {outage.host} {out}")
    if result.not_made:
        print(f"not checked, for the run tells nothing of it: {', '.join(result.not_made)}")
    print(f"{result.rounds} rounds, {len(result.made)} checks, {len(result.findings)} findings")
    return 1 if result.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
