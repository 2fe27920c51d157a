# SPDX-License-Identifier: Apache-2.0
"""Messages of a robot as CDR bytes, and a writer of a strategy with a clock, without ROS."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from pathlib import Path

from lerobot_serve.contract import records
from lerobot_serve.contract.cdr import CdrWriter
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.types import Time
from lerobot_serve.tools.bags.message import BagMessage, EDGE_STATE, EXECUTED, OUTCOME, TEXT_TYPE
from lerobot_serve.tools.bags.metadata import BagTopic, OfferedProfile
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.recorder.bag_folder import BagFolder
from lerobot_serve.tools.recorder.episodic import EpisodicWriter
from lerobot_serve.tools.recorder.known_robots import KnownRobots
from lerobot_serve.tools.recorder.options import RecordingRules
from lerobot_serve.tools.recorder.strategy_writer import StrategyWriter
from support.contract.records_of import record_of

RULES = RecordingRules()
EDGE, ROBOT = '/arm/edge_controller', 'arm_1'
SECOND_NS = 10**9
# more than the schemas of a bag, of which the first flush brings some
WRITTEN_BYTES = 100_000
LATCHED = (OfferedProfile(durability='transient_local'),)
ROBOT_FILE = """
name: arm
state:
- {topic: joint_states, joints: [a], max_age_s: 0.5}
cameras:
  top: {topic: /cam/image, max_age_s: 0.5}
command: {topic: ~/command, type: std_msgs/Float64MultiArray}
intervention:
  topic: leader/joint_states
  type: sensor_msgs/JointState
  deadman: {topic: joy, button: 4}
"""
JOINTS, JOINTS_TYPE = '/arm/joint_states', 'sensor_msgs/msg/JointState'
CAMERA, CAMERA_TYPE = '/cam/image', 'sensor_msgs/msg/Image'


def text(content: str) -> bytes:
    writer = CdrWriter()
    writer.string(content, 1 << 24)
    return writer.finish()


def executed(episode_id: str, step: int, *, stamp_ns: int = 0, **fields: object) -> bytes:
    numbers = {'control_step': step, 'seq': 1, 'session_epoch': 1, 'episode': 1}
    place = {'client_id': ROBOT, 'episode_id': episode_id, 'slot': 'prod', 'policy': 'p@1'}
    made = numbers | place | fields
    return encode(record_of(records.ExecutedAction, stamp=Time.of_ns(stamp_ns), **made))


def state(episode_id: str, *, stamp_ns: int = 0, **fields: object) -> bytes:
    place = {'client_id': ROBOT, 'server': '/policy_server', 'episode_id': episode_id}
    made = {'task': 'reach', 'slot': 'prod', 'policy': 'p@1', 'state': 'streaming'} | fields
    return encode(record_of(records.EdgeState, stamp=Time.of_ns(stamp_ns), **(place | made)))


def outcome(episode_id: str, result: str, client_id: str = ROBOT) -> bytes:
    place = {'client_id': client_id, 'episode_id': episode_id}
    return encode(record_of(records.EpisodeOutcome, stamp=Time(1), outcome=result, **place))


class RecorderRig:
    """
    A recorder of one robot, by default of its episodes; each instance is a start of it. `now_s` is
    the monotonic clock and the age of all stamps; `wall_ns` is added to the times of reception.
    """

    def __init__(
        self,
        root: Path,
        rules: RecordingRules = RULES,
        kind: type[StrategyWriter] = EpisodicWriter,
        *,
        wanted: str = '',
    ) -> None:
        self.now_s, self.wall_ns, self.step = 100.0, 1_700_000_000 * SECOND_NS, 0
        self.lines: list[str] = []
        self.sent = 0
        self.root = root
        self.writer = kind(
            BagFolder(root),
            KnownRobots(wanted),
            rules,
            clock=lambda: self.now_s,
            log=self.lines.append,
        )
        self.introduce()

    @property
    def stamp_ns(self) -> int:
        return self.wall_ns + int(self.now_s * 1e9)

    def send(self, topic: str, kind: str, data: bytes, *, is_latched: bool = False) -> None:
        profiles = LATCHED if is_latched else (OfferedProfile(),)
        if topic not in self.writer.topics:
            self.writer.add_topic(BagTopic(topic, kind, profiles=profiles))
        self.sent += 1
        # the source timestamp identifies a message, whatever its time of reception
        self.writer.write(BagMessage(topic, kind, self.stamp_ns, data, self.sent))

    def introduce(self, edge: str = EDGE, client_id: str = ROBOT) -> None:
        """Send what an edge latches when it starts."""
        self.send(f'{edge}/robot_file', TEXT_TYPE, text(ROBOT_FILE), is_latched=True)
        self.report('', edge, client_id=client_id)

    def report(self, episode_id: str, edge: str = EDGE, **fields: object) -> None:
        raw = state(episode_id, **{'stamp_ns': self.stamp_ns, **fields})
        self.send(f'{edge}/state', EDGE_STATE, raw, is_latched=True)

    def act(self, episode_id: str, edge: str = EDGE, **fields: object) -> None:
        self.step += 1
        raw = executed(episode_id, self.step, **{'stamp_ns': self.stamp_ns, **fields})
        self.send(f'{edge}/executed_action', EXECUTED, raw)

    def judge(self, episode_id: str, result: str = 'success', **fields: object) -> None:
        self.send('/arm/episode_outcome', OUTCOME, outcome(episode_id, result, **fields))

    def joints(self, data: bytes = b'joints') -> None:
        self.send(JOINTS, JOINTS_TYPE, data)

    def run(self, episode_id: str, steps: int = 5, **fields: object) -> None:
        """Play some control steps at 10 Hz, each with its input before it."""
        for _ in range(steps):
            self.joints()
            self.act(episode_id, **fields)
            self.wait(0.1)

    def wait(self, seconds: float) -> None:
        """Let time pass in steps of the flush."""
        while seconds > 1e-9:
            self.now_s += min(0.25, seconds)
            seconds -= 0.25
            self.writer.flush()

    def record(self, episode_id: str, outcome: str = 'success', **fields: object) -> Path:
        """Record a whole episode; return its bag."""
        self.run(episode_id, **fields)
        if outcome:
            self.judge(episode_id, outcome)
        return self.end_episode()

    def begin(self, episode_id: str, steps: int = 5) -> None:
        """Begin an episode; what it has is on the disk."""
        self.run(episode_id, steps)
        self.writer.flush()

    def end_episode(self) -> Path:
        """End the episode that runs; return its bag, the only one that this completes."""
        before = set(bags(self.root))
        self.report('')
        self.wait(3.0)
        (bag,) = set(bags(self.root)) - before
        return bag

    def stop(self) -> None:
        self.writer.close()

    def kill(self) -> None:
        """End as SIGKILL does: nothing is completed, the lock goes."""
        self.writer.abort()


def bags(root: Path) -> list[Path]:
    """Return the folders of whole bags, in the order of their names."""
    return sorted(each.parent for each in root.glob('*/metadata.yaml'))


def messages(bag: Path, kind: str = '') -> Iterator[BagMessage]:
    found = Bag(bag)
    yield from (each for each in found.read() if not kind or each.type == kind)
    assert found.is_complete, found.damage


def has_messages(root: Path, episode_id: str) -> bool:
    """Return whether an episode, or most of it, is on the disk."""
    for file in root.glob(f'*_{episode_id}_*/*.mcap'):
        if not file.parent.name.endswith('.recording'):
            return True
        # a whole bag has another name from now on
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_size > WRITTEN_BYTES:
                return True
    return False
