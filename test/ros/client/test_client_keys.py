# SPDX-License-Identifier: Apache-2.0
"""The client with keys: TLS and access control of a real server."""

from __future__ import annotations

import pytest
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.client import PolicyClient, ServerUnavailable, WrongSettings

STATE = (0.0,) * 6
LIMIT_S = 20.0


def test_keys_encrypt_and_say_who_the_client_is(rig, tmp_path):
    site = Keys(tmp_path / 'keys')
    mine = site.add('robot', 'eval_1')
    server = site.add('server', '/policy_server', direct=True)
    late = site.add('robot', 'eval_2')
    endpoint = f'tls/localhost:{free_port()}'
    rig.start(
        policy_kind='null',
        policy_path='joints=6,chunk=30,cameras=,fps=30',
        zenoh_listen=[endpoint],
        zenoh_site=SITE,
        zenoh_keys=server,
    )
    reach = {'endpoints': endpoint, 'site': SITE}
    with (
        PolicyClient.connect('policy_server', keys=mine, timeout_s=LIMIT_S, **reach) as client,
        client.open() as session,
    ):
        assert session.client_id == 'eval_1'
        assert len(session.predict(STATE)) == 30
        with pytest.raises(WrongSettings, match='the keys speak for eval_1 alone'):
            client.open()
    with pytest.raises(ServerUnavailable, match=r'nothing answers|no server'):
        PolicyClient.connect('policy_router', keys=late, timeout_s=0.5, **reach)
