# SPDX-License-Identifier: Apache-2.0
"""Two sites with servers and robots of the same names behind one endpoint, over real sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from support.nodes.zenoh_links import free_endpoint
from support.waiting import wait_until
from support.zenoh.regions import open_hub, open_in_region
import zenoh

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.replies import ZenohReplyPublishers
from lerobot_serve.zenoh.server_endpoint import ServerEndpoint
from lerobot_serve.zenoh.server_name import ServerName
from lerobot_serve.zenoh.settings import ZenohSettings

SERVER, ROBOT, EPOCH = '/policy_server', 'robot_1', 7
SITES = ('lab', 'hall')
ROUNDS = 20


def observation(site: str) -> bytes:
    header = Header(1, 2, EPOCH, 0, 1, MsgType.OBSERVATION)
    return wire_observation.encode(Observation(header, ROBOT, site, np.zeros((1, 6), np.float32)))


class Site:
    """A server and a robot; `heard` has what each of them received, by its way."""

    def __init__(self, name: str, hub: str) -> None:
        self.name, self.heard = name, set[tuple[str, str]]()
        self.links = [
            open_in_region(f'{name}_{end}', ZenohSettings(name, connect=(hub,)))
            for end in ('server', 'robot')
        ]
        server, robot = self.links
        keys = ServerKeys(name, SERVER)
        self.replies = ZenohReplyPublishers(server, keys)
        self.server_name = ServerName(server, keys)
        # the same name is free in another site
        self.server_name.claim(lambda text: self.hear('conflict', text))
        self.endpoint = ServerEndpoint(
            server,
            SERVER,
            dict.fromkeys(service_bytes.SERVICES, self.answer),
            service_bytes,
            run=lambda work: asyncio.run(work()),
            on_observation=lambda raw: self.hear(
                'observation', wire_observation.decode(raw).episode_id
            ),
            on_drop=lambda reason: self.hear('drop', reason),
        )
        self.presence: list[Presence] = []
        self.client = zenoh_client(robot, SERVER, Role.ROBOT, ROBOT)
        callbacks = LinkCallbacks(
            lambda raw: self.hear('chunk', raw.decode()),
            lambda raw: self.hear('no_session', raw.decode()),
            self.presence.append,
        )
        self.client.listen(callbacks)
        self.status = robot.subscribe(
            keys.status, lambda _, raw: self.hear('status', raw.decode())
        )

    def hear(self, way: str, text: str) -> None:
        self.heard.add((way, text))

    def answer(self, request, response):
        self.hear('call', getattr(request, 'episode_id', 'get_status'))
        response.status.server = self.name
        return response

    def everything(self) -> None:
        """Send everything once, with the name of this site in it."""
        self.client.send(observation(self.name))
        self.endpoint.publish_status(self.name.encode())
        self.endpoint.publish_no_session(ROBOT, self.name.encode())
        self.replies.send(self.client.reply_topic(EPOCH), self.name.encode())
        self.hear('reply', self.client.status(5.0).status.server)

    def close(self) -> None:
        self.client.end()
        self.status.undeclare()
        self.endpoint.close()
        self.server_name.close()
        self.replies.close()
        for link in self.links:
            link.close()


@pytest.fixture
def hub() -> Iterator[str]:
    """The one endpoint."""
    endpoint = free_endpoint()
    session: zenoh.Session = open_hub(
        endpoint, tuple(f'{site}_{end}' for site in SITES for end in ('server', 'robot'))
    )
    yield endpoint
    session.close()


@pytest.fixture
def sites(hub) -> Iterator[list[Site]]:
    opened = [Site(name, hub) for name in SITES]
    yield opened
    for site in opened:
        site.close()


def test_nothing_of_one_site_reaches_the_other(sites):
    for site in sites:
        wait_until(site.client.is_available, f'the server of {site.name}')
        site.replies.open(site.client.reply_topic(EPOCH))
    own = {
        site.name: {
            *((way, site.name) for way in ('observation', 'status', 'no_session', 'chunk')),
            ('reply', site.name),
            ('call', 'get_status'),
        }
        for site in sites
    }

    def all_arrive() -> bool:
        for site in sites:
            site.everything()
        return all(site.heard >= own[site.name] for site in sites)

    wait_until(all_arrive, 'everything arrives in its own site')
    for _ in range(ROUNDS):
        all_arrive()
    assert {site.name: site.heard for site in sites} == own


def test_the_end_of_a_server_is_noticed_in_its_site_alone(sites):
    lab, hall = sites
    for site in sites:
        wait_until(site.client.is_available, f'the server of {site.name}')
    lab.links[0].close()
    wait_until(lambda: not lab.client.is_available(), 'the robot of the lab notices it')
    assert hall.client.status(5.0).status.server == 'hall'
    assert hall.presence == [Presence.THERE]
