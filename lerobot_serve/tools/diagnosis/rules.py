# SPDX-License-Identifier: Apache-2.0
"""The table of diagnosis rules: evidence, summary and remedy. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lerobot_serve.tools.diagnosis import causes
from lerobot_serve.tools.diagnosis.causes import CauseFinding
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts


class RuleStatus(Enum):
    """Result of a rule."""

    FOUND = 'found'
    RULED_OUT = 'ruled_out'
    # the traces lack the evidence
    NO_EVIDENCE = 'no_evidence'


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """One cause: the evidence it needs, its summary and its remedy."""

    name: str
    evaluate: Callable[[WindowFacts], CauseFinding]
    evidence_needed: str
    summary: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Result of one rule for a window, with the evidence that it has or lacks."""

    rule: DiagnosisRule
    status: RuleStatus
    evidence: str


RULES = (
    DiagnosisRule(
        'server_overloaded',
        causes.server_overloaded,
        'queue wait grew for this robot and for all others of that server at that time',
        'Server overloaded: queue wait grew for all its robots.',
        'fewer robots, another replica, or scheduler:=dynamic_batching; '
        'see ServerSaturated in docs/metrics.md',
    ),
    DiagnosisRule(
        'own_queue_wait',
        causes.own_queue_only,
        'queue wait grew for this robot, and not for all others of that server',
        'Queue wait grew for this robot only.',
        'check the scheduler, and requests of this robot that queue behind each other',
    ),
    DiagnosisRule(
        'superseded_requests',
        causes.requests_too_often,
        'requests of this robot, and of no other, were superseded by newer ones',
        'This robot supersedes its own requests before the server starts them.',
        'raise request_timeout_s of its edge',
    ),
    DiagnosisRule(
        'policy_slow',
        causes.policy_slow,
        'inference of its requests grew',
        'Inference took longer.',
        'check the device of the server: other work, heat, a larger batch, another policy',
    ),
    DiagnosisRule(
        'network',
        causes.network_slow,
        'the round trip minus server time grew, and the server time did not',
        'The network was slow.',
        'check radio, switch and other traffic; use network_profile:=wan or a longer '
        'request_threshold_s',
    ),
    DiagnosisRule(
        'policy_failed',
        causes.policy_failed,
        'replies with an error or NaN',
        'The policy fails: the server replied with errors.',
        'see the reason in the timeline; `lerobot-serve replay` of a capture repeats the requests',
    ),
    DiagnosisRule(
        'quota_used_up',
        causes.quota_used_up,
        'replies that refuse a request because its quota is used up',
        'The quota of the robot, or of its group, was used up.',
        'raise it in `quotas` of the router or server, or send fewer requests: '
        'docs/router.md#quotas',
    ),
    DiagnosisRule(
        'request_lost',
        causes.request_lost,
        'requests timed out, and the whole trace of the server has no record of them',
        'Requests did not reach the server, or the server hung.',
        'check log and /healthz of the server; then the network between robot and server',
    ),
    DiagnosisRule(
        'reply_lost',
        causes.reply_lost,
        'the server replied in time, and the edge did not accept the reply',
        'Replies were lost between server and robot.',
        'check the network from server to robot: large messages, drops in ~/state of the edge',
    ),
    DiagnosisRule(
        'router',
        causes.rerouted,
        'its episode was moved, another replica replied, or slots failed',
        'The router moved the episode or chose another replica.',
        'see ~/state of the router for each replica and its reason; docs/router.md',
    ),
    DiagnosisRule(
        'session_lost',
        causes.session_lost,
        'the session was lost or the server was draining',
        'Session lost: the server closed it, drained or ended.',
        'check whether the server restarted: its log and /readyz give the reason',
    ),
    DiagnosisRule(
        'cage',
        causes.cage_intervention,
        'the cage changed more of its commands than before',
        'The safety cage limited the robot: the policy exceeds the limits.',
        'check policy, units and limits; `lerobot-serve audit` checks that limits were kept',
    ),
    DiagnosisRule(
        'control_steps_missed',
        causes.steps_missed,
        'control steps were missed while actions were executed',
        "Control steps were missed: the robot's CPU was busy.",
        'give the edge a core; see ControlStepsMissed in docs/metrics.md',
    ),
    DiagnosisRule(
        'requests_start_late',
        causes.buffer_too_short,
        'round trips longer than request_threshold_s, before as well as during',
        'Requests start too late: the round trip exceeds request_threshold_s.',
        'raise request_threshold_s, or max_action_age_s with it',
    ),
)


def evaluate_rules(facts: WindowFacts) -> list[RuleResult]:
    """Evaluate all rules, in the order of the table."""
    return [_result(rule, rule.evaluate(facts)) for rule in RULES]


def _result(rule: DiagnosisRule, finding: CauseFinding) -> RuleResult:
    if finding.is_cause is None:
        return RuleResult(rule, RuleStatus.NO_EVIDENCE, finding.evidence)
    return RuleResult(
        rule, RuleStatus.FOUND if finding.is_cause else RuleStatus.RULED_OUT, finding.evidence
    )
