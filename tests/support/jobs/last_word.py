"""torchrun whose agent is killed when it has committed a decision and is about to write it down.

last_word.py RESTART|STOP|FINISH torchrun's arguments
"""

from __future__ import annotations

import os
import signal
import sys

from torch.distributed.run import main

from ezpz_elastic.ledger import RunLedger
from rendezvous.records import Action

FATAL = Action[sys.argv.pop(1)]
decided = RunLedger.decided


def dying(self, case, decision, retired):  # type: ignore[no-untyped-def]
    if decision.action is FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    decided(self, case, decision, retired)


RunLedger.decided = dying  # type: ignore[method-assign]
main()
