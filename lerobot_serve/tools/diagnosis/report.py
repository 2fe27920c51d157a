# SPDX-License-Identifier: Apache-2.0
"""The report of a diagnosis. Pure functions; any thread."""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.diagnosis.diagnose import Diagnosis
from lerobot_serve.tools.diagnosis.rules import RuleResult, RuleStatus
from lerobot_serve.tools.diagnosis.timeline import timeline_lines
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts
from lerobot_serve.tools.output.local_time import format_local, format_utc
from lerobot_serve.tools.output.report import Part, Report
from lerobot_serve.tools.output.text import printable
from lerobot_serve.tools.traces.stalls import Stall

STALLS_SHOWN = 20
# exit status without a record of that robot or that time
NO_RECORD = 4


def diagnosis_report(diagnosis: Diagnosis, *, shows_timeline: bool = True) -> Report:
    """Return the report; docs/runbook.md explains one, and lists the fields of its data."""
    status = 0 if diagnosis.survey.is_found and diagnosis.is_covered else NO_RECORD
    return Report(_data(diagnosis), _parts(diagnosis, shows_timeline), status)


def _parts(diagnosis: Diagnosis, shows_timeline: bool) -> list[Part]:
    written, facts = _head(diagnosis), diagnosis.facts
    if facts is None:
        return [*written]
    written += ['', *_clocks(facts)]
    if shows_timeline:
        written += [
            '',
            *(f'{format_local(t)}  {printable(w)}' for t, w in timeline_lines(facts)),
        ]
    return [*written, '', *_results(diagnosis, facts)]


def _data(diagnosis: Diagnosis) -> dict[str, Any]:
    facts = diagnosis.facts
    return {
        'client_id': diagnosis.client,
        'outcome': outcome(diagnosis),
        'stalls': diagnosis.survey.stall_count,
        'stalled_s': round(diagnosis.survey.stalled_s, 3),
        'shown_stalls': [_stall_json(stall) for stall in diagnosis.survey.stalls],
        'window': facts
        and {
            'begin': format_utc(facts.begin_s),
            'end': format_utc(facts.end_s),
        },
        'traces_missing': facts.missing_traces if facts else [],
        'clocks': [
            {
                'node': peer.node,
                'clock_offset_s': round(peer.clock_offset_s, 3),
                'requests': peer.joined_requests,
            }
            for peer in (facts.peers if facts else [])
        ],
        'timeline': [
            {'time': format_utc(time_s), 'event': event}
            for time_s, event in (timeline_lines(facts) if facts else [])
        ],
        'rules': [
            {
                'name': result.rule.name,
                'status': result.status.value,
                'share': None if result.share is None else round(result.share, 3),
                'summary': result.rule.summary if result.status is RuleStatus.FOUND else '',
                'evidence': result.evidence,
                'remedy': result.rule.remedy if result.status is RuleStatus.FOUND else '',
            }
            for result in diagnosis.results
        ],
    }


def outcome(diagnosis: Diagnosis) -> str:
    """Return explained, no_evidence, no_stall, not_covered or unknown_client."""
    if not diagnosis.survey.is_found:
        return 'unknown_client'
    if not diagnosis.is_covered:
        return 'not_covered'
    if diagnosis.causes:
        return 'explained'
    return (
        'no_evidence'
        if diagnosis.facts and (diagnosis.facts.stalls or not diagnosis.facts.has_edge)
        else 'no_stall'
    )


