"""Aurora (ALCF): HPE Cray EX under PBS, launched by PALS; hosts are xnames such as ``x4610c4s3b0n0``."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine
from ezpz_elastic.machines.xname import XNAME

MACHINE = Machine(
    name="aurora",
    about="Aurora at ALCF: PBS, PALS",
    shape=XNAME,
    canonical="{key}.hsn.cm.aurora.alcf.anl.gov",
    emitters=("pals", "pbs"),
    domains=(".aurora.alcf.anl.gov", "aurora-pbs"),
    environment={"PBS_O_HOST": "aurora", "LMOD_SYSTEM_NAME": "aurora"},
)
