"""Any other machine: hosts by their first label or address, every signature there is."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine

MACHINE = Machine(name="generic", about="any machine", rank=0)
