# SPDX-License-Identifier: Apache-2.0
"""
Reads the keys of a Zenoh link and surveys it, as `lerobot-serve link` does. The caller's thread;
threads of Zenoh deposit.
"""

from __future__ import annotations

from datetime import datetime, timezone

from lerobot_serve.errors import UserError
from lerobot_serve.requirements import missing_package_text
from lerobot_serve.tools.doctor.link import LinkFacts
from lerobot_serve.tools.link.survey import LinkSurvey
from lerobot_serve.zenoh.credentials import check_credentials, Credentials
from lerobot_serve.zenoh.settings import ZenohSettings


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
