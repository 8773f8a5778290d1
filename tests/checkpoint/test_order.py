"""In which order a save makes things durable: what a power cut would show, and a kill cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint.training import Training

from ezpz_elastic.checkpoint import CheckpointManager


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """``(what, path)`` for every sync and rename, in order."""
    seen: list[tuple[str, str]] = []
    sync, rename, replace = os.fsync, os.rename, os.replace

    def fsync(fd: int) -> None:
        seen.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        sync(fd)

    def moving(real: Callable[..., None]) -> Callable[..., None]:
        def move(old: Path, new: Path) -> None:
            seen.append(("name", str(new)))
            real(old, new)

        return move

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", moving(rename))
    monkeypatch.setattr(os, "replace", moving(replace))
    return seen


def test_everything_is_synced_before_the_rename_that_commits(tmp_path: Path, trace: list[tuple[str, str]]) -> None:
    CheckpointManager(tmp_path).save(1, Training().state())
    commit = trace.index(("name", f"{tmp_path}/step-1"))
    partial = trace[commit - 1][1]
    assert partial.startswith(f"{tmp_path}/step-1.partial-")
    before = trace[:commit]
    for name in ("__0_0.distcp", ".metadata.tmp", "manifest.json.tmp", ".complete.tmp"):
        assert ("sync", f"{partial}/{name}") in before, name
    # .complete is the last file, its directory is synced after it, and the parent after the commit.
    complete = before.index(("sync", f"{partial}/.complete.tmp"))
    assert before.index(("sync", f"{partial}/manifest.json.tmp")) < before.index(("sync", partial)) < complete
    assert before.index(("name", f"{partial}/.complete")) > complete
    assert before[-1] == ("sync", partial)
    assert trace[commit + 1] == ("sync", str(tmp_path))


def test_a_step_is_out_of_sight_durably_before_its_first_file_goes(
    tmp_path: Path, trace: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def unlinking(path: object, **kwargs: object) -> None:
        trace.append(("gone", str(path)))
        unlink(path, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", unlinking)
    manager = CheckpointManager(tmp_path, keep_last=1)
    for step in (1, 2):
        manager.save(step, {"n": step})
    manager.close()
    away = trace.index(("name", f"{tmp_path}/step-1.deleting-0"))
    shard = next(n for n, (what, path) in enumerate(trace) if what == "gone" and path.endswith("__0_0.distcp"))
    assert ("sync", str(tmp_path)) in trace[away:shard]
