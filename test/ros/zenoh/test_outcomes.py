# SPDX-License-Identifier: Apache-2.0
"""A robot reports outcomes over Zenoh with keys, to its router, for its own episodes alone."""

from __future__ import annotations

import re
import threading

from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.contract.records import EpisodeOutcome, ReportOutcomeRequest
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.ros import qos
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import RouterState

SUCCESS, FAILURE, _ = EpisodeOutcome.Outcome
LIMIT_S = 30.0


def report(client: ServerClient, **outcome: object) -> tuple[bool, str]:
    """Return the reply of the router to one report."""
    replies, has_replied = [], threading.Event()

    def on_reply(is_accepted: bool, text: str) -> None:
        replies.append((is_accepted, text))
        has_replied.set()

    client.report_outcome(ReportOutcomeRequest(EpisodeOutcome(**outcome)), on_reply)
    assert has_replied.wait(LIMIT_S)
    return replies[0]


def report_unheard(client: ServerClient, **outcome: object) -> None:
    client.report_outcome(ReportOutcomeRequest(EpisodeOutcome(**outcome)), lambda *_: None)


def test_a_robot_reports_for_its_own_episodes_alone(edge_rig, tmp_path):
    keys, endpoint = Keys(tmp_path / 'keys'), f'tls/localhost:{free_port()}'
    robot, other = keys.add('robot', 'robot_1'), keys.add('robot', 'robot_2')
    router = keys.add('router', '/policy_router')
    states: list[RouterState] = []
    edge_rig.node.create_subscription(
        RouterState, '/policy_router/state', states.append, qos.STATE
    )
    edge_rig.start_server('/a')
    edge_rig.fleet.start(
        'router',
        'policy_router',
        slot_prod="['/a/policy_server']",
        zenoh_listen=[endpoint],
        zenoh_site=SITE,
        zenoh_keys=router,
        discovery_timeout_s=20.0,
    )
    edge_rig.start(
        link='zenoh',
        servers="['/policy_router']",
        client_id='robot_1',
        zenoh_connect=[endpoint],
        zenoh_site=SITE,
        zenoh_keys=robot,
    )
    edge_rig.wait_for_play(10)

    def slot():
        return next((each for each in states[-1].slots if each.slot == 'prod'), None)

    episode = edge_rig.seen.last.episode_id
    stranger = ZenohLink(ZenohSettings(SITE, connect=(endpoint,), keys=other))
    try:
        client = zenoh_client(stranger, '/policy_router', Role.ROBOT, 'robot_2')
        client.listen(LinkCallbacks(lambda _: None))
        edge_rig.wait(client.is_available, 'the router is found')
        # in the name of the robot
        report_unheard(client, client_id='robot_1', episode_id=episode, outcome=FAILURE)
        edge_rig.wait(
            lambda: 'speaks for itself alone' in edge_rig.log('router'), 'the report is refused'
        )
        # in its own, and in none
        for client_id, words in (
            ('robot_2', "no episode .* of 'robot_2' was routed here"),
            ('', "of '' was routed here"),
        ):
            accepted, text = report(
                client, client_id=client_id, episode_id=episode, outcome=FAILURE
            )
            assert not accepted and re.search(words, text), text
        client.end()
    finally:
        stranger.close()
    edge_rig.judge(SUCCESS, episode)
    edge_rig.trigger('reset')
    edge_rig.wait(lambda: slot() and slot().episodes_succeeded == 1, 'the outcome counts')
    assert slot().episodes_failed == 0
    # it is refused in words, and counted
    edge_rig.judge(SUCCESS, 'never-here')
    edge_rig.wait(lambda: edge_rig.seen.drops().get('outcome_refused') == 1, 'it is counted')
    assert "no episode 'never-here' of 'robot_1' was routed here" in edge_rig.log()
