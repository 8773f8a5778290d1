"""Frontier (OLCF): HPE Cray EX under Slurm; hosts are ``frontier00012``."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine

MACHINE = Machine(
    name="frontier",
    about="Frontier at OLCF: Slurm, AMD GPUs",
    shape=r"(?P<key>frontier\d{3,8})(?:-hsn\d{1,2})?(?:\.[a-z0-9.\-]{1,200})?",
    emitters=("slurm",),
    domains=(".frontier.olcf.ornl.gov",),
    environment={"LMOD_SYSTEM_NAME": "frontier", "SLURM_CLUSTER_NAME": "frontier"},
)
