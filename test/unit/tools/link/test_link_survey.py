# SPDX-License-Identifier: Apache-2.0
"""What a survey of a Zenoh link makes of keys, counts and responses, also for an operator."""

from __future__ import annotations

from contextlib import closing
import json
import threading

import pytest
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, opened, Served, SITE

from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.tools.link.survey import (
    is_token,
    key_rates,
    KeyCount,
    KeyCounter,
    KeyRate,
    link_report,
    LinkSurvey,
    Participant,
    participant,
    ServerAnswers,
)
from lerobot_serve.tools.link.watch import LinkWatch, split
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ServerStatus

SERVER = Participant('lab', 'policy_server')
ROBOT = Participant('lab', 'policy_server', 'robot', 'robot_7')
KEYS = ServerKeys('lab', '/policy_server')
ADDRESS = 'tcp/10.0.0.1:7447'


def survey(**found: object) -> LinkSurvey:
    """Return a survey in which one server is there and responds."""
    given = {
        'reached': (ADDRESS,),
        'problems': {},
        'alive': frozenset({SERVER, ROBOT}),
        'answers': {'policy_server': ServerAnswers([2.0, 1.0, 3.0], policy='act@1')},
        **found,
    }
    return LinkSurvey('lab', 2.0, **given)


def client_keys(role: Role) -> list[str]:
    keys = KEYS.client(role, 'robot_7')
    return [
        keys.alive,
        keys.observation,
        keys.no_session,
        keys.service('get_status'),
        keys.reply(1),
    ]


@pytest.mark.parametrize('role', Role)
def test_every_key_of_a_client_names_it(role):
    for key in client_keys(role):
        assert participant(key) == Participant('lab', 'policy_server', role.value, 'robot_7')


def test_the_keys_of_a_server_name_it():
    assert participant(KEYS.alive) == participant(KEYS.status) == SERVER
    assert participant(ServerKeys('lab', '/cell_2/router').alive).server == 'cell_2.router'


@pytest.mark.parametrize('key', ['', '@lerobot/lab', 'lab/policy_server/alive', '@other/a/b/c'])
def test_other_keys_name_nobody(key):
    assert participant(key) is None


def test_only_the_last_segment_makes_a_token():
    assert is_token(KEYS.alive)
    assert not is_token(KEYS.client(Role.ROBOT, 'alive').observation)


def test_rates_are_per_second_and_sorted():
    counter = KeyCounter()
    for size in (1000, 3000):
        counter.count('b', b'x' * size)
    counter.count('a', b'')
    assert key_rates([counter.counts()], 2.0) == [KeyRate('a', 0.5, 0.0), KeyRate('b', 1.0, 2.0)]


def test_a_message_that_passes_two_endpoints_counts_once():
    rates = key_rates([{'a': KeyCount(9, 900)}, {'a': KeyCount(10, 1000)}], 1.0)
    assert rates == [KeyRate('a', 10.0, 1.0)]


@pytest.mark.parametrize(
    ('endpoint', 'parts'),
    [('tcp/10.0.0.1:7447', ('10.0.0.1', 7447)), ('tls/[fe80::1]:1', ('fe80::1', 1))],
)
def test_an_endpoint_has_host_and_port(endpoint, parts):
    assert split(endpoint) == parts


def test_a_server_that_responds_is_no_failure():
    assert survey().failure == ''


STRANGER = Participant('hall', 'policy_server')
SURVEYS = {
    'a server that responds, a robot without a token, and another site': {
        'alive': frozenset({SERVER, STRANGER}),
        'seen': frozenset({ROBOT}),
    },
    'a router is known by its status': {
        'answers': {'policy_server': ServerAnswers([1.0], policy_type='router')}
    },
    'rates': {'rates': [KeyRate('k', 1.0, 2.0), KeyRate('longer', 10.0, 20.0)]},
    'problems and conflicts': {
        'problems': {'X': 'nothing listens on X'},
        'conflicts': ('2 servers have a name',),
    },
    'no endpoint is reached': {
        'reached': (),
        'problems': {'X': 'nothing listens on X', 'Y': 'Y'},
    },
    'nobody': {'alive': frozenset()},
    'a robot alone': {'alive': frozenset({ROBOT})},
    'another site': {'alive': frozenset({STRANGER})},
    'no reply': {'answers': {'policy_server': ServerAnswers(error='no reply')}},
}


@pytest.mark.golden
def test_people_read_who_is_there_and_what_to_do(golden):
    reports = {name: link_report(survey(**found)) for name, found in SURVEYS.items()}
    texts = [
        f'{name}\n{each.as_text()}\n{each.error}\n{json.dumps(each.data)}'
        for name, each in reports.items()
    ]
    golden.holds('link.txt', '\n\n'.join(texts) + '\n')


def test_text_of_a_peer_cannot_steer_the_terminal():
    answers = {'policy_server': ServerAnswers([1.0], policy='\033[2J')}
    assert '\033' not in link_report(survey(answers=answers)).as_text()


ROUTER = '/policy_router'


def test_a_server_that_an_operator_hears_is_there(tmp_path):
    keys, port, stop = Keys(tmp_path / 'keys'), free_port(), threading.Event()
    router, operator = keys.add('router', ROUTER), keys.add('operator', 'kim')
    status = service_bytes.encode(ServerStatus(policy='act@1', policy_type='router'))
    with closing(opened(router, listen=port)) as session:
        server = Served(session, ROUTER, '')

        def publish() -> None:
            while not stop.wait(0.05):
                session.put(server.keys.status, status)

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            settings = ZenohSettings(SITE, connect=(f'tls/localhost:{port}',), keys=operator)
            with LinkWatch(settings, 'kim', (ROUTER,)) as watch:
                survey = watch.survey(2.0)
        finally:
            stop.set()
            publishing.join()
    assert survey.failure == ''
    (answers,) = survey.answers.values()
    assert (answers.policy, answers.round_trips_ms) == ('act@1', [])
    assert answers.error.startswith('/policy_router, get_status: ')
