# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of a Zenoh link: keys and their expiry, endpoints, servers."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.errors import UserError
from lerobot_serve.tools.doctor.finding import Finding, FindingLevel
from lerobot_serve.tools.doctor.link import check_link, LinkFacts, probe_link
from lerobot_serve.tools.keys.identity import KeyRole
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


def found_by_name(facts: LinkFacts) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_link(facts)}


def made_keys(folder: Path, days: int) -> Path:
    """Return the folder of a robot's keys that are valid for this long."""
    make_site(folder, 'lab', 3650)
    with opened_site(folder) as site:
        return folder / site.add(KeyRole.ROBOT, 'robot_1', days, hosts=(), direct=False).folder


def test_without_endpoints_and_keys_nothing_is_checked():
    (finding,) = check_link(LinkFacts(NOW))
    assert finding.verdict is FindingLevel.SKIPPED and '--connect' in finding.found


def test_a_server_that_responds_is_named_with_its_clients():
    found = found_by_name(LinkFacts(NOW, (HERE,), survey=survey()))
    assert {finding.verdict for finding in found.values()} == {FindingLevel.OK}
    assert found[HERE].found == 'reached, and opens a Zenoh session'
    assert found['policy_server'].found == (
        'act@1; get_status p50 2.0 ms, p99 3.0 ms; clients: robot robot_7'
    )


def test_one_endpoint_of_two_that_is_not_reached_is_named_with_its_remedy():
    facts = LinkFacts(NOW, (THERE, HERE), survey=survey(problems={THERE: GONE}))
    found = found_by_name(facts)
    assert found[THERE].verdict is FindingLevel.FAILURE
    assert found[THERE].found == f'nothing listens on {THERE}'
    assert found[THERE].remedy == 'start the server or router there, or correct --connect'
    assert found[HERE].verdict is found['policy_server'].verdict is FindingLevel.OK


@pytest.mark.parametrize('problems', [{}, {THERE: GONE}])
def test_two_servers_of_one_name_are_a_failure_that_names_both(problems):
    processes = {'desk.41.ab', 'rack.42.cd'}
    conflict = conflict_text(ServerKeys('lab', 'policy_server'), processes)
    facts = LinkFacts(NOW, (HERE, THERE), survey=survey(problems=problems, conflicts=(conflict,)))
    found = found_by_name(facts)
    assert found['servers'].verdict is FindingLevel.FAILURE
    assert 'desk.41, rack.42' in found['servers'].found
    assert 'stop all but one' in found['servers'].remedy
    failed = {name for name, each in found.items() if each.verdict is FindingLevel.FAILURE}
    assert failed == {'servers', *problems}


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


def test_where_no_endpoint_is_reached_servers_are_not_judged():
    found = found_by_name(
        LinkFacts(NOW, (THERE,), survey=survey(reached=(), problems={THERE: GONE}))
    )
    assert found['servers'].verdict is FindingLevel.SKIPPED


@pytest.mark.parametrize(
    ('alive', 'text', 'remedy'),
    [
        (frozenset(), 'no server or router is there', 'zenoh_listen'),
        (frozenset({Participant('hall', 's')}), 'no server of the site lab', '--site'),
    ],
)
def test_an_endpoint_without_our_servers_fails(alive, text, remedy):
    finding = found_by_name(LinkFacts(NOW, (HERE,), survey=survey(alive=alive)))['servers']
    assert finding.verdict is FindingLevel.FAILURE
    assert text in finding.found and remedy in finding.remedy


def test_a_server_that_does_not_respond_fails_with_the_reason():
    answers = ServerAnswers(error='no reply within 1 s')
    found = found_by_name(LinkFacts(NOW, (HERE,), survey=survey(answers=answers)))
    assert found['policy_server'].verdict is FindingLevel.FAILURE
    assert 'no reply within 1 s' in found['policy_server'].found
    assert '--client' in found['policy_server'].remedy


@pytest.mark.parametrize(
    ('days', 'verdict'),
    [(365, FindingLevel.OK), (30, FindingLevel.OK), (29, FindingLevel.WARNING)],
)
def test_keys_that_expire_within_a_month_are_a_warning(days, verdict):
    keys = Credentials('robot.robot_1~2', NOW + timedelta(days=days))
    finding = found_by_name(LinkFacts(NOW, keys=keys))['keys']
    assert finding.verdict is verdict and f'({days} days)' in finding.found
    if verdict is FindingLevel.WARNING:
        assert finding.remedy.startswith('lerobot-serve keys rotate robot.robot_1, ')


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
    assert "'10.0.0.1' is no Zenoh endpoint" in finding.found and finding.remedy


def test_without_eclipse_zenoh_the_remedy_is_pip(monkeypatch):
    monkeypatch.setattr('lerobot_serve.tools.doctor.link.survey_link', raises_module_not_found)
    (finding,) = check_link(probe_link(ZenohSettings(connect=(HERE,)), 'doctor', 0.1))
    assert finding.verdict is FindingLevel.FAILURE
    assert 'pip install eclipse-zenoh' in finding.remedy


def raises_module_not_found(*_: object) -> None:
    raise ModuleNotFoundError(name='zenoh')
