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


def test_a_session_that_ends_while_others_wait_for_delivery_fails_nothing(node):
    replies = ReplyPublishers(node)
    first, second = '/robot_1/action_chunk', '/robot_2/action_chunk'
    replies.open(first)
    replies.open(second)

    class Ending:
        """The executor closes the topic of the other session meanwhile."""

        def wait_for_all_acked(self, _) -> bool:
            replies.retain({first})
            return True

    replies._publishers[first] = Ending()
    assert replies.wait_until_delivered(1.0)
