# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve link` with the key of an operator, who hears servers and may call none."""

from __future__ import annotations

from contextlib import closing
import threading

from support.network.ports import free_port
from support.zenoh.access_rig import Keys, opened, Served, SITE

from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.tools.link.watch import LinkWatch
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ServerStatus

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
