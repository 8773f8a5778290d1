"""Which hosts there are, who stands by, who takes whose slot, and what a person can get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.retry_loop import HOSTS, RETRY, Loop

from ezpz_elastic.cli import main
from ezpz_elastic.errors import UsageError
from ezpz_elastic.machines import find_machine
from ezpz_elastic.retry.pool import Pool, read_allocation
from rendezvous.records import Action, Decision, Retirement

SUNSPOT, GENERIC = find_machine("sunspot")[0], find_machine("generic")[0]


def decision(*retired: tuple[str, bool]) -> Decision:
    out = tuple(Retirement(host, "scraped", "told", benched) for host, benched in retired)
    return Decision(1, Action.RESTART, "k", "c", "r", retired=out)


def usage(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that wrong usage ends in."""
    with pytest.raises(SystemExit) as caught:
        main(["retry", *map(str, words)])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_hostfile_may_have_comments_slots_blank_lines_and_the_same_host_twice(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text(
        "# allocation\n\nx1922c7s6b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov slots=12\nx1922c7s7b0n0:12  # the second\n"
        "x1922c7s6b0n0.hostmgmt2001.cm.sunspot.alcf.anl.gov\nx1922c7s7b0n0\n"
    )
    hosts = read_allocation(path, {}, SUNSPOT)
    assert hosts == ("x1922c7s6b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov", "x1922c7s7b0n0")


def test_the_list_comes_from_the_option_then_pbs_then_slurm(tmp_path: Path):
    option, pbs = tmp_path / "option", tmp_path / "pbs"
    option.write_text("a1\n")
    pbs.write_text("b1\nb1\nb2\n")
    environ = {"PBS_NODEFILE": str(pbs), "SLURM_JOB_NODELIST": "nid[001-003]"}
    assert read_allocation(option, environ, GENERIC) == ("a1",)
    assert read_allocation(None, environ, GENERIC) == ("b1", "b2")
    del environ["PBS_NODEFILE"]
    assert read_allocation(None, environ, GENERIC) == ("nid001", "nid002", "nid003")
    with pytest.raises(UsageError, match="no allocation"):
        read_allocation(None, {}, GENERIC)
    with pytest.raises(UsageError, match="names no host"):
        read_allocation(None, {"SLURM_JOB_NODELIST": "nid[001-"}, GENERIC)


def test_spares_are_all_that_are_left_or_as_many_as_asked_for():
    assert Pool.split(("a", "b", "c", "d"), 2, None) == Pool(("a", "b"), ("c", "d"))
    assert Pool.split(("a", "b", "c", "d"), 2, 1) == Pool(("a", "b"), ("c",))
    assert Pool.split(("a", "b"), 2, None) == Pool(("a", "b"))


def test_a_spare_inherits_the_slot_it_fills_and_who_is_benched_queues_up_last():
    pool = Pool(("a", "b", "c"), ("s", "t"))
    assert pool.after(decision(("b", False))) == Pool(("a", "s", "c"), ("t",))
    assert pool.after(decision(("a", False), ("c", False))) == Pool(("s", "b", "t"))
    assert pool.after(decision(("b", True))) == Pool(("a", "s", "c"), ("t", "b"))
    assert pool.after(decision()) == pool
    with pytest.raises(ValueError, match="stand by"):
        Pool(("a",)).after(decision(("a", False)))


def test_what_a_person_can_get_wrong_is_one_line(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    for name in ("PBS_NODEFILE", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "empty").write_text("# nobody\n")
    two = ["--hostfile", "two"]
    assert "no command" in usage(capsys, "--nhosts", 2, *two)
    assert "no command" in usage(capsys, "--nhosts", 2, *two, "--")
    assert "no --nhosts; expected 1 or more" in usage(capsys, *two, "--", "true")
    assert "--nhosts -1" in usage(capsys, "--nhosts", -1, *two, "--", "true")
    assert "--nhosts 3, and the allocation has 2 hosts" in usage(capsys, "--nhosts", 3, *two, "--", "true")
    assert "--spares 2" in usage(capsys, "--nhosts", 1, "--spares", 2, *two, "--", "true")
    for value in ("many", "²"):
        assert f"--spares {value}; expected auto" in usage(capsys, "--nhosts", 1, "--spares", value, *two, "--", "true")
    assert "missing: No such file" in usage(capsys, "--nhosts", 1, "--hostfile", "missing", "--", "true")
    assert "names no host" in usage(capsys, "--nhosts", 1, "--hostfile", "empty", "--", "true")
    assert "no allocation" in usage(capsys, "--nhosts", 1, "--", "true")
    assert "nosuchcommand cannot be run" in usage(capsys, "--nhosts", 1, *two, "--", "nosuchcommand")
    assert "--on-blind maybe" in usage(capsys, "--nhosts", 1, "--on-blind", "maybe", *two, "--", "true")
    for value in ("nan", "inf", "-1"):
        assert "--idle-timeout" in usage(capsys, "--nhosts", 1, "--idle-timeout", value, *two, "--", "true")
        assert "--grace" in usage(capsys, "--nhosts", 1, "--grace", value, *two, "--", "true")
    for value in ("soon", "nan", "inf", "-1", "1:-30", "1e400h"):
        assert f"'{value}' is no duration" in usage(capsys, "--nhosts", 1, f"--remaining={value}", *two, "--", "true")
    assert "cannot use two" in usage(capsys, "--nhosts", 1, "--run-dir", "two", *two, "--", "true")
    assert not (tmp_path / "ezpz-runs").exists(), "nothing was begun"


def test_the_command_is_given_the_hostfile_and_the_number_of_hosts_and_is_otherwise_left_alone(loop: Loop):
    show = 'cat "$1"; echo "$2"; printf "%s\\n" "$3" "$4" "$EZPZ_ATTEMPT"; test "$EZPZ_HOSTFILE" = "$1"'
    code, out, err = loop.run(["sh", "-c", show, "sh", "{hostfile}", "n={nhosts}", "{other}", "--"])
    assert code == 0, err
    assert out.decode() == f"{HOSTS[0]}\n{HOSTS[1]}\nn=2\n{{other}}\n--\n1\n"
    assert Path(loop.run_dir / "active.hostfile").read_text() == f"{HOSTS[0]}\n{HOSTS[1]}\n"


def test_no_word_of_the_command_is_ours_also_without_the_two_dashes(loop: Loop):
    words = ["--verbose", "--nhosts=7", "--help", "--", "--run-dir", "--verbose"]
    ours = ["--nhosts=2", f"--hostfile={loop.hostfile}", f"--run-dir={loop.run_dir}"]
    code, out, err = loop.run_plainly([*RETRY, *ours, "sh", "-c", 'printf "%s\\n" "$@"', "sh", *words])
    assert code == 0, err
    assert out.decode().splitlines() == words


def test_a_reader_of_the_hostfile_never_sees_half_of_it(loop: Loop):
    """Each attempt's command holds the file open: a list that was written over it would show there."""
    script = loop.script(
        "import sys, os\n"
        "n, path = int(os.environ['EZPZ_ATTEMPT']), sys.argv[1]\n"
        "before = f'link-{n}'\n"
        "os.link(path, before)\n"
        "print('step=%d ' % n)\n"
        "if n < 3: sys.exit('%s: shepherd died from signal 9' % open(path).read().split()[1])\n"
    )
    code, _, err = loop.run([*script, "{hostfile}"])
    assert code == 0, err
    kept = [(loop.directory / f"link-{n}").read_text().split() for n in (1, 2, 3)]
    assert kept == [[HOSTS[0], HOSTS[slot]] for slot in (1, 2, 3)]
    assert loop.rosters() == [[0, 1], [0, 2], [0, 3]]


def test_a_second_blind_failure_rotates_a_host_to_the_back_of_the_queue_and_says_that_it_was_a_guess(loop: Loop):
    script = loop.script(
        "import os, sys\nprint('step=7 ', flush=True)\nsys.exit(0 if os.environ['EZPZ_ATTEMPT'] == '3' else 9)"
    )
    code, _, err = loop.run(script, "--spares=1")
    assert code == 0, err
    assert loop.rosters() == [[0, 1], [0, 1], [0, 2]]
    assert loop.text("bad_nodes.txt") == f"{HOSTS[1]}  blind  attempt=2\n"
    assert loop.outcome()["hosts_retired"] == [], "it is not retired"
    assert loop.events("round_committed")[-1]["spares"] == [HOSTS[1]]


def test_a_named_host_that_nobody_can_replace_ends_the_job_as_exhausted(loop: Loop):
    script = loop.script(f"import sys\nprint('step=7 ')\nsys.exit('{HOSTS[1]}: shepherd died from signal 9')")
    code, _, err = loop.run(script, "--spares=0")
    assert code == 1
    assert "FAILOVER STOP: exhausted (host_lost; x1922c7s1b0n0" in err
    assert loop.outcome()["kind"] == "exhausted"


def test_two_attempts_without_a_step_are_stuck_unless_the_program_is_known_to_print_none(loop: Loop):
    code, _, err = loop.run(["sh", "-c", "exit 5"], "--spares=0")
    assert code == 5
    assert "FAILOVER STOP: stuck_pre_training" in err
    assert len(loop.events("round_committed")) == 2
    code, _, err = loop.run(["sh", "-c", "exit 5"], "--spares=0", "--no-steps", "--max-retries=1")
    assert code == 5
    assert "stuck_pre_training" not in err


def test_exit_code_0_beside_a_crash_is_no_success(loop: Loop):
    inner = "echo step=4; [ $EZPZ_ATTEMPT = 2 ] || echo '[ezpz/launch] Execution finished with 7.'"
    code, _, err = loop.run(["sh", "-c", inner])
    assert code == 0
    assert len(loop.verdicts()) == 2, err
    assert loop.verdicts()[0][0] != "success"


def test_a_used_run_directory_keeps_its_logs_and_goes_on_counting(loop: Loop):
    loop.run(["echo", "step=1"])
    loop.run(["echo", "step=2"])
    assert (loop.log(1), loop.log(2)) == (b"step=1\n", b"step=2\n")


def test_progress_gives_restarts_back(loop: Loop):
    """Five deaths with a budget of one, each after a further checkpoint."""
    script = loop.script(
        "import os, sys\nn = int(os.environ['EZPZ_ATTEMPT'])\nprint(f'step={10 * n} ')\n"
        "print(f'saved checkpoint: /x/step-{10 * n}')\nsys.exit(0 if n == 6 else 9)"
    )
    code, _, err = loop.run(script, "--max-retries=1", "--on-blind=never")
    assert code == 0, err
    assert len(loop.events("round_committed")) == 6


def test_where_an_attempt_begins_tells_of_the_checkpoint_it_began_with(loop: Loop):
    script = loop.script(
        "import os, sys\nn = int(os.environ['EZPZ_ATTEMPT'])\nfor s in range(10 * n - 9, 10 * n + 3):\n"
        "    print(f'step={s} ')\n"
        "sys.exit(0 if n == 6 else 9)"
    )
    code, _, err = loop.run(script, "--max-retries=1", "--on-blind=never")
    assert code == 0, err
    assert [event["durable_step"] for event in loop.events("progress")] == [None, 10, 20, 30, 40, 50]


DISK = """
import os, sys
from pathlib import Path
from ezpz_elastic.demo.disk import SmallDisk
disk = SmallDisk(Path(sys.argv[1]))
if not disk.real:
    print(disk.why_not)
    raise SystemExit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_full_disk_under_the_run_directory_loses_lines_and_not_the_job(loop: Loop):
    """More output than the disk takes, and then the line that names the host: it is judged from memory."""
    loop.run_dir = loop.directory / "small" / "run"
    script = loop.script(
        "import os, sys\nprint('step=3 ')\nif os.environ['EZPZ_ATTEMPT'] == '1':\n"
        "    for _ in range(40): print('.' * (1 << 20))\n"
        f"    sys.exit('{HOSTS[1]}: shepherd died from signal 9')\n"
        "print(open(sys.argv[1]).read())"
    )
    retry = [
        *RETRY,
        "--nhosts=2",
        f"--hostfile={loop.hostfile}",
        f"--run-dir={loop.run_dir}",
        "--",
        *script,
        "{hostfile}",
    ]
    code, out, err = loop.run_plainly([RETRY[0], "-c", DISK, str(loop.run_dir.parent), *retry])
    if code == 77:
        pytest.skip(f"no disk of our own here: {out.decode().strip()}")
    assert "No space left on device" in err, "the disk did run full"
    assert code == 0, err
    assert f"{HOSTS[1]} is retired and {HOSTS[2]} takes the slot" in err
    assert out.decode().split()[-2:] == [HOSTS[0], HOSTS[2]], "the second attempt was given the new list"


def test_the_default_run_directory_is_named_after_the_job(loop: Loop):
    environment = {"PBS_JOBID": "12473751.sunspot-pbs-0001"}
    words = [*RETRY, "--nhosts=2", f"--hostfile={loop.hostfile}", "--", "echo", "step=1"]
    assert loop.run_plainly(["env", *(f"{key}={value}" for key, value in environment.items()), *words])[0] == 0
    assert (loop.directory / "ezpz-runs" / "retry-12473751" / "attempt-1.log").read_text() == "step=1\n"
