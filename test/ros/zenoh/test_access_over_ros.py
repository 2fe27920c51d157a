# SPDX-License-Identifier: Apache-2.0
"""
The first row of the table of docs/security.md: without SROS 2 everyone in the domain may do
everything. Each cell is tried by a node that is neither robot nor server.
"""

from __future__ import annotations

import queue

import numpy as np
from support.nodes.small_client import SmallClient
from support.waiting import wait_until
from support.zenoh.access_rig import table

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve_interfaces.msg import ActionChunk, Observation, ServerStatus
from lerobot_serve_interfaces.srv import GetStatus

SERVER, ROBOT, STRANGER = '/policy_server', 'robot_1', 'stranger'


def subscribed(node, kind: type, topic: str, profile) -> queue.SimpleQueue:
    """Return what arrives on a topic, as bytes."""
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    node.create_subscription(kind, topic, arrived.put, profile, raw=True)
    return arrived


def published(node, kind: type, topic: str, profile, raw: bytes) -> None:
    """Publish bytes once the reader is there."""
    publisher = node.create_publisher(kind, topic, profile)
    wait_until(publisher.get_subscription_count, f'a reader of {topic}', 30.0)
    publisher.publish(raw)


def test_everyone_may_do_everything_over_ros(rig):
    node = rig.node
    columns, cells = table()
    rig.start(policy_kind='null', policy_path='joints=6,chunk=30,cameras=,fps=30')
    robot = rig.client(ROBOT)
    facts = dict.fromkeys(columns, False)
    statuses = subscribed(node, ServerStatus, f'{SERVER}/status', qos.STATE)
    overheard = subscribed(node, ActionChunk, f'/{ROBOT}/action_chunk', qos.ACTION_CHUNK)

    own = rig.client(STRANGER)
    reply = own.round_trip()
    facts['requests'] = facts['replies'] = reply.status == Status.OK

    # an observation of the robot, whose reply the robot gets
    forged = wire_observation.encode(robot.observation(state=np.full((1, 6), 0.5, np.float32)))
    published(node, Observation, f'{SERVER}/observation', qos.observation_writer(3.0), forged)
    answer = robot.take()
    facts['as another'] = answer.client_id == ROBOT
    raw = overheard.get(timeout=30)
    facts['of another'] = wire_chunk.decode(raw).client_id == ROBOT
    facts['status'] = bool(statuses.get(timeout=30))

    # a server of its own, and chunks in the place of the one that serves
    node.create_service(
        GetStatus, f'/{STRANGER}/policy_server/get_status', lambda request, response: response
    )
    client = node.create_client(GetStatus, f'/{STRANGER}/policy_server/get_status')
    facts['serves'] = call_service(client, GetStatus.Request(), 30.0) is not None
    published(node, ActionChunk, f'/{ROBOT}/action_chunk', qos.ACTION_CHUNK, raw)
    facts['serves as another'] = robot.take().client_id == ROBOT

    expected = cells['any, without SROS 2', 'ROS 2']
    assert facts == dict(zip(columns, expected, strict=True))
    for each in (robot, own):
        assert isinstance(each, SmallClient)
        each.close()
