"""Mistakes that the suite must notice: what is broken, where, which tests see it, and why it would matter.

Each replaces one piece of text that occurs exactly once in its file. ``tests`` is a small selection that must fail.
"""

from __future__ import annotations

import msgspec

__all__ = ["MUTANTS", "Mutant"]


class Mutant(msgspec.Struct, frozen=True):
    """One mistake.

    Args:
        name: what the broken product does, as a sentence.
        file: the file, relative to the project.
        old: the text to be replaced.
        new: what stands there instead.
        tests: what must fail, as pytest takes it.
        why: what it would cost a user.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str


CORPUS = "tests/corpus/test_corpus.py::test_the_numbers_over_the_whole_corpus"
RULE = "tests/unit/test_classify_log_rules.py::test_{}"
STORY = "tests/unit/test_policy_stories.py::test_story_goes_as_it_is_told[{}]"
MEMBERSHIP = "tests/rendezvous/test_membership.py::test_{}"
MANAGER = "tests/checkpoint/test_manager.py::test_{}"

CLASSIFY = (
    Mutant(
        "The classifier is always blind",
        "ezpz_elastic/decide/classify.py",
        "    case = gather(evidence, context)\n    exit_code = _effective_exit(case, context)\n",
        "    case = gather(evidence, context)\n    exit_code = _effective_exit(case, context)\n"
        "    if exit_code != 0:\n"
        '        return Verdict(VerdictKind.BAD_NODE_BLIND, Cause.UNKNOWN, "something happened", certain=False)\n',
        (CORPUS,),
        "this is torchrun: every failure alike, and healthy hosts rotated for full disks and typos",
    ),
    Mutant(
        "The line of an innocent rank's teardown names its host",
        "ezpz_elastic/signatures/pals.toml",
        'died from signal (?P<code>15|2|1|13)(?!\\d)\'\nrole = "cascade"\n',
        'died from signal (?P<code>15|2|1|13)(?!\\d)\'\ncause = "host_lost"\ncertainty = "certain"\n',
        (CORPUS,),
        "a launcher terminates every other rank of a job that fails: all healthy hosts would be retired",
    ),
    Mutant(
        "The last failure in a log counts as the first",
        "ezpz_elastic/decide/root.py",
        "ordered = sorted(candidates, key=lambda finding: finding.order)",
        "ordered = sorted(candidates, key=lambda finding: finding.order, reverse=True)",
        (CORPUS,),
        "what comes last is the echo of what came first, on another host",
    ),
    Mutant(
        "Two spellings of a host are two hosts",
        "ezpz_elastic/decide/hosts.py",
        "            key = self._context.key(candidate)\n            if key is None:",
        "            key = candidate\n            if key is None:",
        (CORPUS,),
        "the right host is named and then not found in the allocation, so that a healthy one is rotated instead",
    ),
    Mutant(
        "An exit code of 0 is success whatever the log says",
        "ezpz_elastic/decide/classify.py",
        "return inner[-1] if inner and inner[-1] is not None else code",
        "return code",
        (RULE.format("an_exit_code_of_0_is_no_success_where_the_log_tells_of_a_failure"),),
        "a wrapper that loses the exit code turns a crash into a finished job",
    ),
    Mutant(
        "One peer's accusation is enough",
        "ezpz_elastic/decide/accuse.py",
        "if (len(by) >= 2 or (by and host in silent))",
        "if (len(by) >= 1 or (by and host in silent))",
        (CORPUS,),
        "the accuser may be the one whose network is broken",
    ),
)

DECIDE = (
    Mutant(
        "A suspect is retired as if it were named",
        "ezpz_elastic/decide/moves.py",
        "def _recurrence(view: View) -> Plan:\n    return _again_at_one_host(view, window=view.limits.window)",
        "def _recurrence(view: View) -> Plan:\n"
        "    return Plan(Move.REPLACE, hosts=culprits(view.verdict, view.situation))",
        (STORY.format("recurrence"),),
        "one killed worker would cost a healthy host, and without spares the job",
    ),
    Mutant(
        "A log that names only hosts that are gone costs a healthy one",
        "ezpz_elastic/decide/moves.py",
        'return Plan(Move.IN_PLACE, "but it names only hosts that hold no slot, which is stale and blames nobody")',
        "return Plan(Move.ROTATE, hosts=(NamedHost(situation.hosts[0], Provenance.BLIND),))",
        (STORY.format("hosts"),),
        "two healthy spares were spent on one stale line once",
    ),
    Mutant(
        "The first blind failure already rotates a host",
        "ezpz_elastic/decide/moves.py",
        "view.limits.on_blind is OnBlind.SUSPECT and view.history.blind == 0",
        "view.limits.on_blind is OnBlind.SUSPECT and view.history.blind < 0",
        (STORY.format("blind"),),
        "guessing hits a healthy host in all cases but one",
    ),
    Mutant(
        "A program's error that repeats is tried again",
        "ezpz_elastic/decide/moves.py",
        "def _user_error(view: View) -> Plan:\n    if view.repeated():",
        "def _user_error(view: View) -> Plan:\n    if False:",
        (STORY.format("program"),),
        "a typo is run until the allocation is over",
    ),
    Mutant(
        "A lost host keeps its slot",
        "ezpz_elastic/decide/answer.py",
        "for host in situation.hosts if host in gone)",
        "for host in situation.hosts if host not in situation.hosts)",
        (STORY.format("hosts"),),
        "the next round waits for a host that never comes",
    ),
    Mutant(
        "A restart costs nothing",
        "ezpz_elastic/decide/answer.py",
        "        used=history.used + cost,\n",
        "        used=history.used,\n",
        ("tests/unit/test_decider.py::test_three_failures_on_three_hosts_use_up_a_budget_of_two",),
        "a job that cannot work restarts for ever",
    ),
    Mutant(
        "Every host that leaves is marked as a guess",
        "ezpz_elastic/decide/answer.py",
        "Retirement(host.name, host.provenance.value, because,",
        "Retirement(host.name, Provenance.BLIND.value, because,",
        (STORY.format("hosts"),),
        "nobody can tell a proven fault from a guess afterwards",
    ),
    Mutant(
        "The file of bad hosts does not say how a host came there",
        "ezpz_elastic/ledger.py",
        'f"{retirement.host}  {retirement.provenance}  attempt={decision.round}"',
        'f"{retirement.host}  attempt={decision.round}"',
        ("tests/agent/test_journal.py::test_a_benched_host_has_its_line_and_is_not_retired",),
        "all hosts in it look equally bad",
    ),
)

MEMBERS = (
    Mutant(
        "A retired host may come back",
        "rendezvous/membership.py",
        "        if member.key in self.retired:\n            return [Refuse(",
        "        if False:\n            return [Refuse(",
        (MEMBERSHIP.format("a_retired_host_that_comes_back_is_refused_with_the_reason"),),
        "the dead host is the first spare for its own slot",
    ),
    Mutant(
        "A spare takes a slot that nobody emptied",
        "rendezvous/seating.py",
        "seat if seat is not None else (free.pop(0) if free else None) for seat in seats",
        "free.pop(0) if free else seat for seat in seats",
        (MEMBERSHIP.format("a_spare_stands_by_as_long_as_no_decision_empties_a_slot"),),
        "spares are burnt, and a healthy host loses its rank",
    ),
    Mutant(
        "Survivors are seated anew",
        "rendezvous/seating.py",
        "    return tuple(kept + free[: most - len(kept)])",
        "    return tuple(sorted(kept + free[: most - len(kept)], key=natural_order))",
        (MEMBERSHIP.format("a_lost_host_gives_its_slot_to_the_spare_and_the_others_keep_theirs"),),
        "ranks move, and with them everything that a rank keeps for itself",
    ),
    Mutant(
        "The settle window is never waited for",
        "rendezvous/membership.py",
        "return self._conclusive or everyone or now >= self._settle_until",
        "return True",
        (MEMBERSHIP.format("other_reports_wait_for_everybody_or_for_the_settle_window"),),
        "whoever complains first decides, and that is seldom the one who failed",
    ),
    Mutant(
        "A round that is over passes for the current one",
        "rendezvous/fencing.py",
        "return store.get(decision_key(round_number)) is None and store.get(opening_key(round_number + 1)) is None",
        "return True",
        ("tests/rendezvous/test_fencing.py::test_a_round_is_current_until_it_is_decided_or_followed",),
        "a host that was cut off writes over the checkpoints of the job that went on without it",
    ),
)

CHECKPOINT = (
    Mutant(
        "A save asks nobody before it commits",
        "ezpz_elastic/checkpoint/saver.py",
        "        self._tools.owner.check()\n",
        "",
        ("tests/checkpoint/test_owner.py::test_a_round_that_ends_while_its_save_is_written_is_not_committed",),
        "the round can end during the minutes of a large save",
    ),
    Mutant(
        "A checkpoint has another random state than the run",
        "ezpz_elastic/checkpoint/tree.py",
        "            described[key] = state_dict_of(value)\n",
        '            described[key] = torch.Generator().get_state() if key == "rng" else state_dict_of(value)\n',
        (MANAGER.format("a_restored_run_continues_exactly_like_the_one_that_was_not_interrupted"),),
        "the run after a restart is another run, and nobody can see it",
    ),
    Mutant(
        "A restore leaves plain values as they are",
        "ezpz_elastic/checkpoint/restorer.py",
        "    else:\n        state[key] = value\n",
        "",
        (MANAGER.format("everything_comes_back_into_a_run_that_has_made_no_step"),),
        "the position in the data is lost: samples are seen twice",
    ),
    Mutant(
        "The mark of a whole step is written before the step is durable",
        "ezpz_elastic/checkpoint/filesystem.py",
        "        manifest.write(Path(self.path), body, self.create_control)\n        sync_directory(Path(self.path))\n",
        "        manifest.write(Path(self.path), body, self.create_control)\n"
        "        manifest.seal(Path(self.path), body.step, self.create_control)\n"
        "        sync_directory(Path(self.path))\n",
        ("tests/checkpoint/test_order.py::test_everything_is_synced_before_the_rename_that_commits",),
        "after a power cut a step looks whole and is not",
    ),
    Mutant(
        "Sums are computed and never compared",
        "ezpz_elastic/checkpoint/sums.py",
        "        if found != self.sum:\n",
        "        if False:\n",
        (
            "tests/checkpoint/test_filesystem.py"
            "::test_a_flipped_byte_in_any_kind_of_item_is_found_by_whoever_loads_it[small]",
        ),
        "training goes on from weights that nobody ever had",
    ),
    Mutant(
        "The manifest's sizes are not looked at",
        "ezpz_elastic/checkpoint/steps.py",
        "    manifest.check_sizes(path, found)\n",
        "",
        ("tests/checkpoint/test_care.py::test_ls_lists_steps_newest_first_and_why_one_is_broken",),
        "a step with a file missing is listed as whole, and kept instead of a good one",
    ),
    Mutant(
        "Any manifest will do for a step that is marked whole",
        "ezpz_elastic/checkpoint/manifest.py",
        "    if found != marker.manifest_xxh3:\n",
        "    if False:\n",
        (MANAGER.format("a_damaged_step_is_set_aside_with_its_reason_and_the_one_before_is_used[other_manifest]"),),
        "the manifest of another save vouches for this one's files",
    ),
)

WATCH = (
    Mutant(
        "Nobody ever waits too long for a step",
        "ezpz_elastic/observe/hang.py",
        "        return max(BUSY if self._busy else LEAST, TIMES * percentile, PAUSES * self._longest)\n",
        '        return float("inf")\n',
        ("tests/agent/test_hang.py::test_the_limit_is_learned_from_the_steps_or_given",),
        "a job that hangs uses up its allocation in silence",
    ),
    Mutant(
        "The slowest to stand still is not looked for",
        "ezpz_elastic/observe/hang.py",
        "        return last if len(last) <= most else []\n",
        "        return []\n",
        ("tests/agent/test_hang.py::test_who_is_behind",),
        "of all ranks that wait for one, that one is not named",
    ),
    Mutant(
        "Ranks that were looked at at different moments are compared",
        "ezpz_elastic/observe/hang.py",
        "    if any(later.get(item.rank, item.step) != item.step for item in standings):\n",
        "    if False:\n",
        ("tests/agent/test_hang.py::test_who_was_looked_at_first_is_not_behind_a_job_that_goes_on",),
        "a healthy host is named because the hung one was woken by the look at it",
    ),
)

HARNESS = (
    Mutant(
        "The demo's injector kills nothing and says that it did",
        "ezpz_elastic/demo/faults.py",
        "    harm = deaths.kill(victims)\n",
        "    harm = deaths.Harm(tuple(victims), True, 0.0)\n",
        ("tests/demo/test_parts.py::test_a_killed_process_is_seen_dead_and_the_receipt_says_so",),
        "a demo without a fault is passed off as one that survived it",
    ),
    Mutant(
        "The demo does without receipts",
        "ezpz_elastic/demo/checks.py",
        "    if not any(receipt.landed for receipt in mine):\n",
        "    if False:\n",
        ("tests/demo/test_checks.py::test_a_fault_without_a_receipt_fails_however_well_the_job_went",),
        "a fault that never landed counts as one that was handled",
    ),
)

RETRY = (
    Mutant(
        "The outer loop starts a retired host again",
        "ezpz_elastic/retry/pool.py",
        "active = tuple(queue.pop(0) if host in out else host for host in self.active)",
        "active = self.active",
        ("tests/retry/test_hosts.py::test_a_spare_inherits_the_slot_it_fills_and_who_is_benched_queues_up_last",),
        "the relaunch dies on the host that the last one died on",
    ),
    Mutant(
        "The outer loop's watchdog ends a silent attempt and calls it another death",
        "ezpz_elastic/retry/supervise.py",
        "            if left <= 0 and not ready:\n                return True\n",
        "            if left <= 0 and not ready:\n                return False\n",
        ("tests/retry/test_supervise.py::test_silence_ends_an_attempt_with_all_its_processes_and_124",),
        "a hang is told as a crash, and its host as the culprit",
    ),
)

FAULTS = (
    Mutant(
        "A fault leaves its receipt and is not done",
        "ezpz_elastic/faults/modes.py",
        "    mode.inside(scene)\n",
        "",
        ("tests/faults/test_receipts.py::test_a_victim_leaves_its_receipt_before_it_goes_and_goes_only_once",),
        "the harness proves that jobs survive nothing at all",
    ),
    Mutant(
        "Somebody else's kill is claimed as the injector's own",
        "ezpz_elastic/faults/deaths.py",
        "        dead = _seen_dead(held, began + patience) - gone\n",
        "        dead = _seen_dead(held, began + patience)\n",
        ("tests/faults/test_receipts.py::test_somebody_elses_kill_is_no_receipt_for_ours",),
        "the witness says that a fault landed that never was",
    ),
    Mutant(
        "An experiment does without a witness of its faults",
        "ezpz_elastic/faults/experiment.py",
        "        return sorted(set(experiment.fail_at) - landed)\n",
        "        return []\n",
        ("tests/retry/test_must_hold.py::test_an_experiment_whose_fault_was_never_injected_says_so",),
        "a run without a fault counts as one that survived it",
    ),
    Mutant(
        "The judge of finished runs finds nothing",
        "ezpz_elastic/faults/analyze.py",
        "    findings = [*invariants(story), *retirements(story, files.bad_nodes), *conformity(story, on_blind)]\n",
        "    findings: list[Finding] = []\n",
        ("tests/faults/test_analyze.py::test_whatever_is_wrong_is_found_by_the_check_whose_matter_it_is",),
        "every scenario passes it",
    ),
)

SUNSPOT = (
    Mutant(
        "The killer sends no signal and says that all are dead",
        "benchmarks/sunspot/killer.py",
        "    for descriptor in held:\n        signal.pidfd_send_signal(descriptor, signal.SIGKILL)\n",
        "    return dict.fromkeys(held.values(), True)\n",
        ("tests/nodekill/test_killer.py::test_a_victim_is_seen_dead_and_the_receipt_says_so",),
        "an hour of four nodes proves that a job survives nothing at all",
    ),
    Mutant(
        "A killer that killed nothing is content",
        "benchmarks/sunspot/killer.py",
        "    return 0 if landed else 3\n",
        "    return 0\n",
        ("tests/nodekill/test_killer.py::test_a_killer_that_kills_nothing_says_so_and_fails",),
        "the script goes on to judge a job that nothing happened to",
    ),
    Mutant(
        "What presumes a relaunch is judged without one",
        "benchmarks/sunspot/checks.py",
        "    if _relaunched(seen):\n",
        "    if False:\n",
        ("tests/nodekill/test_checks.py::test_without_a_relaunch_what_presumes_one_is_not_judged",),
        "an untouched hostfile still has its hosts: it passed once",
    ),
    Mutant(
        "A check that was not made counts as passed",
        "benchmarks/sunspot/checks.py",
        "if found and all(check.result is Result.PASS for check in found)",
        "if found and all(check.result is not Result.FAIL for check in found[1:])",
        ("tests/nodekill/test_checks.py::test_without_a_kill_nothing_else_is_judged_however_well_the_job_went",),
        "a report that says SKIPPED eight times says PASS in the end",
    ),
)

MUTANTS = (*CLASSIFY, *DECIDE, *MEMBERS, *CHECKPOINT, *WATCH, *HARNESS, *RETRY, *FAULTS, *SUNSPOT)
