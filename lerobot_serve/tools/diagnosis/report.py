"""The story for people and for machines. Pure functions; any thread."""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.audit.report import printable
from lerobot_serve.tools.diagnosis.diagnose import Diagnosis
from lerobot_serve.tools.diagnosis.rules import RuleResult, RuleStatus
from lerobot_serve.tools.diagnosis.time_of_day import format_utc
from lerobot_serve.tools.diagnosis.timeline import timeline_lines
from lerobot_serve.tools.traces.stalls import Stall

STALLS_SHOWN = 20


def as_text(story: Diagnosis, *, show_line: bool = True) -> str:
    """Return the story for people; docs/runbook.md reads one."""
    written = _head(story)
    if story.facts:
        written += ['', *_clocks(story)]
        if show_line:
            written += [
                '',
                *(f'{format_utc(t)}  {printable(w)}' for t, w in timeline_lines(story.facts)),
            ]
        written += ['', *_verdicts(story)]
    return '\n'.join(written)


def as_json(story: Diagnosis) -> dict[str, Any]:
    """Return the story for machines; docs/runbook.md has the fields."""
    facts = story.facts
    return {
        'client': story.client,
        'outcome': outcome(story),
        'stalls': story.found.count,
        'stalled_s': round(story.found.total_s, 3),
        'shown_stalls': [_stall_json(stall) for stall in story.found.stalls],
        'window': facts
        and {
            'begin': format_utc(facts.begin_s, day=True),
            'end': format_utc(facts.end_s, day=True),
        },
        'traces_missing': facts.missing if facts else [],
        'clocks': [
            {
                'node': peer.node,
                'clock_offset_s': round(peer.clock_offset_s, 3),
                'requests': peer.pairs,
            }
            for peer in (facts.peers if facts else [])
        ],
        'time_line': [
            {'when': format_utc(time_s, day=True), 'what': words}
            for time_s, words in (timeline_lines(facts) if facts else [])
        ],
        'verdicts': [
            {
                'rule': verdict.rule.name,
                'says': verdict.says.value,
                'words': verdict.rule.words if verdict.says is RuleStatus.FOUND else '',
                'figures': verdict.figures,
                'do': verdict.rule.todo if verdict.says is RuleStatus.FOUND else '',
            }
            for verdict in story.verdicts
        ],
    }


def outcome(story: Diagnosis) -> str:
    """Return explained, not_told, no_stall, not_covered or unknown_client."""
    if not story.found.is_found:
        return 'unknown_client'
    if not story.is_covered:
        return 'not_covered'
    if story.causes:
        return 'explained'
    return (
        'not_told'
        if story.facts and (story.facts.stalls or not story.facts.has_edge)
        else 'no_stall'
    )


def _head(story: Diagnosis) -> list[str]:
    found, name = story.found, printable(story.client)
    if not found.is_found:
        known = ', '.join(printable(each) for each in sorted(found.clients)[:STALLS_SHOWN])
        return [f'nothing of {name} is in these traces; they tell of: {known or "nobody"}']
    span = f'{format_utc(found.begin_s, day=True)} to {format_utc(found.end_s)}'
    written = [f'{name}: {span} UTC; stalls: {found.count}, together {found.total_s:.1f} s']
    if not story.is_covered:
        return [*written, f'nothing is told of {format_utc(story.asked_s or 0.0, day=True)} UTC']
    written += [f'  {_stall_words(stall)}' for stall in found.stalls[:STALLS_SHOWN]]
    if found.count > min(len(found.stalls), STALLS_SHOWN):
        written.append(f'  and {found.count - min(len(found.stalls), STALLS_SHOWN)} more')
    if story.facts:
        window = f'{format_utc(story.facts.begin_s)} to {format_utc(story.facts.end_s)}'
        why = 'the longest stall' if story.asked_s is None else 'as asked'
        written.append(f'looked at: {window} ({why}), and the minute before')
    elif not found.edges:
        written.append(
            'none of its edge has a trace, so stalls are not told; name a time with --at'
        )
    else:
        written.append('nothing to explain; name a time with --at to see what happened then')
    return written


def _clocks(story: Diagnosis) -> list[str]:
    written = ['Joined by client, session and number; clocks only order the lines.']
    for peer in story.facts.peers:
        if peer.pairs:
            # never -0
            ahead_ms = round(peer.clock_offset_s * 1e3) + 0
            ahead = f'its clock is {ahead_ms:+d} ms off that of the robot, put right'
            written.append(f'  {printable(peer.node)}: {peer.pairs} requests joined; {ahead}')
        else:
            written.append(
                f'  {printable(peer.node)}: no request joins; its clock is taken as it is'
            )
    return written + [f'  {words}' for words in story.facts.missing]


def _verdicts(story: Diagnosis) -> list[str]:
    facts = story.facts
    begin_s, end_s = facts.trouble_s
    n = len(facts.stalls)
    what = f'stalls: {n}' if n else 'no stall in this window'
    written = [f'VERDICT  {what}; during: {format_utc(begin_s)} to {format_utc(end_s)}']
    for verdict in story.causes:
        written += [f'  {verdict.rule.words}', f'    {printable(verdict.figures)}']
        written.append(f'    do: {verdict.rule.todo}')
    if not story.causes:
        written += _nothing(story)
    if facts.stalls_of_others:
        told = ', '.join(
            f'{printable(who)} {n}' for who, n in sorted(facts.stalls_of_others.items())
        )
        written.append(f'  Stalls of other robots then, by their own clocks: {told}')
    for says, title in (
        (RuleStatus.RULED_OUT, 'Not the cause:'),
        (RuleStatus.NO_EVIDENCE, 'Not told:'),
    ):
        left = [verdict for verdict in story.verdicts if verdict.says is says]
        if left:
            written += ['', title, *(_short(verdict) for verdict in left)]
    return written


def _nothing(story: Diagnosis) -> list[str]:
    if outcome(story) == 'no_stall':
        return ['  Nothing happened that a rule knows.']
    written = ['  The traces do not tell. To know next time:']
    written += [f'    {words}' for words in story.facts.missing]
    return [*written, '    requests and answers themselves: capture_folder of policy_server']


def _short(verdict: RuleResult) -> str:
    return f'  {verdict.rule.name:<18} {printable(verdict.figures)}'


def _stall_words(stall: Stall) -> str:
    length = f'{stall.length_s:6.2f} s'
    goes_on = ', to the end of its trace' if stall.is_open else ''
    return f'{format_utc(stall.begin_s)}  {length}  {printable(stall.why) or "no reason told"}{goes_on}'


def _stall_json(stall: Stall) -> dict[str, Any]:
    return {
        'begin': format_utc(stall.begin_s, day=True),
        'length_s': round(stall.length_s, 3),
        'why': stall.why,
        'is_open': stall.is_open,
    }
