"""The order of the allocation's hosts, from a hostfile or from the scheduler."""

from __future__ import annotations

import pytest

from ezpz_elastic.errors import UsageError
from ezpz_elastic.hostorder import expand_nodelist, position
from ezpz_elastic.machines import find_machine

GENERIC = find_machine("generic")[0]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nid[001-003,007],login1", ("nid001", "nid002", "nid003", "nid007", "login1")),
        ("a,b,a", ("a", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("", ()),
        ("n[1-", ()),
        ("n[1-999999999]", ()),
        ("$(reboot)", ()),
    ],
)
def test_a_node_list_is_expanded_in_its_order(text, hosts):
    assert expand_nodelist(text) == hosts


def test_a_hostfile_goes_before_the_scheduler(tmp_path):
    ours, pbs = tmp_path / "ours", tmp_path / "pbs"
    ours.write_text("# mine\nb slots=4\na:2\n")
    pbs.write_text("a.site.example\na.site.example\nb.site.example\n")
    environ = {"PBS_NODEFILE": str(pbs), "SLURM_JOB_NODELIST": "x[1-2]"}
    assert [position(host, GENERIC, str(ours), environ) for host in "ab"] == [1, 0]
    assert [position(host, GENERIC, None, environ) for host in "abx"] == [0, 1, None]
    assert position("x2", GENERIC, None, {"SLURM_JOB_NODELIST": "x[1-2]"}) == 1
    assert position("a", GENERIC, None, {}) is None


def test_a_scheduler_file_that_is_gone_costs_only_the_order_but_a_hostfile_that_was_asked_for_is_an_error(tmp_path):
    assert position("a", GENERIC, None, {"PBS_NODEFILE": str(tmp_path / "none")}) is None
    with pytest.raises(UsageError, match="hostfile="):
        position("a", GENERIC, str(tmp_path / "none"), {})
