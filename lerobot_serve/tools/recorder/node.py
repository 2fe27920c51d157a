# SPDX-License-Identifier: Apache-2.0
"""
The node recorder: records robots into bags, by a strategy, and announces episodes. It is off the
path of actions: it subscribes, and no robot waits for what it announces.

The executor thread deposits messages, `frames` compresses those of cameras for a highlight,
`writing` writes, `announcing` hashes bags and publishes, `keys` reads the terminal.
"""

from __future__ import annotations

import select
import sys
import time

from rclpy.duration import Duration

from lerobot_serve.ros import qos
from lerobot_serve.ros.node.trigger_services import create_trigger_services
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.bags.message import (
    BagError,
    BagMessage,
    COMPRESSED_TYPE,
    EDGE_STATE,
    RAW_TYPE,
)
from lerobot_serve.tools.bags.metadata import BagTopic, type_definition
from lerobot_serve.tools.bags.node import (
    connect_to_zenoh,
    share_folder,
    TopicFilter,
    TopicRecorderNode,
)
from lerobot_serve.tools.bags.write_queue import RecordingLimits, WriteQueue
from lerobot_serve.tools.recorder.announcer import EpisodeAnnouncer
from lerobot_serve.tools.recorder.episodic import EpisodicWriter
from lerobot_serve.tools.recorder.frames import FrameCompressor, SUFFIX
from lerobot_serve.tools.recorder.highlight import HighlightWriter
from lerobot_serve.tools.recorder.known_robots import KnownRobots, parent
from lerobot_serve.tools.recorder.settings import make_writer, RecorderSettings
from lerobot_serve.tools.recorder.silence import Silence
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import RecordedEpisode

KEY_POLL_S = 0.5
SILENCE_POLL_S = 1.0
ANNOUNCEMENTS = 'recorded_episodes'
# how long the end waits until subscribers have the last announcements
DELIVERY_S = 1.0


class RecorderNode(TopicRecorderNode):
    """Records until the runtime ends. Built in the main thread."""

    sim_time_refusal = 'a bag holds the times at which messages were sent and received'

    def __init__(
        self,
        runtime: NodeRuntime,
        settings: RecorderSettings,
        zenoh: ZenohSettings | None = None,
    ) -> None:
        """
        Open the folder; `zenoh` has the endpoints whose requests and replies are recorded, too.
        Raises BagError and UserError.
        """
        # before the bag: an endpoint that is not reached leaves no folder
        link = connect_to_zenoh(zenoh) if zenoh else None
        try:
            self.writer = make_writer(settings, self._log)
        except BagError:
            if link:
                link.close()
            raise
        self.settings = settings
        # what the executor thread knows of robots, to choose topics
        self._heard = KnownRobots(settings.robot)
        self._silence = Silence()
        self._compressor: FrameCompressor | None = None
        rules = settings.rules
        limits = RecordingLimits(int(1e6 * rules.max_size), rules.duration)
        recording = WriteQueue(self.writer, limits, on_end=runtime.stop_requested.set)
        if isinstance(self.writer, HighlightWriter):
            self._compressor = self._start_compressor(runtime, recording)
        chosen = TopicFilter(settings.topics, settings.all_topics)
        selection = chosen if settings.topics or settings.all_topics else self._heard
        super().__init__(runtime, 'recorder', recording, selection, link)
        self.create_timer(SILENCE_POLL_S, self._look_for_silence)
        self.announcer: EpisodeAnnouncer | None = None
        if isinstance(self.writer, EpisodicWriter):
            self.announcer = self._start_announcer(runtime, self.writer)
        if isinstance(self.writer, HighlightWriter):
            create_trigger_services(self, {'save': self._save})
            if sys.stdin is not None and sys.stdin.isatty():
                runtime.thread('keys', lambda: self._watch_keys(runtime))

    def _start_compressor(self, runtime: NodeRuntime, recording: WriteQueue) -> FrameCompressor:
        compressor = FrameCompressor(recording.put)
        thread = runtime.thread('frames', compressor.run, compressor.close)

        def finish() -> None:
            compressor.close()
            thread.join()

        # before the queue closes: its last frames are written
        runtime.before_shutdown(finish)
        return compressor

    def _start_announcer(self, runtime: NodeRuntime, writer: EpisodicWriter) -> EpisodeAnnouncer:
        publisher = self.create_publisher(
            RecordedEpisode,
            ANNOUNCEMENTS,
            qos.RECORDED_EPISODES,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        announcer = EpisodeAnnouncer(writer.whole_bags, publisher.publish, self._log)
        thread = runtime.thread('announcing', announcer.run, writer.whole_bags.close)

        def finish() -> None:
            # called when the writing thread has ended: no further bag comes
            writer.whole_bags.close()
            thread.join()
            publisher.wait_for_all_acked(Duration(seconds=DELIVERY_S))

        runtime.before_shutdown(finish)
        return announcer

    def _log(self, text: str) -> None:
        # before the node is built, and from the writing thread
        print(f'recorder: {text}', file=sys.stderr, flush=True)

    # executor thread

    def deposit(self, message: BagMessage) -> None:
        self._heard.learn(message)
        if message.type == EDGE_STATE:
            self._on_state(message.topic)
        if self._compressor and message.type == RAW_TYPE:
            self._compressor.put(message)
        else:
            self.recording.put(message)

    def _on_state(self, topic: str) -> None:
        if not self._heard.is_wanted(parent(topic)):
            return
        if text := self._silence.on_state(topic, time.monotonic()):
            self.get_logger().warning(text)

    def _look_for_silence(self) -> None:
        for text in self._silence.poll(time.monotonic(), self._has_publisher):
            self.get_logger().error(text)

    def _has_publisher(self, topic: str) -> bool:
        return self.count_publishers(topic) > 0

    def _add(self, topic: BagTopic) -> None:
        super()._add(topic)
        if self._compressor and topic.type == RAW_TYPE:
            encoding, text = type_definition(COMPRESSED_TYPE, share_folder)
            name = topic.name + SUFFIX
            super()._add(BagTopic(name, COMPRESSED_TYPE, encoding, text, topic.profiles))

    def _save(self) -> tuple[bool, str]:
        assert isinstance(self.writer, HighlightWriter)
        self.writer.save()
        rules = self.settings.rules
        return True, f'saving {rules.before:g} s before and {rules.after:g} s after now'

    # its own thread

    def _watch_keys(self, runtime: NodeRuntime) -> None:
        """Save a highlight at each Enter."""
        print('Enter saves a highlight', file=sys.stderr, flush=True)
        while not runtime.stop.is_set():
            ready, _, _ = select.select([sys.stdin], [], [], KEY_POLL_S)
            if ready:
                if not sys.stdin.readline():
                    return
                print(self._save()[1], file=sys.stderr, flush=True)

    def dropped(self) -> dict[str, int]:
        """Return what was dropped, by topic: in the queue of the disk, or of the compressor."""
        lost = self.recording.dropped_by_topic
        return dict(lost + self._compressor.dropped if self._compressor else lost)

    def unheard_s(self) -> dict[str, float]:
        """Return for how long robots that ran were not heard, by the topic of their states."""
        return self._silence.unheard_s(time.monotonic())
