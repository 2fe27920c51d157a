# SPDX-License-Identifier: Apache-2.0
"""
Choose the window, gather its facts and evaluate the rules: one table of cause, summary and remedy,
by rank. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from lerobot_serve.tools.diagnosis import link_causes, process_causes, server_causes
from lerobot_serve.tools.diagnosis.finding import CauseFinding, explained_shares
from lerobot_serve.tools.diagnosis.survey import Survey, survey
from lerobot_serve.tools.diagnosis.window import gather_facts
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts
from lerobot_serve.tools.output.text import resolve_within, TimeOfDay
from lerobot_serve.tools.traces.trace_run import TraceQuery

# a cause of a stall explains at least this share of it
GOOD_SHARE = 0.3


class RuleStatus(Enum):
    """Result of a rule."""

    FOUND = 'found'
    RULED_OUT = 'ruled_out'
    # the traces lack the evidence
    NO_EVIDENCE = 'no_evidence'


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """One cause, its summary and its remedy; docs/runbook.md has the evidence that it needs."""

    name: str
    evaluate: Callable[[WindowFacts], CauseFinding]
    summary: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RuleResult:
    """
    Result of one rule for a window, with the evidence that it has or lacks, and the share of the
    stall that it explains.
    """

    rule: DiagnosisRule
    status: RuleStatus
    evidence: str
    share: float | None = None


# one leads to the other in this order: an instant of a stall belongs to the first that holds
RULES = (
    DiagnosisRule(
        'control_steps_missed',
        process_causes.edge_starved,
        'The edge did not run: it was stopped, or its CPU was busy.',
        'give the edge a core; see ControlStepsMissed in docs/runbook.md',
    ),
    DiagnosisRule(
        'stale_state',
        process_causes.stale_state,
        'The state of the robot was missing or stale.',
        'check driver, rate and link of the topic: `ros2 topic hz`; its bound is max_age_s in the '
        'robot file',
    ),
    DiagnosisRule(
        'router_stopped',
        partial(process_causes.stood_still, role='router'),
        'The router did not run: it was stopped, or its machine stood still.',
        'check load, memory and swap of its machine; docs/router.md has several routers',
    ),
    DiagnosisRule(
        'server_stopped',
        partial(process_causes.stood_still, role='server'),
        'The server did not run: it was stopped, or its machine stood still.',
        'check load, memory and swap of its machine; a second replica takes over meanwhile',
    ),
    DiagnosisRule(
        'quota_used_up',
        server_causes.quota_used_up,
        'The quota of the robot, or of its group, was used up.',
        'raise it in `quotas` of the router or server, or send fewer requests: '
        'docs/router.md#quotas',
    ),
    DiagnosisRule(
        'policy_failed',
        server_causes.policy_failed,
        'The policy fails: the server replied with errors.',
        'see the reason in the timeline; `lerobot-serve replay` of a capture repeats the requests',
    ),
    DiagnosisRule(
        'superseded_requests',
        server_causes.requests_too_often,
        'This robot supersedes its own requests before the server starts them.',
        'raise request_timeout_s of its edge',
    ),
    DiagnosisRule(
        'server_overloaded',
        server_causes.server_overloaded,
        'Server overloaded: queue wait grew for most of its robots.',
        'fewer robots, another replica, or scheduler:=dynamic_batching; '
        'see ServerSaturated in docs/runbook.md',
    ),
    DiagnosisRule(
        'own_queue_wait',
        server_causes.own_queue_only,
        'Queue wait grew for this robot, and not for most others.',
        'check the scheduler, and requests of this robot that queue behind each other',
    ),
    DiagnosisRule(
        'policy_slow',
        server_causes.policy_slow,
        'Inference took longer.',
        'check the device of the server: other work, heat, a larger batch, another policy',
    ),
    DiagnosisRule(
        'request_lost',
        link_causes.request_lost,
        'Requests did not reach the server: a link was lost, or a node between hung.',
        'check the network between robot, router and server; then log and /healthz of the server',
    ),
    DiagnosisRule(
        'reply_lost',
        link_causes.reply_lost,
        'Replies were lost between server and robot.',
        'check the network from server to robot: large messages, drops in ~/state of the edge',
    ),
    DiagnosisRule(
        'network',
        link_causes.network_slow,
        'The network was slow.',
        'check radio, switch and other traffic; use network_profile:=wan or a longer '
        'request_threshold_s',
    ),
    DiagnosisRule(
        'session_lost',
        process_causes.session_lost,
        'Session lost: the server closed it, drained or ended.',
        'check whether the server restarted: its log and /readyz give the reason',
    ),
    DiagnosisRule(
        'router',
        link_causes.rerouted,
        'The router moved the episode, chose another replica, or had none.',
        'see ~/state of the router for each replica and its reason; docs/router.md',
    ),
    DiagnosisRule(
        'requests_start_late',
        server_causes.buffer_too_short,
        'Requests start too late: the round trip exceeds request_threshold_s.',
        'raise request_threshold_s, or max_action_age_s with it',
    ),
    DiagnosisRule(
        'cage',
        process_causes.cage_intervention,
        'The safety cage limited the robot: the policy exceeds the limits.',
        'check policy, units and limits; `lerobot-serve audit` checks that limits were kept',
    ),
)


def evaluate_rules(facts: WindowFacts) -> list[RuleResult]:
    """Evaluate all rules: first the causes, by what they explain, then the others in order."""
    findings = [rule.evaluate(facts) for rule in RULES]
    shares = explained_shares(
        facts.stall_spans, [found.spans if found.is_cause else () for found in findings]
    )
    results = [
        _result(rule, found, share if facts.stalls else None)
        for rule, found, share in zip(RULES, findings, shares, strict=True)
    ]
    return sorted(results, key=_rank)


def _rank(result: RuleResult) -> tuple[bool, float]:
    is_cause = result.status is RuleStatus.FOUND
    return not is_cause, -(result.share or 0.0) if is_cause else 0.0


def _result(rule: DiagnosisRule, finding: CauseFinding, share: float | None) -> RuleResult:
    """Return the result; `share`: what it explains of the stall, None without a stall."""
    if finding.is_cause is None:
        return RuleResult(rule, RuleStatus.NO_EVIDENCE, finding.evidence)
    if not finding.is_cause:
        return RuleResult(rule, RuleStatus.RULED_OUT, finding.evidence)
    if share is None:
        return RuleResult(rule, RuleStatus.FOUND, finding.evidence)
    status = RuleStatus.FOUND if share >= GOOD_SHARE else RuleStatus.RULED_OUT
    evidence = f'{finding.evidence}; explains {share:.0%} of the stall'
    return RuleResult(rule, status, evidence, share)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`facts` is None without a window to explain; `is_covered`: the traces cover that time."""

    client: str
    survey: Survey
    is_covered: bool
    facts: WindowFacts | None
    results: tuple[RuleResult, ...]
    requested_s: float | None

    @property
    def causes(self) -> list[RuleResult]:
        return [result for result in self.results if result.status is RuleStatus.FOUND]


