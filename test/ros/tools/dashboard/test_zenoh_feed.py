# SPDX-License-Identifier: Apache-2.0
"""A dashboard with --connect listens for each robot that is looked at."""

from __future__ import annotations

import pytest

from lerobot_serve.tools.dashboard.robot.robot_messages import RobotMessages
from lerobot_serve.tools.dashboard.ros import zenoh_feed
from lerobot_serve.tools.dashboard.ros.zenoh_feed import ZenohFeed
from lerobot_serve.zenoh.settings import ZenohSettings


class Recording:
    """Counts the links that are open."""

    opened = 0

    def __init__(self, _: ZenohSettings) -> None:
        Recording.opened += 1

    def begin(self, *_: object) -> None: ...

    def close(self) -> None:
        Recording.opened -= 1


@pytest.mark.parametrize(
    ('server', 'links'), [('/policy_router', 1), ('zenoh:/policy_router', 1), ('', 0)]
)
def test_a_robot_is_heard_whatever_name_it_has_for_its_server(monkeypatch, server, links):
    """The server of a robot whose `link` is zenoh has no prefix."""
    monkeypatch.setattr(zenoh_feed, 'ZenohRecording', Recording)
    monkeypatch.setattr(Recording, 'opened', 0)
    feed, messages = ZenohFeed(ZenohSettings()), RobotMessages()
    feed.poll(messages, 'robot_1', server, 0)
    assert Recording.opened == links
    feed.remove(messages)
    assert Recording.opened == 0
