"""Every module of this package that defines ``MACHINE`` is a machine: adding one is adding one file."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module

from ezpz_elastic.machines.base import Machine

__all__ = ["detect_machine", "find_machine", "machines"]


@lru_cache(maxsize=1)
def machines() -> dict[str, Machine]:
    """All machines by name."""
    package = __name__.rpartition(".")[0]
    found = {}
    for module in pkgutil.iter_modules(import_module(package).__path__):
        machine = getattr(import_module(f"{package}.{module.name}"), "MACHINE", None)
        if isinstance(machine, Machine):
            found[machine.name] = machine
    return found


def find_machine(
    name: str, *, hosts: Iterable[str] = (), log: str = "", environment: Mapping[str, str] | None = None
) -> tuple[Machine, str]:
    """The machine of a name, or the one that is recognised where the name is ``auto``.

    Args:
        name: as given by ``--machine``.
        hosts: the attempt's hosts.
        log: some of the log's text.
        environment: environment variables; the process's own by default.

    Returns:
        the machine, and a note for the reader (rule 11): empty, or that no signatures exist for this machine.
    """
    if name in {"", "auto"}:
        return detect_machine(hosts=hosts, log=log, environment=environment), ""
    known = machines().get(name.lower())
    if known is not None:
        return known, ""
    names = ", ".join(sorted(machines()))
    note = f"no signatures exist for machine {name!r} (known: {names}); only those of common programs were used"
    return machines()["generic"], note


def detect_machine(
    *, hosts: Iterable[str] = (), log: str = "", environment: Mapping[str, str] | None = None
) -> Machine:
    """Recognise the machine: by the hosts' names, by the log, by the environment; ``generic`` if by none."""
    ranked = sorted(machines().values(), key=lambda machine: -machine.rank)
    listed = list(hosts)
    for machine in ranked:
        if listed and any(machine.knows(host) for host in listed):
            return machine
    for machine in ranked:
        if machine.knows(log):
            return machine
    variables = os.environ if environment is None else environment
    for machine in ranked:
        if any(name in variables and wanted in variables[name] for name, wanted in machine.environment.items()):
            return machine
    return machines()["generic"]
