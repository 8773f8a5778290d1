"""Perlmutter (NERSC): HPE Cray EX under Slurm; hosts are ``nid001234``."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine

MACHINE = Machine(
    name="perlmutter",
    about="Perlmutter at NERSC: Slurm",
    shape=r"(?P<key>nid\d{3,8})(?:-hsn\d{1,2})?(?:\.[a-z0-9.\-]{1,200})?",
    emitters=("slurm",),
    domains=(".perlmutter.nersc.gov", ".chn.perlmutter"),
    environment={"NERSC_HOST": "perlmutter"},
)
