# SPDX-License-Identifier: Apache-2.0
"""The report of a survey of a link. Pure functions."""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.link.survey import LinkSurvey, Participant, ServerAnswers
from lerobot_serve.tools.output.report import Part, Report, Table

NONE = '-'
HEADS = ('participant', 'client of', 'role', 'token', 'get_status p50', 'p99 [ms]', 'policy')
# policy_type in the status of a router
ROUTER = 'router'


def link_report(survey: LinkSurvey) -> Report:
    """Return participants, rates and problems; the status is 1 when no server responds."""
    data = {
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
    return Report(data, _parts(survey, data), error=survey.failure)


def _parts(survey: LinkSurvey, data: dict[str, Any]) -> list[Part]:
    if not survey.participants:
        return []
    participants = [_row(each) for each in data['participants']]
    rates = [
        (each.key, number(each.messages_per_s), number(each.kb_per_s)) for each in survey.rates
    ]
    problems = ['', *survey.problem_texts] if survey.problem_texts else []
    return [
        f'site {survey.site}, watched for {survey.duration_s:.1f} s at '
        + (', '.join(survey.reached) or NONE),
        '',
        Table(HEADS, participants),
        '',
        Table(('key', 'messages/s', 'kB/s'), rates),
        *problems,
    ]


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    trip = each.get('round_trip_ms') or {}
    return (
        each['name'],
        each['client_of'] or NONE,
        each['role'],
        'yes' if each['has_token'] else 'no',
        number(trip.get('p50')),
        number(trip.get('p99')),
        each.get('policy') or NONE,
    )


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
