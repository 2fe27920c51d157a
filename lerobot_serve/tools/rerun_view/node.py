# SPDX-License-Identifier: Apache-2.0
"""
The node rerun_view: shows live robots in Rerun.

The executor thread discovers topics and deposits messages, as the recorder of bags does; the
thread `writing` owns mapping and viewer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.node import connect_to_zenoh, TopicRecorderNode
from lerobot_serve.tools.bags.write_queue import WriteQueue
from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping
from lerobot_serve.tools.rerun_view.message_view import LiveTopics, MessageView
from lerobot_serve.zenoh.settings import ZenohSettings

if TYPE_CHECKING:
    from lerobot_serve.tools.rerun_view.rerun_sink import RerunSink

# messages that wait while the viewer is slow
WAITING_LIMIT_BYTES = 64 << 20
FLUSH_S = 0.25
# other robots are heard, and this one is not
ROBOT_LIMIT_S = 10.0


class LiveView(MessageView):
    """Ends when the robot is unknown: others are heard for ROBOT_LIMIT_S. Writing thread."""

    def __init__(self, mapping: MessageMapping, sink: RerunSink, topics: LiveTopics) -> None:
        super().__init__(mapping, sink)
        self._topics = topics
        self._deadline_s = time.monotonic() + ROBOT_LIMIT_S
        self.refusal: UserError | None = None

    def write(self, message: BagMessage) -> None:
        self._topics.learn(message)
        super().write(message)

    def flush(self) -> None:
        """As in a bag. Raises OSError, also for an unknown robot."""
        super().flush()
        mapping = self.mapping
        if mapping.names and not mapping.has_robot and time.monotonic() > self._deadline_s:
            try:
                mapping.check_robot()
            except UserError as error:
                self.refusal = error
                raise OSError('there is no such robot') from None


class RerunViewNode(TopicRecorderNode):
    """Shows what it hears until the runtime ends. Built in the main thread."""

    sim_time_refusal = 'a view has the times at which messages were received'
    does = 'showing'

    def __init__(
        self,
        runtime: NodeRuntime,
        mapping: MessageMapping,
        sink: RerunSink,
        zenoh: ZenohSettings | None = None,
    ) -> None:
        """`zenoh` has endpoints whose requests and replies are shown, too. Raises UserError."""
        link = connect_to_zenoh(zenoh) if zenoh else None
        topics = LiveTopics(mapping)
        self.view = LiveView(mapping, sink, topics)
        recording = WriteQueue(
            self.view,
            on_end=runtime.stop_requested.set,
            flush_s=FLUSH_S,
            waiting_limit_bytes=WAITING_LIMIT_BYTES,
        )
        super().__init__(runtime, 'rerun_view', recording, topics, link)
