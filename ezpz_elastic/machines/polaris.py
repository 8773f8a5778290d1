"""Polaris (ALCF): HPE Cray EX under PBS, launched by PALS; hosts are xnames such as ``x3004c0s7b0n0``."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine
from ezpz_elastic.machines.xname import XNAME

MACHINE = Machine(
    name="polaris",
    about="Polaris at ALCF: PBS, PALS",
    shape=XNAME,
    canonical="{key}.hsn.cm.polaris.alcf.anl.gov",
    emitters=("pals", "pbs"),
    domains=(".polaris.alcf.anl.gov", "polaris-pbs"),
    environment={"PBS_O_HOST": "polaris", "LMOD_SYSTEM_NAME": "polaris"},
)
