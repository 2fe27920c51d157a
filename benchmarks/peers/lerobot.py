# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's async server and its robot client, each a process of its own.

    python -m benchmarks.peers.lerobot server HOST PORT
    python -m benchmarks.peers.lerobot client|client_2x480x640[_NUMBER]|robots HOST PORT SOCKET

Both are LeRobot's own, as installed. Only what they would load is stood in for: the policy and
its processors by ones that do nothing, the robot by one without hardware. The pictures are sent
but not declared as features, so that the server does not spend time on resizing them; a
client_2x480x640 declares them, for a gateway that sends them on.
"""

from __future__ import annotations

from functools import partial
import itertools
from queue import Queue
import threading
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.peers.paced_robots import background_event_loop, blocking, LOST_AFTER_S, orders
from benchmarks.peers.peer_process import (
    Address,
    CHUNK_ROWS,
    Frames,
    frames,
    ImageSet,
    JOINT_NAMES,
    JOINTS,
    LOST,
    Orders,
    retry_until_connected,
    run,
    single_robot,
    Trip,
)

PACKAGES = ('lerobot', 'grpcio', 'protobuf', 'torch')
FPS, ANSWER_S, STEPS_APART = 30, 20.0, 1_000_000
# what came was made of the observation of another, or of one that was given up as lost
ANOTHERS, LATE = 'chunk of another robot', 'chunk of a lost request'
# of which a client may declare its pictures
DECLARED_SIZES = (ImageSet(1, 240, 256), ImageSet(2, 224, 224), ImageSet(2, 480, 640))


class NullPolicy:
    """Answers at once."""

    config = SimpleNamespace(image_features={})

    @classmethod
    def from_pretrained(cls, path: str) -> NullPolicy:
        return cls()

    def to(self, device: str) -> None:
        pass

    def predict_action_chunk(self, observation: dict[str, Any]) -> Any:
        return observation['observation.state'].new_zeros((1, CHUNK_ROWS, JOINTS))


class NullRobot:
    """A robot without hardware: has joints, and is asked for nothing."""

    action_features = dict.fromkeys(JOINT_NAMES, float)

    def __init__(self, cameras: dict[str, tuple[int, ...]]) -> None:
        self.observation_features = {**self.action_features, **cameras}

    def connect(self) -> None:
        pass


def unchanged(value: Any) -> Any:
    """Return what came; stands in for the processors."""
    return value


def observation(frames: Frames) -> dict[str, object]:
    """Return what a robot sends: each joint by its name, as LeRobot's robots give them."""
    return {**dict.fromkeys(JOINT_NAMES, 0.0), **frames, 'task': ''}


def serve(address: Address) -> None:
    """Serve until a signal."""
    load_lerobot()
    from lerobot.async_inference import policy_server

    policy_server.get_policy_class = lambda _: NullPolicy
    policy_server.make_pre_post_processors = lambda *_, **__: (unchanged, unchanged)
    config = policy_server.PolicyServerConfig(
        host=address.host, port=address.port, fps=FPS, inference_latency=0
    )
    policy_server.serve(config)


def connect(
    address: Address, number: int = 0, answer_s: float = ANSWER_S, size: ImageSet | None = None
) -> Trip:
    """
    Return what makes one trip, as robot number so and so, which declares cameras of a size. Raises
    OSError when the server does not come up.
    """
    load_lerobot()
    from lerobot.async_inference import robot_client

    cameras = {name: frame.shape for name, frame in frames(size).items()} if size else {}
    robot_client.make_robot_from_config = lambda _: NullRobot(cameras)
    config = robot_client.RobotClientConfig(
        policy_type='act',
        pretrained_name_or_path='null',
        robot=None,
        actions_per_chunk=CHUNK_ROWS,
        server_address=f'{address.host}:{address.port}',
        fps=FPS,
    )
    client = robot_client.RobotClient(config)
    retry_until_connected(lambda: start(client))
    # waits for chunks, as in LeRobot's own main
    threading.Thread(target=client.receive_actions, daemon=True).start()
    client.start_barrier.wait()
    # a chunk says the step of the observation it was made of
    steps = itertools.count(number * STEPS_APART)

    def trip(pictures: Frames) -> float | str:
        seen = robot_client.TimedObservation(
            timestamp=time.time(),
            timestep=next(steps),
            observation=observation(pictures),
            must_go=True,
        )
        return outcome(client, seen, answer_s)

    return trip


def start(client: Any) -> None:
    """Open the session. Raises ConnectionError when the server is not there."""
    if not client.start():
        raise ConnectionError('the server did not answer')


def outcome(client: Any, seen: Any, answer_s: float) -> float | str:
    """
    Send an observation and wait until a chunk is in the robot's queue, which had run dry: how long
    it took [ms], or what came instead of its chunk.
    """
    client.action_queue = Queue()
    # LeRobot sets it when a chunk has been put into the queue
    client.must_go.clear()
    begin_ns = time.perf_counter_ns()
    client.send_observation(seen)
    came = client.must_go.wait(answer_s)
    took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
    actions = client.action_queue.queue
    if not came or len(actions) != CHUNK_ROWS:
        return LOST
    asked, answered = seen.get_timestep(), actions[0].get_timestep()
    if asked == answered:
        return took_ms
    return LATE if asked // STEPS_APART == answered // STEPS_APART else ANOTHERS


def role_of(size: ImageSet | None, number: int = 0) -> str:
    """Return the role of a robot by number; with a size it declares its pictures."""
    words = ('client', size, number)
    return '_'.join(str(word) for word in words if word)


def robots(address: Address) -> Orders:
    """Return the role of many robots, each with two threads of its own."""
    return orders(
        blocking(lambda number: connect(address, number, LOST_AFTER_S)), background_event_loop()
    )


def load_lerobot() -> None:
    """Import LeRobot beside the CPU build of torch. Raises PolicyError when that cannot be."""
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()


if __name__ == '__main__':
    # clients that ask at once number their observations differently
    clients = {
        role_of(size, number): single_robot(
            partial(connect, number=number, answer_s=answer_s, size=size)
        )
        for size in (None, *DECLARED_SIZES)
        for number, answer_s in enumerate((ANSWER_S, LOST_AFTER_S, LOST_AFTER_S))
    }
    raise SystemExit(run(PACKAGES, serve, {'robots': robots, **clients}))
