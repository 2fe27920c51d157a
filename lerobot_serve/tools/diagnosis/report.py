# SPDX-License-Identifier: Apache-2.0
"""The report of a diagnosis. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from lerobot_serve.tools.diagnosis.diagnose import Diagnosis, RuleResult, RuleStatus
from lerobot_serve.tools.diagnosis.timeline import JoinedRequest
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts
from lerobot_serve.tools.output.report import Part, Report
from lerobot_serve.tools.output.text import format_local, format_utc, printable
from lerobot_serve.tools.traces.stalls import Stall

# minimum number of consecutive normal replies that become one line
FOLD_MIN = 3


def timeline_lines(facts: WindowFacts) -> list[tuple[float, str]]:
    """
    Return times by the clock of the robot with texts; consecutive normal replies are one line.
    """
    written: list[tuple[float, str]] = []
    normal: list[JoinedRequest] = []
    for time_s, what in sorted(_all(facts), key=itemgetter(0)):
        if isinstance(what, JoinedRequest) and is_foldable(what, facts):
            normal.append(what)
            continue
        written += _normal_lines(normal, facts)
        normal = []
        words = describe_request(what, facts) if isinstance(what, JoinedRequest) else what
        written.append((time_s, words))
    return written + _normal_lines(normal, facts)


def is_foldable(request: JoinedRequest, facts: WindowFacts) -> bool:
    """Return whether the request has a normal reply outside the stall."""
    is_plain = request.status == 'ok' and len(request.server_records) < 2
    return is_plain and bool(facts.stalls) and not facts.is_in_stall(request)


def _all(facts: WindowFacts) -> Iterator[tuple[float, JoinedRequest | str]]:
    for each in facts.events:
        yield each.time_s, f'{each.node}  {each.text}'
    for request in facts.requests.values():
        if facts.begin_s <= request.end_s <= facts.end_s:
            yield request.end_s, request


def _normal_lines(normal: list[JoinedRequest], facts: WindowFacts) -> list[tuple[float, str]]:
    if len(normal) < FOLD_MIN:
        return [(request.end_s, describe_request(request, facts)) for request in normal]
    words = (
        f'{facts.client}  requests {normal[0].key.seq} to {normal[-1].key.seq}: {len(normal)} ok'
    )
    trips = [r.round_trip_ms for r in normal if r.round_trip_ms is not None]
    if trips:
        words += f', {min(trips):.0f} to {max(trips):.0f} ms'
    return [(normal[0].end_s, words)]


def describe_request(request: JoinedRequest, facts: WindowFacts) -> str:
    """Return one request: its status, the parts of its time, the records of other nodes."""
    words = [f'{facts.client}  request {request.key.seq} {request.status}']
    if request.edge_record and (reason := request.edge_record.reason):
        words[0] += f' ({reason})'
    parts = ' + '.join(_time_parts(request))
    whole = request.round_trip_ms
    if whole is not None:
        words[0] += f': {whole:.0f} ms' + (f' = {parts}' if parts else '')
    elif parts:
        words[0] += f': {parts}'
    return '; '.join([*words, *_peer_details(request, facts)])


def _time_parts(request: JoinedRequest) -> Iterator[str]:
    for name, value_ms in (
        ('network', request.network_ms),
        ('queue wait', request.queue_wait_ms),
        ('processing', request.processing_ms),
        ('inference', request.inference_ms),
    ):
        if value_ms is not None:
            yield f'{name} {value_ms:.0f}'


def _peer_details(request: JoinedRequest, facts: WindowFacts) -> Iterator[str]:
    """Yield the additional information recorded by router and server."""
    for each in request.router_records:
        record = each.record
        replica = ' '.join(word for word in (record.slot, record.server) if word)
        status = f', {record.status}' if record.status != 'ok' else ''
        yield f'router: {replica or "no replica"}{status}'
    if request.is_lost or request.has_no_reply or request.edge_record is None:
        for each in request.server_records:
            yield f'server: {each.record.status or "?"}'
        if not request.server_records and any(facts.of_role('server')):
            yield 'server: no record'
    if len(request.server_records) > 1:
        yield f'sent {len(request.server_records)} times'


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
