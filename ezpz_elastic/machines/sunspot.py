"""Sunspot (ALCF): HPE Cray EX under PBS, launched by PALS; hosts are xnames such as ``x1922c7s6b0n0``."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine
from ezpz_elastic.machines.xname import XNAME

MACHINE = Machine(
    name="sunspot",
    about="Sunspot at ALCF: PBS, PALS",
    shape=XNAME,
    canonical="{key}.hsn.cm.sunspot.alcf.anl.gov",
    emitters=("pals", "pbs"),
    domains=(".sunspot.alcf.anl.gov", "sunspot-pbs"),
    environment={"PBS_O_HOST": "sunspot", "LMOD_SYSTEM_NAME": "sunspot"},
)
