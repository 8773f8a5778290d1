"""``ezpz-elastic run``: every mistake is one line and code 2, and a job runs as under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ezpz_elastic.cli import main
from ezpz_elastic.settings import Settings

TIMEOUT = 120
BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never started')\n")


def refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Run the command in this process; it must refuse in one line with code 2 and start nothing."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert "never started" not in out
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("ezpz-elastic run: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes=3:2", "train.py"], "1 <= MIN <= MAX"),
        (["--nnodes=two", "train.py"], "--nnodes=two"),
        (["--nnodes=1:2:3", "train.py"], "--nnodes=1:2:3"),
        (["--nnodes=0", "train.py"], "--nnodes=0"),
        (["--nproc-per-node=some", "train.py"], "some"),
        (["--nproc-per-node=0", "train.py"], "--nproc-per-node=0"),
        (["--nproc-per-node=-2", "train.py"], "--nproc-per-node=-2"),
        (["--nproc-per-node=+-2", "train.py"], "+-2"),
        (["--nproc=2", "train.py"], "--nproc=2"),
        (["--max-restarts=many", "train.py"], "many"),
        (["--max-restarts=-1", "train.py"], "--max-restarts=-1"),
        (["--monitor-interval=0", "train.py"], "--monitor-interval"),
        (["--shutdown-timeout=-5", "train.py"], "--shutdown-timeout"),
        (["--redirects=9", "train.py"], "9"),
        (["--local-ranks-filter=a", "train.py"], "local_ranks_filter"),
        (["--event-log-handler=nowhere", "train.py"], "nowhere"),
        (["--logs-specs=nowhere", "train.py"], "nowhere"),
        (["--start-method=teleport", "train.py"], "teleport"),
        (["--no-such-flag", "train.py"], "--no-such-flag"),
        (["--rdzv-backend=c10d", "train.py"], "c10d"),
        (["--rdzv-conf=nonsense", "train.py"], "nonsense"),
        (["--rdzv-conf=colour=blue", "train.py"], "colour"),
        (["--rdzv-conf=settle=-1", "train.py"], "settle"),
        (["--nnodes=2", "train.py"], "--rdzv-endpoint"),
        (["--nnodes=2", "--rdzv-endpoint=127.0.0.1:29500", "train.py"], "--rdzv-id"),
        (["--nnodes=2", "--rdzv-id=a", "--rdzv-endpoint=127.0.0.1:port", "train.py"], "--rdzv-endpoint"),
        (["missing.py"], "missing.py"),
        (["."], "without a __main__.py"),
        (["--no-python", "no-such-program-anywhere"], "no-such-program-anywhere"),
        (["--no-python", "-m", "train"], "no-python"),
        (["--warm=maybe", "train.py"], "--warm"),
        (["--warm-import=numpy,my model", "train.py"], "'my model'"),
        (["--warm-import=numpy,,torch", "train.py"], "joined by commas"),
        (["--warm=off", "--rdzv-conf=warm=on", "train.py"], "--rdzv-conf=warm=on"),
        (["--keep", "--rdzv-conf=keep=off", "train.py"], "--keep and --rdzv-conf=keep=off"),
        ([], "training_script"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert said in refused(words, capfd)


def test_a_mistake_in_torchs_own_environment_variables_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_STANDALONE", "yes")
    assert "PET_" in refused(["train.py"], capfd)


def test_torchs_environment_variables_are_defaults_as_with_torchrun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    assert "c10d" in refused(["train.py"], capfd)


def test_verbose_shows_the_traceback_and_the_scripts_own_verbose_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--verbose", "--redirects=9", "train.py"])
    assert ended.value.code == 2
    assert "Traceback" in capfd.readouterr().err
    refused(["--redirects=9", "train.py", "--verbose"], capfd)


def finish(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def outcome(run_dir: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run_dir / "outcome.json").read_text())
    return found


def test_a_worker_that_is_killed_is_restarted_by_default_and_the_script_gets_its_words(tmp_path: Path) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(
        "import os, signal, sys\n"
        "print('words', sys.argv[1:], flush=True)\n"
        "if os.environ['EZPZ_ROUND'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    own = ["--verbose", "--", "--nnodes=9:1", "--log", "3", "--n=5", "--war", "--help", "-h", "-m"]
    words = ["--rdzv-conf=run_dir=out", str(script), *own]
    after = (
        "import sys\n"
        "from ezpz_elastic.cli import main\n"
        "try:\n"
        "    main(['run', *sys.argv[1:]])\n"
        "except SystemExit as ended:\n"
        "    from torch.distributed.launcher import api\n"
        "    print('code', ended.code, api.LocalElasticAgent.__module__)\n"
    )
    done = finish([sys.executable, "-c", after, *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"words {own}" in done.stdout
    assert "code 0 torch.distributed.elastic.agent.server.local_elastic_agent" in done.stdout, "torch was changed"
    assert outcome(tmp_path / "out")["rounds"] == 2
    journal = next((tmp_path / "out" / "journal").iterdir()).read_text()
    assert '"cause":"worker_killed"' in journal


def test_the_exit_code_is_the_workers_own_as_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    ours = finish(
        [str(BIN / "ezpz-elastic"), "run", "--max-restarts=0", "--rdzv-conf=run_dir=a", str(script)], tmp_path
    )
    theirs = finish(
        [
            str(BIN / "torchrun"),
            "--rdzv-backend=ezpz",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            f"--rdzv-id={uuid.uuid4().hex}",
            "--rdzv-conf=run_dir=b",
            str(script),
        ],
        tmp_path,
    )
    assert ours.returncode == theirs.returncode == 7
    assert "FAILOVER STOP: " in ours.stderr
    assert "Traceback" not in ours.stderr


@pytest.mark.parametrize(
    ("words", "forked", "imported"),
    [
        (["--warm=on", "--warm-import=colorsys,xml.dom", "show.py"], True, "True True"),
        (["--warm=off", "--warm-import=colorsys", "show.py"], False, "False False"),
        (["--warm=on", "--warm-import=colorsys", "--no-python", sys.executable, "show.py"], False, "False False"),
    ],
    ids=["on", "off", "--no-python"],
)
def test_workers_are_forked_warm_if_that_is_wanted_and_can_be(
    tmp_path: Path, words: list[str], forked: bool, imported: str
) -> None:
    (tmp_path / "show.py").write_text(
        "import os, sys\n"
        "print('parent', os.getppid(), *(name in sys.modules for name in ('colorsys', 'xml.dom')), flush=True)\n"
    )
    done = finish([str(BIN / "ezpz-elastic"), "run", "--rdzv-conf=run_dir=out", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    journal = next((tmp_path / "out" / "journal").iterdir()).read_text().splitlines()
    agent = next(event["pid"] for event in map(json.loads, journal) if event["event"] == "member_joined")
    told = next(line for line in done.stdout.splitlines() if line.startswith("parent "))
    parent, _, modules = told.removeprefix("parent ").partition(" ")
    assert (int(parent) != agent, modules) == (forked, imported)


def test_the_help_tells_of_our_own_flags_beside_torchruns() -> None:
    done = subprocess.run(
        [str(BIN / "ezpz-elastic"), "run", "--help"], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    words = set(done.stdout.replace(",", " ").replace(";", " ").split())
    assert {"--warm", "--warm-import", "--keep", "--verbose", "--nproc-per-node"} <= words
    assert set(Settings.__struct_fields__) <= words


def test_two_hosts_with_torchruns_older_spelling_of_the_endpoint(tmp_path: Path, free_port: int) -> None:
    script = tmp_path / "counts.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size(), flush=True)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    agents = [
        subprocess.Popen(
            [
                *(str(BIN / "ezpz-elastic"), "run", "--nnodes=2", "--rdzv-id=pair", f"--local-addr=127.0.0.{host}"),
                *("--master-addr=127.0.0.2", f"--master-port={free_port}", "--rdzv-conf=run_dir=out", str(script)),
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in (2, 3)
    ]
    try:
        said = [agent.communicate(timeout=TIMEOUT)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "rank 0 of 2" in said[0]
    assert "rank 1 of 2" in said[1]


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[1].startswith("`"):
            rows.update(dict.fromkeys((name.strip(" `") for name in cells[1].split(",")), cells[2].strip("`")))
    for name, default in zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True):
        assert name in rows, f"docs/running.md does not tell of --rdzv-conf {name}"
        if isinstance(default, float):  # None is told in words
            assert float(rows[name]) == default, name
        elif default:
            assert rows[name] == default, name
