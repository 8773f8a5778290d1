"""The storage alone, under plain ``dcp.save`` and ``dcp.load``; and targets that fail under a write."""

from __future__ import annotations

import errno
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint.training import flip_byte, shards
from torch.distributed.checkpoint.api import CheckpointException

from ezpz_elastic.checkpoint import CheckpointManager, SaveFailed, StripedWriter, VerifiedReader, sums
from ezpz_elastic.checkpoint.sums import read_table

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def tensors() -> dict[str, Any]:
    """Large and small, in several layouts and types."""
    torch.manual_seed(3)
    return {
        "large": torch.randn(1024, 512),
        "transposed": torch.randn(512, 700).t(),
        "view": torch.randn(2000, 300)[10:1500],
        "half": torch.randn(900, 700).to(torch.bfloat16),
        "small": torch.arange(5),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "list": [1, 2, 3],
    }


def blank() -> dict[str, Any]:
    """The same shapes with nothing in them."""
    return {
        name: torch.zeros_like(value, memory_format=torch.contiguous_format) if torch.is_tensor(value) else None
        for name, value in tensors().items()
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_plain_dcp_with_our_storage_round_trips(tmp_path: Path, threads: int) -> None:
    state = tensors()
    dcp.save(state, storage_writer=StripedWriter(tmp_path, thread_count=threads))
    assert len(shards(tmp_path)) == threads
    for reader in (VerifiedReader(tmp_path), None):
        back = blank()
        dcp.load(back, storage_reader=reader, checkpoint_id=None if reader else tmp_path)
        for name, value in state.items():
            assert torch.equal(back[name], value) if torch.is_tensor(value) else back[name] == value, name


def test_every_item_has_a_sum_of_its_own(tmp_path: Path) -> None:
    dcp.save(tensors(), storage_writer=StripedWriter(tmp_path))
    with shards(tmp_path)[0].open("rb") as file:
        found = read_table(file, shards(tmp_path)[0])
    assert found is not None
    stored = VerifiedReader(tmp_path).read_metadata().storage_data.values()
    assert {(segment.offset, segment.length) for segment in found[0]} == {(i.offset, i.length) for i in stored}


@pytest.mark.parametrize("name", ["large", "transposed", "small", "list"])
def test_a_flipped_byte_in_any_kind_of_item_is_found_by_whoever_loads_it(tmp_path: Path, name: str) -> None:
    dcp.save(tensors(), storage_writer=StripedWriter(tmp_path))
    stored = VerifiedReader(tmp_path).read_metadata().storage_data
    (info,) = (entry for index, entry in stored.items() if index.fqn == name)
    flip_byte(shards(tmp_path)[0], info.offset + info.length // 2)
    with pytest.raises(CheckpointException, match="were written with"):
        dcp.load(blank(), storage_reader=VerifiedReader(tmp_path))
    others = {other: value for other, value in blank().items() if other != name}
    dcp.load(others, storage_reader=VerifiedReader(tmp_path))


def test_a_shard_of_another_save_is_not_taken_for_this_one(tmp_path: Path) -> None:
    for step in ("one", "three"):
        dcp.save({"weights": torch.full((50,), float(len(step)))}, storage_writer=StripedWriter(tmp_path / step))
    shards(tmp_path / "three")[0].replace(tmp_path / "one/__0_0.distcp")
    with pytest.raises(CheckpointException, match="belongs to another save"):
        dcp.load({"weights": torch.zeros(50)}, storage_reader=VerifiedReader(tmp_path / "one"))


def flip_bit(path: Path, at: int, bit: int) -> None:
    """Change one bit in place."""
    body = bytearray(path.read_bytes())
    body[at] ^= 1 << bit
    path.write_bytes(body)


ARCHIVE: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "its first byte": lambda item: (0, 0),
    "the name of the function that makes the tensor": lambda item: (item.index(b"_rebuild_tensor_v2") + 17, 0),
    "where the bytes of the tensor begin": lambda item: (item.index(b"/data/0") - len("archive") - 1, 7),
}


@pytest.mark.parametrize("summed", [True, False], ids=["with sums", "plain DCP"])
@pytest.mark.parametrize("where", ARCHIVE)
def test_one_flipped_bit_in_the_archive_around_a_large_tensor_passes_the_step_over(
    tmp_path: Path, where: str, summed: bool
) -> None:
    state = {"weights": torch.randn(600, 600)}
    manager = CheckpointManager(tmp_path)
    for step in (1, 2):
        manager.save(step, state)
    if not summed:
        shutil.rmtree(tmp_path / "step-2")
        dcp.save(state, checkpoint_id=tmp_path / "step-2")
    (shard,) = shards(tmp_path / "step-2")
    body = shard.read_bytes()
    begin = body.rindex(b"PK\x03\x04", 0, body.rindex(b"archive/data.pkl", 0, body.index(b"archive/data/0")))
    at, bit = ARCHIVE[where](body[begin:])
    flip_bit(shard, begin + at, bit)
    assert manager.restore({"weights": torch.zeros(600, 600)}) == 1
    assert shard.name in (tmp_path / "step-2.corrupt/reason.txt").read_text()


class FailingWrites:
    """Makes the first ``times`` large writes fail with ``code``, as a target that goes down would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
        self.failed = 0
        outer = self

        class FileIO(io.FileIO):
            def write(self, data: Any, /) -> int:
                if memoryview(data).nbytes > 1000 and outer.failed < times:
                    outer.failed += 1
                    raise OSError(code, errno.errorcode[code], str(self.name))
                return super().write(data)

        monkeypatch.setattr(sums.io, "FileIO", FileIO)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ESHUTDOWN])
def test_a_connection_that_comes_back_costs_one_more_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    writes = FailingWrites(monkeypatch, code, times=1)
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"weights": torch.ones(5000)})
    assert writes.failed == 1
    state = {"weights": torch.zeros(5000)}
    assert manager.restore(state) == 1
    assert torch.equal(state["weights"], torch.ones(5000))


@pytest.mark.parametrize(("code", "attempts"), [(errno.EIO, 2), (errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EROFS, 1)])
def test_what_does_not_come_back_fails_the_save_with_its_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, attempts: int
) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"weights": torch.ones(5000)})
    writes = FailingWrites(monkeypatch, code, times=100)
    with pytest.raises(SaveFailed, match=rf"\[Errno {code}\]") as error:
        manager.save(2, {"weights": torch.ones(5000)})
    assert (writes.failed, error.value.errno) == (attempts, code)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_a_thread_that_fails_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FailingWrites(monkeypatch, errno.ENOSPC, times=1)  # DCP's own threads would leave a step without some items
    with pytest.raises(SaveFailed, match="Errno 28"):
        CheckpointManager(tmp_path, threads=3).save(1, {f"w{n}": torch.ones(5000) for n in range(6)})
    assert not list(tmp_path.glob("step-*"))
