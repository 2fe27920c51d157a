# SPDX-License-Identifier: Apache-2.0
"""Format a survey of a link as text and as JSON. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lerobot_serve.tools.link.survey import LinkSurvey, Participant, ServerAnswers
from lerobot_serve.tools.output.text import printable

NONE = '-'
# policy_type in the status of a router
ROUTER = 'router'


def as_text(survey: LinkSurvey) -> str:
    """Return participants, rates and problems as aligned text."""
    found = as_json(survey)
    participants = [
        ('participant', 'client of', 'role', 'token', 'get_status p50', 'p99 [ms]', 'policy')
    ]
    for each in found['participants']:
        trip = each.get('round_trip_ms') or {}
        participants.append(
            (
                each['name'],
                each['client_of'] or NONE,
                each['role'],
                'yes' if each['has_token'] else 'no',
                number(trip.get('p50')),
                number(trip.get('p99')),
                each.get('policy') or NONE,
            )
        )
    rates = [('key', 'messages/s', 'kB/s')]
    rates += [
        (rate['key'], number(rate['messages_per_s']), number(rate['kb_per_s']))
        for rate in found['keys']
    ]
    head = f'site {survey.site}, watched for {survey.duration_s:.1f} s at ' + (
        ', '.join(survey.reached) or NONE
    )
    return '\n'.join(
        [head, '', *aligned(participants), '', *aligned(rates), *problem_lines(survey)]
    )


def problem_lines(survey: LinkSurvey) -> list[str]:
    return ['', *map(printable, survey.problem_texts)] if survey.problem_texts else []


def as_json(survey: LinkSurvey) -> dict[str, Any]:
    """Return the survey as an object of JSON."""
    return {
        'site': survey.site,
        'duration_s': round(survey.duration_s, 3),
        'reached': list(survey.reached),
        'problems': survey.problem_texts,
        'failure': survey.failure,
        'participants': [_participant(each, survey) for each in survey.participants],
        'keys': [
            {
                'key': rate.key,
                'messages_per_s': round(rate.messages_per_s, 3),
                'kb_per_s': round(rate.kb_per_s, 3),
            }
            for rate in survey.rates
        ],
    }


def _participant(each: Participant, survey: LinkSurvey) -> dict[str, Any]:
    has_token = each in survey.alive
    if not each.is_server:
        return {
            'name': each.client,
            'client_of': each.server,
            'role': each.role,
            'has_token': has_token,
        }
    answers = survey.answers.get(each.server, ServerAnswers())
    return {
        'name': each.server,
        'client_of': '',
        'role': 'router' if answers.policy_type == ROUTER else 'server',
        'has_token': has_token,
        'policy': answers.policy,
        'text': answers.text,
        'error': answers.error,
        'round_trip_ms': {
            'n': len(answers.round_trips_ms),
            'p50': answers.percentile_ms(50),
            'p99': answers.percentile_ms(99),
        },
    }


def number(value: float | None) -> str:
    return NONE if value is None else f'{value:.1f}'


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines with columns of equal width."""
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
