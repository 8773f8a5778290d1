"""Any cluster under Slurm."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine

MACHINE = Machine(
    name="slurm",
    about="any cluster under Slurm",
    emitters=("slurm",),
    domains=("srun: ", "slurmstepd: "),
    environment={"SLURM_JOB_ID": ""},
    rank=5,
)
