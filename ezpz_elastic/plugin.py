"""The torchrun entry point (group ``torchrun.handlers``, name ``ezpz``).

Every torchrun on the machine loads this module, whatever its backend, so it imports nothing of weight and touches
nothing until somebody asks for ``--rdzv-backend=ezpz``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from ezpz_elastic.assembly import AgentHandler

__all__ = ["create_handler", "get_handler", "seam"]


def get_handler() -> Callable[[RendezvousParameters], AgentHandler]:
    """What torch calls to learn how to make the handler."""
    return create_handler


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
