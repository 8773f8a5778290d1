"""The demo's parts, each with the real thing it is about: processes that die, disks that run full, journals on disk."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ezpz_elastic.demo.faults import kill
from ezpz_elastic.demo.model import CONTEXT, ByteTransformer, windows
from ezpz_elastic.demo.plot import PLOT
from ezpz_elastic.demo.receipts import read_receipts
from ezpz_elastic.demo.story import Journals, Named, rounds
from ezpz_elastic.demo.text import read_corpus


def test_a_killed_process_is_seen_dead_and_the_receipt_says_so(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        receipt = kill(PLOT[0], {victim.pid: "a victim"}, tmp_path, step=48, complete=lambda: 40)
        assert victim.poll() == -9
    assert (receipt.landed, receipt.pids, receipt.step, receipt.complete) == (True, (victim.pid,), 48, 40)
    assert read_receipts(tmp_path) == (receipt,)


def test_a_process_that_was_already_gone_is_a_fault_that_did_not_land(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    receipt = kill(PLOT[0], {gone.pid: "nobody"}, tmp_path, step=None, complete=lambda: None)
    assert not receipt.landed
    assert receipt.pids == ()


def test_one_victim_of_two_that_was_already_gone_is_not_enough(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        receipt = kill(PLOT[1], {victim.pid: "one", gone.pid: "other"}, tmp_path, step=None, complete=lambda: None)
    assert not receipt.landed
    assert receipt.pids == (victim.pid,)


DISK = """
import json, os, sys
from pathlib import Path
from ezpz_elastic.demo.disk import SmallDisk, narrowed

def write(name):
    try:
        with narrowed(disk.path):
            (disk.path / name).write_bytes(bytes(1 << 20))
    except OSError as error:
        (disk.path / name).unlink()
        return error.errno
    return 0

