"""The table of verdicts: what each is called, what it says, what to do. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lerobot_serve.tools.diagnosis import causes
from lerobot_serve.tools.diagnosis.causes import CauseFinding
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts


class RuleStatus(Enum):
    """What a rule says."""

    FOUND = 'found'
    RULED_OUT = 'ruled_out'
    # the evidence is not there: never taken for yes or no
    NO_EVIDENCE = 'not_told'


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """`needs` is the evidence, `words` what is said when it is there, `todo` what to do then."""

    name: str
    judge: Callable[[WindowFacts], CauseFinding]
    needs: str
    words: str
    todo: str


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What one rule says of a window, and the figures that it stands on or lacks."""

    rule: DiagnosisRule
    says: RuleStatus
    figures: str


RULES = (
    DiagnosisRule(
        'server_overloaded',
        causes.server_overloaded,
        'queue wait grew for this robot and for all others of that server at that time',
        'The server is overloaded: everybody waited for his turn.',
        'fewer robots, another replica, or scheduler:=micro_batch; '
        'see ServerSaturated in docs/metrics.md',
    ),
    DiagnosisRule(
        'queue_of_its_own',
        causes.own_queue_only,
        'queue wait grew for this robot, and not for all others of that server',
        'This robot waited at the server, others did not.',
        'look at the scheduler, and at requests of this robot that wait behind each other',
    ),
    DiagnosisRule(
        'asks_too_often',
        causes.requests_too_often,
        'requests of this robot, and of no other, were superseded by newer ones',
        'It asks again before its last request had its turn.',
        'raise request_timeout_s of its edge',
    ),
    DiagnosisRule(
        'policy_slow',
        causes.policy_slow,
        'inference of its requests grew',
        'The policy itself took longer.',
        'look at the device of the server: other work, heat, a larger batch, another policy',
    ),
    DiagnosisRule(
        'network',
        causes.network_slow,
        'round trip less the time of the server grew, and the time of the server did not',
        'The network was slow, or something on the way.',
        'radio, switch, other traffic; profile:=wan or a longer buffer_time_s bears more',
    ),
    DiagnosisRule(
        'policy_failed',
        causes.policy_failed,
        'answers with an error or NaN',
        'The server answered, and the answers could not be played: the policy fails.',
        'the reason stands in the time line; `lerobot-serve replay` of a capture asks again',
    ),
    DiagnosisRule(
        'lost_or_hung',
        causes.request_lost,
        'requests timed out, and the whole trace of the server has no record of them',
        'Requests were lost on the way, or the server hung.',
        'log and /healthz of the server; then the network between robot and server',
    ),
    DiagnosisRule(
        'answer_lost',
        causes.reply_lost,
        'the server answered in time, and the edge has no such answer',
        'Answers were lost on the way back.',
        'the network from server to robot: large messages, drops in ~/state of the edge',
    ),
    DiagnosisRule(
        'router',
        causes.rerouted,
        'its episode was moved, another replica answered, or slots failed',
        'The router sent it elsewhere.',
        '~/state of the router names each replica and why; docs/router.md',
    ),
    DiagnosisRule(
        'server_gone',
        causes.session_lost,
        'the session was lost or the server was leaving',
        'It lost its server.',
        'was the server started again? its log and /readyz say why',
    ),
    DiagnosisRule(
        'cage',
        causes.cage_intervention,
        'the cage changed more of its commands than before',
        'The safety cage held it back: the policy asks for more than the limits allow.',
        'a wrong policy, unit or limit; `lerobot-serve audit` says whether limits were kept',
    ),
    DiagnosisRule(
        'ticks_missed',
        causes.steps_missed,
        'control steps are left out while it played',
        'Its own processor was taken by something else.',
        'give the edge a core; see TicksMissed in docs/metrics.md',
    ),
    DiagnosisRule(
        'buffer_short',
        causes.buffer_too_short,
        'round trips longer than buffer_time_s, before as well as during',
        'It asks too late: answers always take longer than what is left to play.',
        'raise buffer_time_s, or max_action_age_s with it',
    ),
)


def evaluate_rules(facts: WindowFacts) -> list[RuleResult]:
    """Return what each rule says, in the order of the table."""
    return [_verdict(rule, rule.judge(facts)) for rule in RULES]


def _verdict(rule: DiagnosisRule, finding: CauseFinding) -> RuleResult:
    if finding.is_cause is None:
        return RuleResult(rule, RuleStatus.NO_EVIDENCE, finding.figures)
    return RuleResult(
        rule, RuleStatus.FOUND if finding.is_cause else RuleStatus.RULED_OUT, finding.figures
    )
