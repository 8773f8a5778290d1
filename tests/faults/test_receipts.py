"""A fault is done once, a receipt is whole or not there, and a death that was not seen is not claimed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from ezpz_elastic.faults.deaths import kill
from ezpz_elastic.faults.modes import INSIDE, MODES, OUTSIDE, commit, inflict
from ezpz_elastic.faults.receipts import Receipt, Receipts
from ezpz_elastic.faults.scene import Scene, Targets

ABOUT = Receipt("exit", 0, None, "victim", attempt=1, step=3)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def in_a_child(mode: str, scene: Scene) -> int:
    """Exit code of a process that does a fault to itself, or would if it were not spent."""
    code = (
        "import sys, msgspec\nfrom ezpz_elastic.faults.modes import commit\n"
        "from ezpz_elastic.faults.scene import Scene\n"
        "receipt = commit(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Scene, dec_hook=lambda t, o: t(o)))\n"
        "print('spent' if receipt is None else 'survived')"
    )
    told = msgspec.json.encode(scene, enc_hook=str).decode()
    command = [sys.executable, "-c", code, mode, told]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


def test_of_many_who_claim_a_fault_at_once_as_many_get_it_as_times_it_is_to_be_done(tmp_path: Path):
    receipts = Receipts(tmp_path / "receipts")
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: receipts.claim(ABOUT, times=3), range(40)))
    assert sorted(claim.number for claim in claims if claim is not None) == [1, 2, 3]
    assert [receipt.number for receipt in receipts.read()] == [1, 2, 3]
    assert receipts.count("exit") == 3
    assert not [path for path in (tmp_path / "receipts").iterdir() if path.name.startswith(".")]


def test_a_name_that_begins_like_another_is_counted_apart(tmp_path: Path):
    receipts = Receipts(tmp_path)
    receipts.claim(ABOUT, name="exit-late")
    receipts.claim(ABOUT, name="exit")
    assert (receipts.count("exit"), receipts.count("exit-late")) == (1, 1)


@pytest.mark.parametrize(
    ("mode", "code"), [("exit", 3), ("sigkill", -signal.SIGKILL), ("segv", -signal.SIGSEGV), ("raise_before", 1)]
)
def test_a_victim_leaves_its_receipt_before_it_goes_and_goes_only_once(tmp_path: Path, mode: str, code: int):
    scene = Scene(tmp_path, attempt=2, step=7, rank=1, host="node1")
    assert in_a_child(mode, scene) == code
    (receipt,) = Receipts(tmp_path).read()
    assert (receipt.mode, receipt.attempt, receipt.step, receipt.rank, receipt.host) == (mode, 2, 7, 1, "node1")
    assert receipt.landed is None, "a victim cannot see its own death"
    assert in_a_child(mode, scene) == 0, "it was spent"
    assert len(Receipts(tmp_path).read()) == 1


def test_a_full_device_is_a_real_errno(tmp_path: Path):
    with pytest.raises(OSError, match="No space left on device"):
        commit("full_ost", Scene(tmp_path, attempt=1, step=1))


def test_a_truncated_shard_is_the_largest_file_of_the_checkpoint(tmp_path: Path):
    step = tmp_path / "step-5"
    step.mkdir()
    for name, size in (("__0_0.distcp", 100), ("__1_0.distcp", 300), ("manifest.json", 1000)):
        (step / name).write_bytes(b"x" * size)
    assert in_a_child("truncated_shard", Scene(tmp_path / "receipts", 1, 5, checkpoint=step)) == 3
    assert [(step / name).stat().st_size for name in ("__0_0.distcp", "__1_0.distcp")] == [100, 150]


def test_an_injector_sees_its_victims_die_and_says_when(tmp_path: Path):
    victims = [sleeper(), sleeper()]
    targets = Targets({victim.pid: f"worker {n}" for n, victim in enumerate(victims)}, host="node2")
    receipt = inflict("host_loss", targets, Receipts(tmp_path), ABOUT)
    assert receipt is not None
    assert receipt.landed
    assert receipt.mode == "host_loss"
    assert receipt.host == "node2"
    assert receipt.witness == "injector"
    assert set(receipt.pids) == {victim.pid for victim in victims}
    assert [victim.wait(60) for victim in victims] == [-signal.SIGKILL] * 2
    assert Receipts(tmp_path).read() == (receipt,)
    assert inflict("host_loss", targets, Receipts(tmp_path), ABOUT) is None, "it was spent"


def test_somebody_elses_kill_is_no_receipt_for_ours():
    gone, living = sleeper(), sleeper()
    gone.kill()
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # dead and not yet reaped: its pid cannot be another's
    harm = kill([gone.pid, living.pid])
    assert not harm.landed
    assert harm.pids == (living.pid,)
    assert not kill([]).landed, "nothing was harmed"
    gone.wait(60)
    living.wait(60)


@pytest.mark.parametrize("at", [0, 1])
def test_who_is_gone_when_the_signal_comes_is_ours_only_if_it_may_have_died_of_the_first(at: int, monkeypatch):
    victims = [sleeper(), sleeper()]
    send, sent = signal.pidfd_send_signal, itertools.count()

    def late(descriptor: int, signum: int) -> None:
        if next(sent) == at:
            victims[at].kill()
            victims[at].wait(60)  # reaped: it takes no signal any more
        send(descriptor, signum)

    monkeypatch.setattr(signal, "pidfd_send_signal", late)
    harm = kill([victim.pid for victim in victims])
    assert harm.landed == (at == 1)
    assert set(harm.pids) == {victim.pid for victim in victims[1 - at :]}
    assert [victim.wait(60) for victim in victims] == [-signal.SIGKILL] * 2


def test_a_stopped_process_is_seen_stopped(tmp_path: Path):
    victim = sleeper()
    try:
        receipt = inflict("worker_stop", Targets({victim.pid: "a worker"}), Receipts(tmp_path), ABOUT)
        assert receipt is not None
        assert receipt.landed
        assert Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    finally:
        victim.kill()
        victim.wait(60)


def test_a_cut_that_nobody_sees_has_not_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ezpz_elastic.faults.outside.PATIENCE", 0.05)
    receipt = inflict("network_cut", Targets(cut=lambda: None, seen=lambda: False), Receipts(tmp_path), ABOUT)
    assert receipt is not None
    assert receipt.landed is False
    with pytest.raises(ValueError, match="Targets"):
        inflict("disk_fill", Targets(), Receipts(tmp_path), ABOUT)


def test_every_mode_is_done_by_exactly_one_side():
    assert set(INSIDE) | set(OUTSIDE) == set(MODES)
    assert not set(INSIDE) & set(OUTSIDE)
    assert all(mode.name == name for name, mode in MODES.items())
    with pytest.raises(ValueError, match="from outside"):
        commit("host_loss", Scene(Path("unused"), 1, 1))
    with pytest.raises(ValueError, match="inside"):
        inflict("exit", Targets(), Receipts(Path("unused")), ABOUT)
