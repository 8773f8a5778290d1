"""Where a round's workers write: ``rounds/<n>/<rank>/`` in the run directory; and what they are told by environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import to_map

from ezpz_elastic.console import Console
from ezpz_elastic.guard import TAG
from ezpz_elastic.observe import progress
from ezpz_elastic.observe.stacks import STACKS_FILE

__all__ = ["Handover", "RoundLogs", "WorkerFiles"]


class Handover(Exception):
    """torch has prepared the workers' environments; ``envs`` are they, by local rank."""

    def __init__(self, envs: dict[int, dict[str, str]]) -> None:
        super().__init__("the workers are started by somebody else")
        self.envs = envs


@dataclass(frozen=True)
class WorkerFiles:
    """One worker's files in one round."""

    stdout: Path
    stderr: Path
    error: Path
    progress: Path
    events: Path
    stacks: Path


class RoundLogs(LogsSpecs):  # type: ignore[misc]  # torch is not followed by mypy
    """torch's ``LogsSpecs`` for one agent: files per round and rank, and a copy of every line on the console.

    Args:
        chosen: the specs torchrun built from ``--redirects``, ``--tee`` and ``--local-ranks-filter``; a stream that
            is redirected and not teed, or a rank that is filtered out, stays off the console.
        run_dir: the run directory.
        scratch: local directory for memory-mapped files.
        tag: the agent's tag, inherited by everything its workers start.
        console: copies the files to the console.
    """

    def __init__(self, chosen: LogsSpecs, run_dir: Path, scratch: Path, tag: str, console: Console) -> None:
        super().__init__(str(run_dir), chosen._redirects, chosen._tee, chosen._local_ranks_filter)
        self._run_dir, self._scratch, self._tag, self._console = run_dir.absolute(), scratch, tag, console
        self.round = 1
        self.chores: Sequence[str] | None = None
        self.prefix_template: str | None = None
        self.torch_tees = False
        self.hand_over = False
        self.files: dict[int, WorkerFiles] = {}

    @property
    def root_log_dir(self) -> str:
        """The run directory."""
        return str(self._run_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make this round's files and complete the workers' environment.

        Args:
            envs: environment of each local rank; extended in place.

        Raises:
            Handover: ``hand_over`` was set; it is what torch does last before it makes its context.
        """
        if self.hand_over:
            self.hand_over = False
            raise Handover(envs)
        redirects, tee = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for local_rank, env in envs.items():
            files = self._make(local_rank, int(env["RANK"]))
            self.files[local_rank] = files
            env.update(
                {
                    "TORCHELASTIC_ERROR_FILE": str(files.error),
                    "EZPZ_RUN_DIR": str(self._run_dir),
                    "EZPZ_ROUND": str(self.round),
                    "EZPZ_CHORES": os.environ.get("EZPZ_CHORES", "") if self.chores is None else ",".join(self.chores),
                    "EZPZ_EVENTS_FILE": str(files.events),
                    progress.PROGRESS_FILE: str(files.progress),
                    STACKS_FILE: str(files.stacks),
                    TAG: self._tag,
                }
            )
            if self.torch_tees or (self._local_ranks_filter and local_rank not in self._local_ranks_filter):
                continue
            prefix = Template(self.prefix_template or "").safe_substitute(
                role_name=env["ROLE_NAME"], rank=env["RANK"], local_rank=local_rank
            )
            for std, path, stream in ((Std.OUT, files.stdout, sys.stdout), (Std.ERR, files.stderr, sys.stderr)):
                if std in tee[local_rank] or std not in redirects[local_rank]:
                    self._console.add(path, stream.buffer, prefix)
        stdouts = {rank: str(files.stdout) for rank, files in self.files.items()}
        stderrs = {rank: str(files.stderr) for rank, files in self.files.items()}
        return LogsDest(
            stdouts=stdouts,
            stderrs=stderrs,
            # torch's own tee feeds --duplicate-*-filters; it prefixes every line, so it is not used otherwise.
            tee_stdouts=stdouts if self.torch_tees else {},
            tee_stderrs=stderrs if self.torch_tees else {},
            error_files={rank: str(files.error) for rank, files in self.files.items()},
            filtered_stdout=str(self._run_dir / "rounds" / str(self.round) / "filtered_stdout.log"),
            filtered_stderr=str(self._run_dir / "rounds" / str(self.round) / "filtered_stderr.log"),
        )

    def _make(self, local_rank: int, rank: int) -> WorkerFiles:
        directory = self._run_dir / "rounds" / str(self.round) / str(rank)
        directory.mkdir(parents=True, exist_ok=True)
        files = WorkerFiles(
            directory / "stdout.log",
            directory / "stderr.log",
            directory / "error.json",
            self._scratch / f"progress-{local_rank}",
            directory / "events.jsonl",
            self._scratch / f"stacks-{local_rank}",
        )
        # Of an earlier run in the same directory: the console would begin with old lines and miss as many new ones.
        for stale in (files.stdout, files.stderr, files.error, files.events, files.stacks):
            stale.unlink(missing_ok=True)
        progress.create(files.progress)
        return files