def diagnose(
    paths: Iterable[Path | str],
    client: str,
    *,
    at: TimeOfDay | None = None,
    around_s: float = 10.0,
) -> Diagnosis:
    """Diagnose a window around `at`, or the longest stall. Raises TraceError."""
    query = TraceQuery(paths, with_actions=False)
    found = survey(query.runs, client)
    span_s = span_to_explain(found, at) if found.is_found else None
    if span_s is None:
        return Diagnosis(client, found, found.is_found, None, (), None)
    window = span_s[0] - around_s, span_s[1] + around_s
    is_covered = window[0] <= found.end_s and found.begin_s <= window[1]
    requested_s = None if at is None else span_s[0]
    if not is_covered:
        return Diagnosis(client, found, False, None, (), requested_s)
    facts = gather_facts(found, client, *window)
    return Diagnosis(client, found, True, facts, tuple(evaluate_rules(facts)), requested_s)


def span_to_explain(found: Survey, at: TimeOfDay | None) -> tuple[float, float] | None:
    """Return begin and end of the time `at`, by default of the longest stall if any."""
    if at is not None:
        begin_s = resolve_within(at, found.begin_s, found.end_s)
        return begin_s, begin_s + at.length_s
    stall = found.longest_stall
    return None if stall is None else (stall.begin_s, stall.end_s)
