"""What a machine is to the classifier."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ezpz_elastic.decide.context import host_key

__all__ = ["Machine"]


class Machine(msgspec.Struct, frozen=True):
    """One machine, or a family of them.

    Args:
        name: as ``--machine`` takes it.
        about: one line.
        shape: what a host's name looks like; the group ``key`` identifies the host whatever interface or domain is
            spelled with it (rule 9). Empty: any name, its first label is the key.
        canonical: how a host is printed where no host list is given; ``{key}`` is put in.
        emitters: the programs whose lines this machine's console shows beside those of torch and Python.
        domains: texts in a log, a host list or a node's own name that give the machine away.
        environment: variables that give it away, with a text their value must contain (empty: any value).
        layout: how the launcher lays ranks out by default: ``block`` or ``round_robin``.
        rank: of several machines that recognise something, the highest wins; families stand below machines.
    """

    name: str
    about: str
    shape: str = ""
    canonical: str = "{key}"
    emitters: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    layout: str = "block"
    rank: int = 10

    def key(self, name: str) -> str | None:
        """The part of a name that identifies the host; ``None`` for a name of a shape this machine does not have."""
        if not self.shape:
            return host_key(name)
        found = re.fullmatch(self.shape, name.strip().lower())
        return found.group("key") if found is not None else None

    def spell(self, name: str) -> str:
        """The machine's canonical spelling of a host."""
        key = self.key(name)
        return name if key is None or not self.shape else self.canonical.format(key=key)

    def knows(self, text: str) -> bool:
        """Whether a piece of a log or a list of hosts gives this machine away."""
        return any(domain in text for domain in self.domains)

    def read_hostfile(self, text: str) -> tuple[str, ...]:
        """Hosts of a hostfile in order, each once: ``host``, ``host slots=4`` or ``host:4``, and ``#`` comments."""
        hosts: dict[str, None] = {}
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            if words:
                hosts.setdefault(re.sub(r":\d+$", "", words[0]) if words[0].count(":") == 1 else words[0])
        return tuple(hosts)