def _head(diagnosis: Diagnosis) -> list[str]:
    survey, name = diagnosis.survey, printable(diagnosis.client)
    if not survey.is_found:
        known = ', '.join(printable(each) for each in sorted(survey.clients)[:STALLS_SHOWN])
        return [f'no record of {name} in these traces; recorded clients: {known or "none"}']
    span = f'{format_local(survey.begin_s, day=True)} to {format_local(survey.end_s)}'
    written = [f'{name}: {span}; stalls: {survey.stall_count}, {survey.stalled_s:.1f} s in total']
    if not diagnosis.is_covered:
        return [*written, f'no record at {format_local(diagnosis.requested_s or 0.0, day=True)}']
    written += [f'  {_stall_words(stall)}' for stall in survey.stalls[:STALLS_SHOWN]]
    if survey.stall_count > min(len(survey.stalls), STALLS_SHOWN):
        written.append(f'  and {survey.stall_count - min(len(survey.stalls), STALLS_SHOWN)} more')
    if diagnosis.facts:
        window = (
            f'{format_local(diagnosis.facts.begin_s)} to {format_local(diagnosis.facts.end_s)}'
        )
        reason = 'the longest stall' if diagnosis.requested_s is None else 'as requested'
        written.append(f'window: {window} ({reason}), and the minute before')
    elif not survey.edges:
        written.append('no trace of its edge, so stalls are unknown; name a time with --at')
    else:
        written.append('no stall to explain; name a time with --at to see its events')
    return written


def _clocks(facts: WindowFacts) -> list[str]:
    written = ['Joined by client, session and request number; clocks only order the lines.']
    for peer in facts.peers:
        if peer.joined_requests:
            # avoids -0
            offset_ms = round(peer.clock_offset_s * 1e3) + 0
            offset = f'clock offset {offset_ms:+d} ms relative to the robot, corrected'
            written.append(
                f'  {printable(peer.node)}: {peer.joined_requests} requests joined; {offset}'
            )
        else:
            written.append(f'  {printable(peer.node)}: no request joined; clock offset unknown')
    return written + [f'  {missing}' for missing in facts.missing_traces]


def _results(diagnosis: Diagnosis, facts: WindowFacts) -> list[str]:
    begin_s, end_s = facts.stall_span_s
    n = len(facts.stalls)
    what = f'stalls: {n}' if n else 'no stall in this window'
    written = [f'VERDICT  {what}; during: {format_local(begin_s)} to {format_local(end_s)}']
    for result in diagnosis.causes:
        written += [f'  {result.rule.summary}', f'    {printable(result.evidence)}']
        written.append(f'    remedy: {result.rule.remedy}')
    if not diagnosis.causes:
        written += _no_cause(diagnosis, facts)
    if facts.stalls_of_others:
        listed = ', '.join(
            f'{printable(robot)} {n}' for robot, n in sorted(facts.stalls_of_others.items())
        )
        written.append(f'  Stalls of other robots in this window, by their own clocks: {listed}')
    for status, title in (
        (RuleStatus.RULED_OUT, 'Not the cause:'),
        (RuleStatus.NO_EVIDENCE, 'No evidence:'),
    ):
        left = [result for result in diagnosis.results if result.status is status]
        if left:
            written += ['', title, *(_short(result) for result in left)]
    return written


def _no_cause(diagnosis: Diagnosis, facts: WindowFacts) -> list[str]:
    if outcome(diagnosis) == 'no_stall':
        return ['  No rule matches.']
    written = ['  The traces hold no evidence. Enable before the next run:']
    written += [f'    {missing}' for missing in facts.missing_traces]
    return [*written, '    contents of requests and replies: capture_folder of policy_server']


def _short(result: RuleResult) -> str:
    return f'  {result.rule.name:<20} {printable(result.evidence)}'


def _stall_words(stall: Stall) -> str:
    length = f'{stall.length_s:6.2f} s'
    end = ', to the end of its trace' if stall.is_open else ''
    reason = printable(stall.reason) or 'no reason recorded'
    return f'{format_local(stall.begin_s)}  {length}  {reason}{end}'


def _stall_json(stall: Stall) -> dict[str, Any]:
    return {
        'begin': format_utc(stall.begin_s),
        'length_s': round(stall.length_s, 3),
        'reason': stall.reason,
        'is_open': stall.is_open,
    }
