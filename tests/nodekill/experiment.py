"""The experiment's own modules, which lie in no package that is installed. Import this before any of ``sunspot``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

__all__ = ["killer", "space"]

_BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")

# No longer on the path than for this: a file called checkpoint there would hide the tests' folder of that name.
sys.path.insert(0, _BENCHMARKS)
try:
    killer, space = import_module("sunspot.killer"), import_module("sunspot.space")
    import_module("sunspot.checks")
finally:
    sys.path.remove(_BENCHMARKS)
