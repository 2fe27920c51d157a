# SPDX-License-Identifier: Apache-2.0
"""
Reads the keys of a Zenoh link, surveys it as `lerobot-serve link` does, and judges it: keys,
endpoints, servers and their clients. The caller's thread; threads of Zenoh deposit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from lerobot_serve.errors import UserError
from lerobot_serve.requirements import missing_package_text
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning
from lerobot_serve.tools.link.survey import LinkSurvey, Participant, ServerAnswers
from lerobot_serve.zenoh.credentials import check_credentials, Credentials, SOON
from lerobot_serve.zenoh.settings import ZenohSettings

NOT_GIVEN = 'give --connect ENDPOINT to check a link over Zenoh'
PAGE = 'see docs/several_machines.md'
# of a server that is present, and does not respond to a query
NO_RESPONSE = (
    'see its log; under access control give --client the name in the certificate of this machine'
)


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """
    What was found of a link; None: not checked. `keys_problem` and `problem` are sentences with
    the remedy: why the keys open no link, and why the link was not surveyed.
    """

    now: datetime
    endpoints: tuple[str, ...] = ()
    keys: Credentials | None = None
    keys_problem: str = ''
    survey: LinkSurvey | None = None
    problem: str = ''


def check_link(facts: LinkFacts) -> list[Finding]:
    """Return the findings; one that is skipped where neither keys nor endpoints are given."""
    found = check_keys(facts)
    if facts.problem:
        found.append(failed('link', facts.problem))
    if facts.survey:
        found += check_endpoints(facts.survey, facts.endpoints)
        found += check_servers(facts.survey)
    elif not facts.problem:
        why = 'these keys open no link' if facts.keys_problem else NOT_GIVEN
        found.append(skipped('link', why))
    return found


def check_keys(facts: LinkFacts) -> list[Finding]:
    name, keys = 'keys', facts.keys
    if facts.keys_problem:
        return [failed(name, facts.keys_problem)]
    if keys is None:
        return []
    left = keys.expires - facts.now
    found = f'{keys.common_name}, valid until {keys.expires:%Y-%m-%d} ({left.days} days)'
    if left < SOON:
        # a name of a machine has no ~; what follows is the generation of its key
        machine = keys.common_name.partition('~')[0]
        return [
            warning(
                name,
                found,
                f'lerobot-serve keys rotate {machine}, copy its folder to this machine, and '
                'restart its nodes',
            )
        ]
    return [ok(name, found)]


def check_endpoints(survey: LinkSurvey, endpoints: tuple[str, ...]) -> list[Finding]:
    """Return one finding for each endpoint to connect to."""
    return [
        failed(endpoint, survey.problems[endpoint])
        if endpoint in survey.problems
        else ok(endpoint, 'reached, and opens a Zenoh session')
        for endpoint in endpoints
    ]


def check_servers(survey: LinkSurvey) -> list[Finding]:
    """Return one finding for each server and router, with its clients, and each conflict."""
    name = 'servers'
    if not survey.reached:
        return [skipped(name, 'no endpoint is reached')]
    conflicts = [failed(name, conflict) for conflict in survey.conflicts]
    if not survey.servers:
        return [failed(name, survey.failure), *conflicts]
    return [*(check_server(each, survey) for each in survey.servers), *conflicts]


def check_server(server: Participant, survey: LinkSurvey) -> Finding:
    answers = survey.answers.get(server.server, ServerAnswers())
    p50_ms, p99_ms = answers.percentile_ms(50), answers.percentile_ms(99)
    if p50_ms is None or p99_ms is None:
        why = answers.error or 'no response yet'
        return failure(server.server, f'is there, and does not respond: {why}', NO_RESPONSE)
    clients = [
        f'{each.role} {each.client}'
        for each in survey.participants
        if each.server == server.server and not each.is_server and each in survey.alive
    ]
    return ok(
        server.server,
        f'{answers.policy or answers.policy_type or "no policy"}; get_status p50 {p50_ms:.1f} ms, '
        f'p99 {p99_ms:.1f} ms; clients: {", ".join(clients) or "none"}',
    )


def failed(name: str, sentence: str) -> Finding:
    """Return a failure; the remedy follows the first semicolon of the sentence."""
    found, _, remedy = sentence.partition('; ')
    return failure(name, found, remedy or PAGE)


def probe_link(
    settings: ZenohSettings, client: str, duration_s: float, servers: tuple[str, ...] = ()
) -> LinkFacts:
    """Return what is found; the survey takes `duration_s`, and is left out without endpoints."""
    keys: Credentials | None = None
    keys_problem = problem = ''
    survey: LinkSurvey | None = None
    try:
        if settings.keys:
            keys = check_credentials(settings.keys, may_listen=bool(settings.listen))
    except UserError as error:
        keys_problem = str(error)
    if (settings.connect or settings.listen) and not keys_problem:
        try:
            survey = survey_link(settings, client, duration_s, servers)
        except UserError as error:
            problem = str(error)
        except ModuleNotFoundError as error:
            problem = missing_package_text(error)
    now = datetime.now(timezone.utc)
    return LinkFacts(now, settings.connect, keys, keys_problem, survey, problem)


def survey_link(
    settings: ZenohSettings, client: str, duration_s: float, servers: tuple[str, ...]
) -> LinkSurvey:
    """Raises UserError for wrong settings, ModuleNotFoundError without eclipse-zenoh."""
    from lerobot_serve.tools.link.watch import LinkWatch

    with LinkWatch(settings, client, servers) as watch:
        return watch.survey(duration_s)
