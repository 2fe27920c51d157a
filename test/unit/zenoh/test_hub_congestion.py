# SPDX-License-Identifier: Apache-2.0
"""A server that takes nothing holds up no other behind the same Zenoh router."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from support.network.ports import free_port
from support.paths import module_environment
from support.waiting import wait_until
from support.zenoh.access_rig import Keys, opened_hub, SITE

from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.link_sender import LinkSender
from lerobot_serve.zenoh.settings import Traffic, ZenohSettings

HUNG = """
import pathlib, sys
from lerobot_serve.zenoh.keys import ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
folder, endpoint, site, name = sys.argv[1:]
link = ZenohLink(ZenohSettings(site, connect=(endpoint,), keys=pathlib.Path(folder)))
keys = ServerKeys(site, name)
link.subscribe(keys.clients.observation, lambda *_: None)
token = link.declare_alive(keys.alive)
sys.stdin.read()
"""
# more than sockets and queues hold
COUNT, RAW, LIMIT_S = 64, bytes(1_000_000), 60.0


def test_a_hung_server_holds_up_no_other_behind_a_zenoh_router(tmp_path):
    keys, port = Keys(tmp_path / 'keys'), free_port()
    folders = {name: keys.add('server', f'/{name}') for name in ('hung', 'fine')}
    router, hub_folder = keys.add('router', '/router'), keys.add('hub', 'hub')
    file = hub_folder / 'zenoh.json'
    config = json.loads(file.read_text())
    # it stays there: without the overwrite, Zenoh closes its link after 5 s
    config['transport']['link']['tx']['lease'] = 60_000
    file.write_text(json.dumps(config))
    hub, endpoint = opened_hub(hub_folder, port), f'tls/localhost:{port}'
    hung = subprocess.Popen(
        end_with_parent(
            [sys.executable, '-c', HUNG, str(folders['hung']), endpoint, SITE, '/hung']
        ),
        stdin=subprocess.PIPE,
        env=module_environment(),
    )
    links = [
        ZenohLink(ZenohSettings(SITE, connect=(endpoint,), keys=folder))
        for folder in (folders['fine'], router)
    ]
    fine, sender = links
    at = {name: ServerKeys(SITE, f'/{name}') for name in folders}
    arrived, present, dropped = [], {}, []
    try:
        fine.subscribe(at['fine'].clients.observation, lambda _, raw: arrived.append(raw))
        token = fine.declare_alive(at['fine'].alive)
        for name, each in at.items():
            sender.watch_alive(
                each.alive, lambda _, is_alive, name=name: present.update({name: is_alive})
            )
        wait_until(lambda: all(map(present.get, at)), 'both are there', LIMIT_S)
        publishers = {
            name: sender.publisher(
                each.client(Role.ROUTER, '/router').observation, Traffic.OBSERVATION
            )
            for name, each in at.items()
        }
        for publisher in publishers.values():
            wait_until(lambda p=publisher: p.matching_status.matching, 'matched', LIMIT_S)
        hung.send_signal(signal.SIGSTOP)
        senders = {
            name: LinkSender(each.put, dropped.append, limit=COUNT, lifespan_s=60.0)
            for name, each in publishers.items()
        }
        for _ in range(COUNT):
            senders['hung'].send(RAW)
        wait_until(lambda: senders['hung'].is_idle, 'the Zenoh router has taken all', LIMIT_S)
        senders['fine'].send(b'1')
        wait_until(lambda: arrived == [b'1'], 'the other has its own', LIMIT_S)
        assert present['hung'], 'the hung one was cut off before'
        assert not dropped
        for each in senders.values():
            each.close(lambda: None)
        token.undeclare()
    finally:
        hung.kill()
        hung.communicate()
        for link in links:
            link.close()
        hub.close()
