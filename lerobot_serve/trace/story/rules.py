"""The table of verdicts: what each is called, what it says, what to do. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lerobot_serve.trace.story import causes
from lerobot_serve.trace.story.causes import Finding
from lerobot_serve.trace.story.facts import Facts


class Says(Enum):
    """What a rule says."""

    FOUND = 'found'
    RULED_OUT = 'ruled_out'
    # the evidence is not there: never taken for yes or no
    NOT_TOLD = 'not_told'


@dataclass(frozen=True, slots=True)
class Rule:
    """`needs` is the evidence, `words` what is said when it is there, `todo` what to do then."""

    name: str
    judge: Callable[[Facts], Finding]
    needs: str
    words: str
    todo: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of a window, and the figures that it stands on or lacks."""

    rule: Rule
    says: Says
    figures: str


RULES = (
    Rule(
        'server_overloaded',
        causes.server_overloaded,
        'queue wait grew for this robot and for all others of that server at that time',
        'The server is overloaded: everybody waited for his turn.',
        'fewer robots, another replica, or scheduler:=micro_batch; '
        'see ServerSaturated in docs/metrics.md',
    ),
    Rule(
        'queue_of_its_own',
        causes.queue_of_its_own,
        'queue wait grew for this robot, and not for all others of that server',
        'This robot waited at the server, others did not.',
        'look at the scheduler, and at requests of this robot that wait behind each other',
    ),
    Rule(
        'asks_too_often',
        causes.asks_too_often,
        'requests of this robot, and of no other, were superseded by newer ones',
        'It asks again before its last request had its turn.',
        'raise request_timeout_s of its edge',
    ),
    Rule(
        'policy_slow',
        causes.policy_slow,
        'inference of its requests grew',
        'The policy itself took longer.',
        'look at the device of the server: other work, heat, a larger batch, another policy',
    ),
    Rule(
        'network',
        causes.network,
        'round trip less the time of the server grew, and the time of the server did not',
        'The network was slow, or something on the way.',
        'radio, switch, other traffic; profile:=wan or a longer buffer_time_s bears more',
    ),
    Rule(
        'policy_failed',
        causes.policy_failed,
        'answers with an error or NaN',
        'The server answered, and the answers could not be played: the policy fails.',
        'the reason stands in the time line; `lerobot-serve replay` of a capture asks again',
    ),
    Rule(
        'lost_or_hung',
        causes.lost_or_hung,
        'requests timed out, and the whole trace of the server has no record of them',
        'Requests were lost on the way, or the server hung.',
        'log and /healthz of the server; then the network between robot and server',
    ),
    Rule(
        'answer_lost',
        causes.answer_lost,
        'the server answered in time, and the edge has no such answer',
        'Answers were lost on the way back.',
        'the network from server to robot: large messages, drops in ~/state of the edge',
    ),
    Rule(
        'router',
        causes.router,
        'its episode was moved, another replica answered, or slots failed',
        'The router sent it elsewhere.',
        '~/state of the router names each replica and why; docs/router.md',
    ),
    Rule(
        'server_gone',
        causes.server_gone,
        'the session was lost or the server was leaving',
        'It lost its server.',
        'was the server started again? its log and /readyz say why',
    ),
    Rule(
        'cage',
        causes.cage,
        'the cage changed more of its commands than before',
        'The safety cage held it back: the policy asks for more than the limits allow.',
        'a wrong policy, unit or limit; `lerobot-serve audit` says whether limits were kept',
    ),
    Rule(
        'ticks_missed',
        causes.ticks_missed,
        'control steps are left out while it played',
        'Its own processor was taken by something else.',
        'give the edge a core; see TicksMissed in docs/metrics.md',
    ),
    Rule(
        'buffer_short',
        causes.buffer_short,
        'round trips longer than buffer_time_s, before as well as during',
        'It asks too late: answers always take longer than what is left to play.',
        'raise buffer_time_s, or max_action_age_s with it',
    ),
)


def judge(facts: Facts) -> list[Verdict]:
    """Return what each rule says, in the order of the table."""
    return [_verdict(rule, rule.judge(facts)) for rule in RULES]


def _verdict(rule: Rule, finding: Finding) -> Verdict:
    if finding.is_so is None:
        return Verdict(rule, Says.NOT_TOLD, finding.figures)
    return Verdict(rule, Says.FOUND if finding.is_so else Says.RULED_OUT, finding.figures)
