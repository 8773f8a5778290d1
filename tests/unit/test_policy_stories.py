"""The policy's table as stories: tests/policy/*.txt.

A story is a sequence of blocks: comment lines that say why the case exists, one command, ``----`` and the expected
answer. The runner plays the rendezvous: after a restart, retired hosts are gone, benched ones are at the end of the
spare queue, and spares fill the emptied slots.

Commands::

    job hosts=a,b spares=c [min=2] [max-restarts=3] [on-blind=suspect]
        a new job
    end KIND CAUSE [hosts=b:lost] [suspects=b:1.0] [lost=b] [step=5] [durable=0] [at=60] [fp=x] [doubtful] [unformed]
            [exit=1] [everywhere=yes|no] [spares=c,d] [tells-steps] [stale]
        a round ends, 10 s after the last one if not ``at`` a time
    say
        the reason that was given last
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ezpz_elastic.decide.policy import History, Limits, OnBlind, Situation, decide, stop_line
from ezpz_elastic.decide.verdict import Cause, NamedHost, Provenance, Suspect, Verdict, VerdictKind
from rendezvous.records import Action, Decision

STORIES = sorted((Path(__file__).parents[1] / "policy").glob("*.txt"))


class Job:
    """A job that lives through what a story tells."""

    def __init__(self, options: dict[str, str]) -> None:
        self.hosts = options["hosts"].split(",")
        self.spares = [host for host in options.get("spares", "").split(",") if host]
        self.min_hosts = int(options.get("min", len(self.hosts)))
        self.max_hosts = len(self.hosts)
        self.limits = Limits(
            max_restarts=int(options.get("max-restarts", 3)), on_blind=OnBlind(options.get("on-blind", "suspect"))
        )
        self.history = History()
        self.round, self.now = 1, 0.0
        self.decision: Decision | None = None

    def end(self, kind: str, cause: str, options: dict[str, str]) -> str:
        self.now = float(options.get("at", self.now + 10))
        if "spares" in options:
            self.spares = options["spares"].split(",")
        verdict = Verdict(
            VerdictKind(kind),
            Cause(cause),
            options.get("reason", f"{cause} was seen"),
            hosts=tuple(NamedHost(name, Provenance(how)) for name, how in _pairs(options.get("hosts", ""), "inferred")),
            suspects=tuple(Suspect(name, float(w), "") for name, w in _pairs(options.get("suspects", ""), "1.0")),
            fingerprint=options.get("fp", ""),
            certain="doubtful" not in options,
            stale="stale" in options,
        )
        situation = Situation(
            round=self.round,
            hosts=() if "unformed" in options else tuple(self.hosts),
            spares=tuple(self.spares),
            min_hosts=self.min_hosts,
            max_hosts=self.max_hosts,
            elapsed=self.now,
            step=_number(options.get("step")),
            durable_step=_number(options.get("durable")),
            lost=tuple(name for name, _ in _pairs(options.get("lost", ""), "")),
            unformed="unformed" in options,
            exit_code=_number(options.get("exit")),
            everywhere={"yes": True, "no": False, None: None}[options.get("everywhere")],
            tells_steps="tells-steps" in options,
        )
        self.decision = decide(verdict, self.history, situation, self.limits)
        self.history = msgspec.json.decode(self.decision.ledger, type=History)
        return self._play(self.decision)

    def _play(self, decision: Decision) -> str:
        out = [(r.host, "to the queue" if r.benched else "retired", r.provenance) for r in decision.retired]
        told = [f"{host} {how} ({provenance})" for host, how, provenance in out]
        if decision.action is not Action.RESTART:
            code = f"exit {decision.exit_code}"
            return "\n".join(
                [f"{decision.action.value}, {code}, {decision.restarts_left} left", *told, stop_line(decision)]
            )
        self.round += 1
        for host, how, _ in out:
            slot = self.hosts.index(host)
            if how == "to the queue":
                self.spares.append(host)
            self.hosts[slot] = ""
        self.hosts = [host or (self.spares.pop(0) if self.spares else "") for host in self.hosts]
        self.hosts = [host for host in self.hosts if host]
        slots, spares = " ".join(self.hosts), " ".join(self.spares) or "none"
        wait = f" after {decision.delay:g} s" if decision.delay else ""
        wait += f" and at most {decision.hold.seconds:g} s for storage" if decision.hold else ""
        return "\n".join([f"restart{wait}, {decision.restarts_left} left", *told, f"slots {slots}; spares {spares}"])


def _pairs(text: str, default: str) -> list[tuple[str, str]]:
    return [(name, value or default) for name, _, value in (item.partition(":") for item in text.split(",")) if name]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _parse(text: str) -> list[tuple[str, str, str]]:
    """(comments and blank lines, command, expected) of each block."""
    blocks, before, lines = [], [], iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            before.append(line)
            continue
        assert next(lines) == "----", f"no ---- after {line!r}"
        expected = []
        for answer in lines:
            if not answer.strip():
                break
            expected.append(answer)
        blocks.append(("\n".join(before), line, "\n".join(expected)))
        before = [""]
    return blocks


def _answers(text: str) -> list[tuple[str, str, str, str]]:
    job, played = None, []
    for before, command, expected in _parse(text):
        words = command.split()
        options = {name: value for name, _, value in (word.partition("=") for word in words)}
        if words[0] == "job":
            job, answer = Job(options), "ready"
        elif words[0] == "say":
            assert job is not None
            assert job.decision is not None
            answer = job.decision.reason
        else:
            assert job is not None
            answer = job.end(words[1], words[2], options)
        played.append((before, command, expected, answer))
    return played


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_goes_as_it_is_told(path: Path) -> None:
    played = _answers(path.read_text())
    told = "\n\n".join(f"{command}\n----\n{expected}" for _, command, expected, _ in played)
    happened = "\n\n".join(f"{command}\n----\n{answer}" for _, command, _, answer in played)
    assert happened == told


def test_there_are_stories() -> None:
    assert sum(command.startswith("end") for path in STORIES for _, command, _ in _parse(path.read_text())) > 60
