# SPDX-License-Identifier: Apache-2.0
"""
A program that listens on the wire and writes down each request and each reply of a robot.

    python -m benchmarks.site.witness LINK FILE [ENDPOINT ...]

LINK is ros or zenoh; over Zenoh it is a client of each ENDPOINT. It shares no code with the
package: it reads the first bytes of each message itself, as RequestHeader.msg describes them.
Each line of FILE is a JSON object. SIGINT ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import re
import signal
import struct
import sys
import threading
import time
from typing import Any, TextIO

HEADER = struct.Struct('<QqIIHBB')
# after the encapsulation of CDR
HEADER_AT, CLIENT_AT = 4, 32
LENGTH = struct.Struct('<I')
WAYS = {1: 'request', 2: 'reply'}
SEARCH_S = 0.5
OBSERVATIONS = re.compile(r'/router_\d+/observation')
REPLIES = re.compile(r'/robot_\d+/edge_controller/action_chunk(_\d+)?')
# of robots: a router speaks with its servers below .../router/...
ROBOTS_KEYS = re.compile(r'@lerobot/[^/]+/[^/]+/robot/.*/(observation|action_chunk)')
ZENOH = """{{"mode": "client", "connect": {{"endpoints": ["{endpoint}"]}},
 "scouting": {{"multicast": {{"enabled": false}}}}}}"""


class Notebook:
    """The file. Any thread."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock = file, threading.Lock()

    def note(self, raw: bytes) -> None:
        """Write down what the first bytes of a message say."""
        seq, _, epoch, episode, _, kind, flags = HEADER.unpack_from(raw, HEADER_AT)
        (length,) = LENGTH.unpack_from(raw, CLIENT_AT)
        begin = CLIENT_AT + LENGTH.size
        seen = {
            'mono_ns': time.monotonic_ns(),
            'way': WAYS[kind],
            'client': raw[begin : begin + length - 1].decode(),
            'epoch': epoch,
            'seq': seq,
            'episode': episode,
            'flags': flags,
        }
        with self._lock:
            print(json.dumps(seen), file=self._file, flush=True)


def listen_over_ros(notebook: Notebook, is_over: threading.Event) -> None:
    """Subscribe to the topics of the routers and the robots as they appear."""
    import rclpy
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from rclpy.signals import SignalHandlerOptions

    from lerobot_serve_interfaces.msg import ActionChunk, Observation

    # what a slow witness misses must not slow down who is watched
    quality = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node('witness')
    found: set[str] = set()

    def search() -> None:
        for topic, _ in node.get_topic_names_and_types():
            kind: Any = Observation if OBSERVATIONS.fullmatch(topic) else None
            kind = ActionChunk if REPLIES.fullmatch(topic) else kind
            if kind and topic not in found:
                found.add(topic)
                node.create_subscription(kind, topic, notebook.note, quality, raw=True)

    searched_s = 0.0
    while not is_over.is_set():
        if time.monotonic() - searched_s > SEARCH_S:
            search()
            searched_s = time.monotonic()
        rclpy.spin_once(node, timeout_sec=SEARCH_S)
    rclpy.shutdown()


def listen_over_zenoh(
    notebook: Notebook, endpoints: Sequence[str], is_over: threading.Event
) -> None:
    """Be a client of each endpoint, again and again while it is away."""
    import zenoh

    def on_sample(sample: zenoh.Sample) -> None:
        if ROBOTS_KEYS.fullmatch(str(sample.key_expr)):
            notebook.note(sample.payload.to_bytes())

    sessions: dict[str, zenoh.Session] = {}
    while not is_over.is_set():
        for endpoint in endpoints:
            session = sessions.get(endpoint)
            if session and not list(session.info.peers_zid()) + list(session.info.routers_zid()):
                sessions.pop(endpoint).close()
            if endpoint not in sessions:
                try:
                    config = zenoh.Config.from_json5(ZENOH.format(endpoint=endpoint))
                    sessions[endpoint] = zenoh.open(config)
                    sessions[endpoint].declare_subscriber('@lerobot/**', on_sample)
                except zenoh.ZError:
                    sessions.pop(endpoint, None)
        is_over.wait(SEARCH_S)
    for session in sessions.values():
        session.close()


def main(arguments: Sequence[str]) -> int:
    """Listen until SIGINT."""
    link, file, *endpoints = arguments
    is_over = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: is_over.set())
    with open(file, 'w') as opened:
        if link == 'ros':
            listen_over_ros(Notebook(opened), is_over)
        else:
            listen_over_zenoh(Notebook(opened), endpoints, is_over)
    return 0


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