disk = SmallDisk(Path(sys.argv[1]), mount=sys.argv[2] == "mount")
said = {"real": disk.real, "errno": disk.errno, "why": disk.why_not, "before": write("a")}
disk.fill()
said["full"] = write("b")
(disk.path / "a").unlink()
disk.fill()
said["full again"] = write("c")
disk.heal()
said["healed"] = write("d")
print(json.dumps(said))
"""


def try_disk(tmp_path: Path, how: str) -> dict[str, object]:
    command = [sys.executable, "-c", DISK, str(tmp_path / "disk"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_the_small_disk_runs_full_for_real_and_is_seen_by_nobody_else(tmp_path: Path) -> None:
    said = try_disk(tmp_path, "mount")
    if not said["real"]:
        pytest.skip(f"this machine allows no mount, not even in a user namespace: {said['why']}")
    assert (said["before"], said["full"], said["full again"], said["healed"]) == (0, errno.ENOSPC, errno.ENOSPC, 0)
    assert said["errno"] == errno.ENOSPC
    assert list((tmp_path / "disk").iterdir()) == [], "it was written through to the directory below"
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_where_nothing_can_be_mounted_a_limit_refuses_the_bytes(tmp_path: Path) -> None:
    said = try_disk(tmp_path, "limit")
    assert not said["real"]
    assert (said["before"], said["full"], said["full again"], said["healed"]) == (0, errno.EFBIG, errno.EFBIG, 0)
    assert said["errno"] == errno.EFBIG


def write_journal(run_dir: Path, host: str, *events: dict[str, object]) -> None:
    path = run_dir / "journal" / f"{host}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for event in events:
            file.write(json.dumps({"ts": 1.0, "host": host, "run_id": "demo", "round": 1, **event}) + "\n")


def test_a_round_is_put_together_from_all_journals(tmp_path: Path) -> None:
    verdict = {
        "kind": "bad_node_known",
        "cause": "host_lost",
        "reason": "it is gone",
        "hosts": [{"name": "b", "provenance": "lost"}],
        "suspects": [{"name": "a", "weight": 0.2, "why": "silent"}],
    }
    write_journal(
        tmp_path,
        "a",
        {"event": "round_committed", "roster": ["a", "b"], "world_size": 2},
        {"event": "span", "name": "rendezvous", "seconds": 0.5},
        {"event": "span", "name": "stop", "seconds": 0.1},
        {"event": "checkpoint_saved", "step": 20},
        {"event": "report", "step": 31},
        {"event": "verdict", **verdict},
        {"event": "decision", "action": "restart", "reason": "why", "exit_code": 0},
        {"event": "host_retired", "retired": "b", "provenance": "lost"},
        {"event": "something_newer", "field": 1},
    )
    write_journal(
        tmp_path,
        "b",
        {"event": "worker_started", "rank": 1, "pid": 12},
        {"event": "span", "name": "rendezvous", "seconds": 99.0},
        {"event": "span", "name": "stop", "seconds": 0.2},
        {"event": "report", "step": None},
    )
    journals = Journals(tmp_path)
    journals.poll()
    (life,) = rounds(journals.events)
    assert (life.hosts, life.world_size, life.workers) == (("a", "b"), 2, {"b": (12,)})
    assert (life.kind, life.cause, life.named, life.suspects) == (
        "bad_node_known",
        "host_lost",
        (Named("b", "lost"),),
        ("a",),
    )
    assert (life.action, life.retired, life.saved, life.reached) == ("restart", (Named("b", "lost"),), (20,), 31)
    assert life.spans == {"rendezvous": 0.5, "stop": 0.2}, "the rendezvous is slot 0's, the stop the slowest one's"


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    write_journal(tmp_path, "a", {"event": "one"})
    journals = Journals(tmp_path)
    assert [event.name for event in journals.poll()] == ["one"]
    whole = json.dumps({"ts": 1.0, "host": "a", "run_id": "demo", "round": 1, "event": "two"}) + "\n"
    path = tmp_path / "journal" / "a.jsonl"
    with path.open("a") as file:
        file.write(whole[:30])
        file.flush()
        assert journals.poll() == []
        file.write(whole[30:])
    assert [event.name for event in journals.poll()] == ["two"]
    assert journals.poll() == []


def test_the_text_is_split_by_file_and_the_same_for_every_rank(tmp_path: Path) -> None:
    for number in range(16):
        (tmp_path / f"m{number:02}.py").write_bytes(bytes([number]) * 100)
    corpus = read_corpus(tmp_path)
    assert set(corpus.train.tolist()).isdisjoint(corpus.validation.tolist())
    assert len(corpus.train) == 1400
    assert torch.equal(read_corpus(tmp_path).train, corpus.train)
    with pytest.raises(FileNotFoundError):
        read_corpus(tmp_path / "nowhere")


def test_the_model_learns_and_cannot_look_ahead() -> None:
    torch.manual_seed(0)
    text = read_corpus(limit=200_000).train
    model = ByteTransformer()
    batch = windows(text, 4, seed=1)
    assert torch.equal(batch, windows(text, 4, seed=1))
    assert batch.shape == (4, CONTEXT + 1)
    before = float(model(batch).detach())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    assert float(model(batch).detach()) < before - 1
    model.eval()
    with torch.no_grad():
        seen = model.blocks(model.tokens(batch[:, :-1]) + model.places, mask=model.mask, is_causal=True)
        other = batch[:, :-1].clone()
        other[:, -1] = (other[:, -1] + 1) % 256
        moved = model.blocks(model.tokens(other) + model.places, mask=model.mask, is_causal=True)
    assert torch.allclose(seen[:, :-1], moved[:, :-1], atol=1e-5)
    assert not torch.allclose(seen[:, -1], moved[:, -1], atol=1e-5)


def test_the_demo_refuses_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    command = [str(Path(sys.executable).parent / "ezpz-elastic"), "demo", "--run-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "is not empty" in done.stderr
