# SPDX-License-Identifier: Apache-2.0
"""The end of an attempt of sim_robot is told to its edge controller and, when asked, a router."""

from __future__ import annotations

import queue

import pytest

from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EpisodeOutcome

SIZE = {'image_height': 16, 'image_width': 16}
ROUTER = '/policy_router/outcome'


@pytest.fixture
def heard(node):
    """What arrives on the robot's own topic and on the router's."""
    topics = {topic: queue.SimpleQueue() for topic in ('/robot_1/episode_outcome', ROUTER)}
    for topic, messages in topics.items():
        node.create_subscription(EpisodeOutcome, topic, messages.put, qos.OUTCOME)
    return list(topics.values())


def test_the_end_of_an_attempt_is_told_on_both_topics(processes, heard):
    given = {'attempt_timeout_s': 0.5, 'outcome_topic': ROUTER, **SIZE}
    processes.start('robot', 'sim_robot', namespace='/robot_1', **given)
    own, shared = ([messages.get(timeout=30) for _ in range(4)] for messages in heard)
    assert {outcome.outcome for outcome in own} == {EpisodeOutcome.FAILURE}
    # the topic that was found later may have missed one or two
    assert [outcome for outcome in own if outcome in shared]


def test_no_other_topic_is_opened_unasked(processes, heard, node):
    processes.start('robot', 'sim_robot', namespace='/robot_1', attempt_timeout_s=0.5, **SIZE)
    assert heard[0].get(timeout=30).outcome == EpisodeOutcome.FAILURE
    assert node.count_publishers(ROUTER) == 0


def test_a_topic_that_cannot_be_one_is_refused(processes):
    child = processes.start('robot', 'sim_robot', outcome_topic='outcome')
    assert child.wait(30) == 1
    text = (processes.folder / 'robot.log').read_text()
    assert 'outcome_topic must be empty or the full name of a topic such as' in text
