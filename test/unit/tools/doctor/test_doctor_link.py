# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of a Zenoh link: keys and their expiry, endpoints, servers."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.nodes.zenoh_links import free_endpoint
from support.tools.findings import listed

from lerobot_serve.errors import UserError
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.link import check_link, LinkFacts, probe_link
from lerobot_serve.tools.keys.access import KeyRole
from lerobot_serve.tools.keys.site import make_site, opened_site
from lerobot_serve.tools.link.survey import LinkSurvey, Participant, ServerAnswers
from lerobot_serve.zenoh.credentials import check_credentials, Credentials
from lerobot_serve.zenoh.keys import ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.server_name import conflict_text
from lerobot_serve.zenoh.settings import ZenohSettings

NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)
HERE, THERE = 'tcp/10.0.0.1:7447', 'tcp/10.0.0.2:7447'
SERVER = Participant('lab', 'policy_server')
ROBOT = Participant('lab', 'policy_server', 'robot', 'robot_7')
GONE = f'nothing listens on {THERE}; start the server or router there, or correct --connect'
ANSWERS = ServerAnswers([2.0, 1.0, 3.0], policy='act@1')


def survey(
    *,
    reached: tuple[str, ...] = (HERE,),
    problems: dict[str, str] | None = None,
    conflicts: tuple[str, ...] = (),
    alive: frozenset[Participant] = frozenset({SERVER, ROBOT}),
    answers: ServerAnswers = ANSWERS,
) -> LinkSurvey:
    return LinkSurvey(
        'lab', 2.0, reached, problems or {}, conflicts, alive, answers={'policy_server': answers}
    )


def made_keys(folder: Path, days: int) -> Path:
    """Return the folder of a robot's keys that are valid for this long."""
    make_site(folder, 'lab', 3650)
    with opened_site(folder) as site:
        return folder / site.add(KeyRole.ROBOT, 'robot_1', days, hosts=(), direct=False).folder


CONFLICT = conflict_text(ServerKeys('lab', 'policy_server'), {'desk.41.ab', 'rack.42.cd'})
HALL = frozenset({Participant('hall', 's')})
LINKS = {
    'neither endpoints nor keys': LinkFacts(NOW),
    'a server with a client': LinkFacts(NOW, (HERE,), survey=survey()),
    'one endpoint of two is not reached': LinkFacts(
        NOW, (THERE, HERE), survey=survey(problems={THERE: GONE})
    ),
    'two servers of one name': LinkFacts(NOW, (HERE,), survey=survey(conflicts=(CONFLICT,))),
    'two servers of one name, and an endpoint that is not reached': LinkFacts(
        NOW, (HERE, THERE), survey=survey(problems={THERE: GONE}, conflicts=(CONFLICT,))
    ),
    'no endpoint is reached': LinkFacts(
        NOW, (THERE,), survey=survey(reached=(), problems={THERE: GONE})
    ),
    'no server': LinkFacts(NOW, (HERE,), survey=survey(alive=frozenset())),
    'servers of another site': LinkFacts(NOW, (HERE,), survey=survey(alive=HALL)),
    'a server that does not respond': LinkFacts(
        NOW, (HERE,), survey=survey(answers=ServerAnswers(error='no reply within 1 s'))
    ),
    **{
        f'keys valid for {days} days': LinkFacts(
            NOW, keys=Credentials('robot.robot_1~2', NOW + timedelta(days=days))
        )
        for days in (365, 30, 29)
    },
}


@pytest.mark.golden
def test_what_is_said_of_a_link(golden):
    found = [f'{name}\n{listed(check_link(facts))}' for name, facts in LINKS.items()]
    golden.holds('doctor/link.txt', '\n'.join(found))


def test_two_servers_of_one_name_are_found_on_a_link():
    endpoint, keys = free_endpoint(), ServerKeys('lab', '/policy_server')
    with closing(ZenohLink(ZenohSettings(listen=(endpoint,)))) as link:
        shown = (keys.alive, keys.instance('desk.41.ab'), keys.instance('rack.42.cd'))
        tokens = [link.declare_alive(key) for key in shown]
        settings = ZenohSettings('lab', connect=(endpoint, free_endpoint()))
        found = check_link(probe_link(settings, 'doctor', 0.5))
        for token in tokens:
            token.undeclare()
    verdicts = [finding.verdict is FindingLevel.OK for finding in found]
    # the endpoints, the server that does not respond, and the conflict
    assert verdicts == [True, False, False, False]
    assert 'desk.41, rack.42' in found[-1].found


def test_real_keys_say_whose_they_are_and_until_when(tmp_path):
    folder = made_keys(tmp_path / 'keys', 20)
    left = check_credentials(folder, may_listen=False).expires - datetime.now(timezone.utc)
    assert timedelta(days=19, hours=23) < left <= timedelta(days=20)
    found = check_link(probe_link(ZenohSettings(keys=folder), 'doctor', 0.1))
    assert [(each.name, each.verdict) for each in found] == [
        ('keys', FindingLevel.WARNING),
        ('link', FindingLevel.SKIPPED),
    ]
    assert found[0].found.startswith('robot.robot_1, valid until ')


def test_keys_that_open_no_link_are_a_failure_and_no_endpoint_is_tried(tmp_path):
    folder = made_keys(tmp_path / 'keys', 365)
    (folder / 'key.pem').chmod(0o644)
    with pytest.raises(UserError):
        check_credentials(folder, may_listen=False)
    facts = probe_link(ZenohSettings(connect=('tls/localhost:9',), keys=folder), 'doctor', 0.1)
    keys, link = check_link(facts)
    assert keys.verdict is FindingLevel.FAILURE
    assert 'mode 0644' in keys.found and 'chmod 600' in keys.remedy
    assert link.verdict is FindingLevel.SKIPPED


def test_an_endpoint_that_is_none_is_a_failure_without_a_survey():
    (finding,) = check_link(probe_link(ZenohSettings(connect=('10.0.0.1',)), 'doctor', 0.1))
    assert finding.verdict is FindingLevel.FAILURE
    assert "'10.0.0.1' is not a Zenoh endpoint" in finding.found and finding.remedy


def test_without_eclipse_zenoh_the_remedy_is_pip(monkeypatch):
    monkeypatch.setattr('lerobot_serve.tools.doctor.link.survey_link', raises_module_not_found)
    (finding,) = check_link(probe_link(ZenohSettings(connect=(HERE,)), 'doctor', 0.1))
    assert finding.verdict is FindingLevel.FAILURE
    assert 'pip install eclipse-zenoh' in finding.remedy


def raises_module_not_found(*_: object) -> None:
    raise ModuleNotFoundError(name='zenoh')
