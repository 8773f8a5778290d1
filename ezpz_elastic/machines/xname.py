"""Host names of HPE Cray EX systems, shared by the machines that have them."""

from __future__ import annotations

__all__ = ["XNAME"]

XNAME = r"(?P<key>x\d{1,5}c\d{1,2}s\d{1,2}b\d{1,2}n\d{1,2})(?:-hsn\d{1,2})?(?:\.[a-z0-9.\-]{1,200})?"
"""Cabinet, chassis, slot, board, node; then perhaps an interface and any of the site's domains."""
