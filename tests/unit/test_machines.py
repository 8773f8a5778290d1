"""Machines: one host in many spellings, and how a machine is recognised."""

from __future__ import annotations

import pytest

from ezpz_elastic.machines import detect_machine, find_machine, machines


def test_the_machines_of_the_contract_exist() -> None:
    assert set(machines()) >= {"aurora", "sunspot", "polaris", "perlmutter", "frontier", "slurm", "generic"}


@pytest.mark.parametrize(
    ("machine", "spellings"),
    [
        (
            "sunspot",
            [
                "x1922c7s6b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov",
                "x1922c7s6b0n0.hostmgmt2001.cm.sunspot.alcf.anl.gov",
                "x1922c7s6b0n0",
                "X1922C7S6B0N0-hsn1",
            ],
        ),
        ("perlmutter", ["nid001234", "nid001234.chn.perlmutter.nersc.gov", "nid001234-hsn0"]),
        ("frontier", ["frontier00012", "frontier00012.frontier.olcf.ornl.gov"]),
        ("generic", ["node05", "node05.cluster.local", "NODE05-hsn0"]),
    ],
)
def test_all_spellings_of_a_host_have_one_key(machine: str, spellings: list[str]) -> None:
    assert len({machines()[machine].key(name) for name in spellings}) == 1
    assert None not in {machines()[machine].key(name) for name in spellings}


def test_a_name_of_a_shape_never_seen_is_dropped() -> None:
    assert machines()["aurora"].key("login1") is None
    assert machines()["perlmutter"].key("x1922c7s6b0n0") is None
    assert machines()["generic"].key("what is this?") is None


def test_where_no_list_is_given_the_canonical_spelling_is_told() -> None:
    assert (
        machines()["sunspot"].spell("x1922c7s6b0n0-hsn0.hsn.cm.sunspot.alcf.anl.gov")
        == "x1922c7s6b0n0.hsn.cm.sunspot.alcf.anl.gov"
    )


def test_recognised_by_hosts_then_log_then_environment() -> None:
    name = "x4610c4s3b0n0.hsn.cm.aurora.alcf.anl.gov"
    assert detect_machine(hosts=[name], environment={"NERSC_HOST": "perlmutter"}).name == "aurora"
    assert detect_machine(log=f"{name}: rank 3", environment={"SLURM_JOB_ID": "1"}).name == "aurora"
    assert detect_machine(environment={"NERSC_HOST": "perlmutter", "SLURM_JOB_ID": "1"}).name == "perlmutter"
    assert detect_machine(environment={"SLURM_JOB_ID": "1"}).name == "slurm"
    assert detect_machine(environment={}).name == "generic"


def test_an_unknown_machine_is_used_as_generic_and_says_so() -> None:
    machine, note = find_machine("elcap")
    assert machine.name == "generic"
    assert "no signatures exist for machine 'elcap'" in note
    assert find_machine("sunspot")[1] == ""


def test_hostfiles_of_every_launcher() -> None:
    text = "# allocation\nn1\nn1\nn2 slots=4\nn3:12\n\n  n4   # spare\n"
    assert machines()["generic"].read_hostfile(text) == ("n1", "n2", "n3", "n4")
