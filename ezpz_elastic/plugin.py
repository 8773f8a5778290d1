"""The torchrun entry point (group ``torchrun.handlers``, name ``ezpz``).

Every torchrun on the machine loads this module, whatever its backend, so it imports nothing of weight and touches
nothing until somebody asks for ``--rdzv-backend=ezpz``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from ezpz_elastic.assembly import AgentHandler

__all__ = ["create_handler", "get_handler", "seam"]


def get_handler() -> Callable[[RendezvousParameters], AgentHandler]:
    """What torch calls to learn how to make the handler.

    Raises:
        SystemExit: this torchrun was told to use us with ``--nnodes`` that cannot be; torch itself would answer
            with a traceback, and asks no plugin before that.
    """
    wrong = impossible_nnodes(sys.argv)
    if wrong:
        print(f"[ezpz] {wrong}", file=sys.stderr)
        raise SystemExit(2)
    return create_handler


def impossible_nnodes(arguments: Sequence[str]) -> str:
    """What is wrong with ``--nnodes`` on a command line that asks for this backend; empty if nothing is.

    Args:
        arguments: ``sys.argv``; the script's own arguments may follow torchrun's.
    """
    options = dict[str, str]()
    for name, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, equals, value = name.partition("=")
        options.setdefault(option.replace("_", "-"), value if equals else following)
    if options.get("--rdzv-backend") != "ezpz" or "--nnodes" not in options:
        return ""
    least, _, most = options["--nnodes"].partition(":")
    if least.isdigit() and (not most or most.isdigit()) and 0 < int(least) <= int(most or least):
        return ""
    return f"--nnodes={options['--nnodes']}; expected N or MIN:MAX with 1 <= MIN <= MAX"


def create_handler(params: RendezvousParameters) -> AgentHandler:
    """Make the rendezvous handler and put the agent in place.

    ``launch_agent`` calls this just before it builds ``LocalElasticAgent``, a global of its own module; that name is
    the one seam through which torchrun can be given another agent.

    Raises:
        SystemExit: the user asked for something impossible, or torch has moved the seam; one line has been printed.
    """
    from torch.distributed.launcher import api

    from ezpz_elastic.assembly import build_handler
    from ezpz_elastic.errors import UsageError
    from ezpz_elastic.ledger import say

    try:
        seam(api)
        handler = build_handler(params)
    except UsageError as error:
        say(error.line())
        raise SystemExit(2) from None
    from ezpz_elastic.agent import EzpzElasticAgent

    api.LocalElasticAgent = EzpzElasticAgent
    return handler


def seam(api: object) -> None:
    """Check that this torch still builds its agent where we put ours.

    Raises:
        UsageError: it does not.
    """
    from ezpz_elastic.errors import UsageError

    launch_agent = getattr(api, "launch_agent", None)
    code = getattr(launch_agent, "__code__", None)
    if not hasattr(api, "LocalElasticAgent") or code is None or "LocalElasticAgent" not in code.co_names:
        import torch

        raise UsageError(
            f"torch {torch.__version__} no longer builds its agent in torch.distributed.launcher.api.launch_agent",
            expected="torch 2.13",
            hint="start the job with `ezpz-elastic run`, which needs no such seam",
        )
