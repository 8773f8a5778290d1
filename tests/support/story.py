"""A coordinator with a perfect store, for stories on the pure membership."""

from __future__ import annotations

from rendezvous.membership import CheckTwin, Decide, Effect, Event, Membership, Open, Refuse, Tick
from rendezvous.records import Decision, Joined, Member, Opening
from support.builders import job, retire_the_lost


class Coordination:
    """Applies events and carries out the effects at once."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.now = 0.0
        self.openings: list[Opening] = []
        self.cases: list[Decide] = []
        self.answers: dict[int, Decision] = {}
        self.refused: dict[str, str] = {}
        self.twins: list[CheckTwin] = []

    def tell(self, *events: Event) -> None:
        for event in events:
            self._carry_out(self.membership.apply(event, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Open():
                    self.openings.append(effect.opening)
                    self.tell(effect.opening)
                case Decide():
                    self.cases.append(effect)
                    answer = effect.answer or retire_the_lost(effect.case)
                    self.answers[answer.round] = answer
                    if effect.before_start:
                        self.openings.append(Opening(answer.round, ended=answer))
                        self.tell(self.openings[-1])
                    else:
                        self.tell(answer)
                case Refuse():
                    self.refused[effect.member_id] = effect.reason
                case CheckTwin():
                    self.twins.append(effect)

    def rosters(self) -> list[list[str]]:
        return [[m.host for m in item.roster.members] for item in self.openings if item.roster is not None]


def running(*members: Member, **limits: object) -> Coordination:
    story = Coordination(Membership(job(**limits)))
    story.tell(*(Joined(item) for item in members))
    return story
