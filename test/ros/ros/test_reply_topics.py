# SPDX-License-Identifier: Apache-2.0
"""The topics on which clients wait for their chunks."""

from __future__ import annotations

from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers


def test_hundreds_of_reply_topics_give_the_executor_nothing_to_look_at(node):
    before = len(list(node.waitables))
    replies = ReplyPublishers(node)
    for number in range(3):
        replies.open(f'/robot_{number}/action_chunk')
    assert len(list(node.waitables)) == before
    assert replies.send('/robot_2/action_chunk', b'\0\1\0\0')
