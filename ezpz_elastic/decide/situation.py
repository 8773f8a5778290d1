"""What the policy is told beside the verdict: where the job stands, and how far it may go."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["Limits", "OnBlind", "Situation"]


class OnBlind(str, Enum):
    """What to do when a host is probably at fault and nothing says which (``--on-blind``)."""

    SUSPECT = "suspect"  # restart in place first, then rotate the most suspect host
    ROTATE = "rotate"  # rotate at once
    NEVER = "never"  # never rotate on a guess


class Situation(msgspec.Struct, frozen=True):
    """Where the job stands when a round has ended.

    Args:
        round: the round that ended, from 1.
        hosts: the hosts that held its slots, in slot order, as the allocation spells them.
        spares: hosts that stand by, in the order they would be admitted.
        min_hosts, max_hosts: the job's limits.
        elapsed: seconds since round 1 was opened.
        step: the last training step known of any worker in this round; ``None`` if none was told.
        durable_step: step of the newest checkpoint known to be complete; ``None`` if none is known.
        lost: hosts of this round that are gone already.
        unformed: too few hosts came to form the round; ``hosts`` is empty then.
        waited: seconds the unformed round waited for hosts.
        exit_code: the worker's own exit code (128 + signal if a signal ended it), for a job that stops now; ``None``
            if no worker told.
        everywhere: ``True`` if every host saw its workers fail in the same way and no rank says otherwise, ``False``
            if a rank is known to have done something else, ``None`` if that cannot be told.
        tells_steps: the program is known to report its steps even though none has come yet.
    """

    round: int
    hosts: tuple[str, ...]
    spares: tuple[str, ...]
    min_hosts: int
    max_hosts: int
    elapsed: float
    step: int | None = None
    durable_step: int | None = None
    lost: tuple[str, ...] = ()
    unformed: bool = False
    waited: float = 0.0
    exit_code: int | None = None
    everywhere: bool | None = None
    tells_steps: bool = False


class Limits(msgspec.Struct, frozen=True):
    """How far the policy may go. The defaults are the law's (design page "What a failure means").

    Args:
        max_restarts: restarts of the whole job that made no progress. 3 is the default of ``ezpz-elastic run`` and
            ``launch``; under plain ``torchrun`` the number given there is passed, 0 included.
        on_blind: the blind policy.
        window: seconds within which a second failure at one host is a recurrence and retirements are counted.
            Law: 10 minutes.
        max_retirements: decisions within ``window`` that may take hosts out by judgement. Law: 3. Hosts that are gone
            do not count: nobody decided that.
        backoff: seconds to wait before the 1st, 2nd, … restart in place since the last progress; the last one repeats.
            Law: 0 s, then 5, 10, 20, 40, 60 s.
        max_storage_wait: seconds of waiting for storage, in all, without a new checkpoint. The law gives no number;
            1800 s is the idle limit of the retry loop, and longer than a Lustre server takes to fail over.
        suspicion_half_life: seconds in which old suspicion loses half its weight. The law says "decayed" without a
            number; the window is its only measure of how long a hint stays fresh.
        flag_named: how the budget's flag is called in messages.
        hosts_named: how the number of hosts that are needed is called there.
    """

    max_restarts: int = 3
    on_blind: OnBlind = OnBlind.SUSPECT
    window: float = 600.0
    max_retirements: int = 3
    backoff: tuple[float, ...] = (0.0, 5.0, 10.0, 20.0, 40.0, 60.0)
    max_storage_wait: float = 1800.0
    suspicion_half_life: float = 600.0
    flag_named: str = "--max-restarts"
    hosts_named: str = "the minimum of --nnodes"
