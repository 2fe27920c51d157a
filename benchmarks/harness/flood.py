# SPDX-License-Identifier: Apache-2.0
"""
The process of a robot that sends requests at a rate, whether they are answered or not: from
SIGUSR1 to SIGUSR2, as often as these come.

`python -m benchmarks.harness.flood SERVER RATE_HZ IMAGES`
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from benchmarks.harness.client import open_when_ready, PolicyClient
from benchmarks.harness.load_generator import LoadRobot
from benchmarks.harness.request_session import session_request, STATE
from benchmarks.peers.peer_process import ImageSet, policy_frames
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Codec, MsgType
from lerobot_serve.ros.process.node_runtime import NodeRuntime

CLIENT_ID = 'flood'
READY_TEXT = 'flood is ready'


def main(server: str, rate_hz: float, size: ImageSet) -> None:
    """Run until SIGINT. Main thread."""
    runtime, floods = NodeRuntime([]), threading.Event()
    client = PolicyClient(runtime, CLIENT_ID, server)
    runtime.add(client)
    runtime.spin_in_background()
    named = policy_frames(size)
    ask = client.session_request_for(session_request('', named, Codec.RAW, CLIENT_ID))
    open_when_ready(client.sessions, ask)
    client.wait_until_matched()
    images = tuple(image_codec.encode(n, f, Codec.RAW) for n, f in named.items())
    header = Header(0, 0, ask.session_epoch, 0, SCHEMA_VERSION, MsgType.OBSERVATION)
    robot = LoadRobot(ask, Observation(header, CLIENT_ID, 'flood', STATE, images))
    signal.signal(signal.SIGUSR1, lambda *_: floods.set())
    signal.signal(signal.SIGUSR2, lambda *_: floods.clear())
    print(READY_TEXT, flush=True)
    while True:
        begin_s = time.monotonic()
        # a signal handler runs between two of these waits
        while not floods.wait(0.05):
            begin_s = time.monotonic()
        client.sessions.send(robot.next_request(0, 0))
        time.sleep(max(0.0, begin_s + 1 / rate_hz - time.monotonic()))


if __name__ == '__main__':
    # the benchmark ends it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(sys.argv[1], float(sys.argv[2]), ImageSet.parse(sys.argv[3]))
