"""Machines: how hosts are spelled, how ranks are laid out, which launchers print the log. One file per machine."""

from __future__ import annotations

from ezpz_elastic.machines.base import Machine
from ezpz_elastic.machines.registry import detect_machine, find_machine, machines

__all__ = ["Machine", "detect_machine", "find_machine", "machines"]
