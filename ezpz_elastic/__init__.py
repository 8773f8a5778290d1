"""Classified restarts for torchrun.

The names users import live here and are loaded on first use, because every ``torchrun`` on the machine
imports this package to find its rendezvous plugin and must not pay for more than that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ezpz_elastic.attempt import classify_log
    from ezpz_elastic.decide.verdict import Cause, Provenance, Verdict, VerdictKind
    from ezpz_elastic.observe.progress import progress

__all__ = ["Cause", "Provenance", "Verdict", "VerdictKind", "__version__", "classify_log", "progress"]

__version__ = "0.1.0"

_HOMES = {
    "Cause": "ezpz_elastic.decide.verdict",
    "Provenance": "ezpz_elastic.decide.verdict",
    "Verdict": "ezpz_elastic.decide.verdict",
    "VerdictKind": "ezpz_elastic.decide.verdict",
    "classify_log": "ezpz_elastic.attempt",
    "progress": "ezpz_elastic.observe.progress",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
