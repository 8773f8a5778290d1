"""``ezpz-elastic hosts``: a person takes a host out of a running job and lets it in again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster

from ezpz_elastic.cli import main

FOREVER = ["--no-python", "sleep", "600"]
CONF = "settle=0.2,grace=2,lease_ttl=10"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def hosts(cluster: Cluster, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["hosts", str(cluster.run_dir), *words])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return int(str(ended.value.code)), told.out + told.err


def test_an_active_host_is_retired_refused_readmitted_and_comes_back_as_a_spare(cluster, capsys):
    for host in (2, 3):
        cluster.start(host, FOREVER, conf=CONF)
    cluster.await_true(lambda: cluster.workers(3, 1) and cluster.workers(2, 1), "round 1")
    cluster.start(4, FOREVER, conf=CONF)
    cluster.await_true(lambda: "127.0.0.4  spare" in hosts(cluster, capsys, "list")[1], "the spare")
    assert hosts(cluster, capsys, "list") == (0, "127.0.0.2  slot 0\n127.0.0.3  slot 1\n127.0.0.4  spare\n")

    code, told = hosts(cluster, capsys, "retire", "127.0.0.3", "--reason=its fan is broken")
    assert (code, told) == (0, "127.0.0.3 is retired (round 1)\n")
    assert cluster.wait(3, 90) == 0
    assert "127.0.0.3 leaves" in cluster.output(3)
    cluster.await_true(lambda: cluster.workers(4, 2), "round 2 with the spare")
    assert cluster.rosters() == [["127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.4"]]
    assert cluster.text("bad_nodes.txt") == "127.0.0.3  person  attempt=1\n"
    assert [event["reason"] for event in cluster.events("host_retired")] == ["its fan is broken"]

    cluster.start(3, FOREVER, conf=CONF)
    assert cluster.wait(3, 90) == 2
    assert "127.0.0.3 was retired in round 1 (person): its fan is broken" in cluster.output(3)

    code, told = hosts(cluster, capsys, "readmit", "127.0.0.3")
    assert code == 0
    assert "127.0.0.3 may join again (it was retired in round 1)" in told
    cluster.start(3, FOREVER, conf=CONF)
    cluster.await_true(lambda: "127.0.0.3  spare" in hosts(cluster, capsys, "list")[1], "it is back")
    assert [event["readmitted"] for event in cluster.events("host_readmitted")] == ["127.0.0.3"]
    assert len(cluster.rosters()) == 2, "nobody was disturbed"

    code, told = hosts(cluster, capsys, "retire", "127.0.0.3")
    assert (code, told) == (0, "127.0.0.3 is retired (round 2)\n")
    assert cluster.wait(3, 90) == 2
    assert len(cluster.rosters()) == 2, "a spare's retirement disturbs nobody"
    assert cluster.text("bad_nodes.txt").splitlines()[-1] == "127.0.0.3  person  attempt=2"

    for words, line in (
        (("retire", "127.0.0.3"), "127.0.0.3 was retired already (person: told to by a person)"),
        (("retire", "127.0.0.9"), "no host '127.0.0.9' in this job; there are 127.0.0.2, 127.0.0.3, 127.0.0.4"),
        (("retire", "127.0.0.4"), "1 hosts would be left, and the job needs 2"),
        (("readmit", "127.0.0.2"), "127.0.0.2 is not retired"),
    ):
        code, told = hosts(cluster, capsys, *words)
        assert (code, line in told) == (2, True), told

    for host in (2, 4):
        cluster.agents[host].send_signal(signal.SIGTERM)
        cluster.wait(host)
    code, told = hosts(cluster, capsys, "list")
    assert code == 2
    assert "the job's store does not answer" in told
    cluster.assert_nothing_left()


def test_a_folder_that_is_no_run_directory_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["hosts", str(tmp_path), "list"])
    assert ended.value.code == 2
    assert f"no {tmp_path}/store.json; expected the run directory of a job" in capsys.readouterr().err
    (tmp_path / "store.json").write_text("[]")
    with pytest.raises(SystemExit):
        main(["hosts", str(tmp_path), "list"])
    assert "expected what an agent writes there" in capsys.readouterr().err
