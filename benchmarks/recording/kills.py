# SPDX-License-Identifier: Apache-2.0
"""
A recorder is killed again and again while a robot runs short episodes, and each time the next one
completes what it left. Each control step that is older than a second at the kill must be there,
once, in a whole bag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
import random
import shutil
import threading
import time
from typing import TypeVar

from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child, wait_until
from benchmarks.results.report import Case
from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode
from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.processes import executable_path
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

ABOUT = 'a recorder is killed at random instants'
KILLS, RATE_HZ, LOST_S, START_LIMIT_S = 100, 30.0, 1.0, 30.0
PARAMETERS = {'strategy': 'episodic', 'rate_hz': RATE_HZ, 'may_be_lost_s': LOST_S}
ROBOT = '/bench_kill'
# an episode without an outcome ends its bag soon
SHORT_WAIT = ('--outcome-wait', '0.5')
KeyT = TypeVar('KeyT', bound=Hashable)


class PlayedRobot:
    """
    Publishes what an edge does, in a thread of its own; `sent` has the time of each step. The last
    part of `namespace` is its client_id.
    """

    def __init__(
        self, node: Node, draw: random.Random, namespace: str = ROBOT, longest_steps: int = 90
    ) -> None:
        self._draw, self._node = draw, node
        self._client_id, self._longest_steps = namespace.rpartition('/')[2], longest_steps
        edge = f'{namespace}/edge_controller'
        self._actions = node.create_publisher(
            ExecutedAction, f'{edge}/executed_action', qos.EXECUTED_ACTION
        )
        self._states = node.create_publisher(EdgeState, f'{edge}/state', qos.STATE)
        self._files = node.create_publisher(String, f'{edge}/robot_file', qos.STATE)
        self._joints = node.create_publisher(JointState, f'{namespace}/joint_states', qos.SENSOR)
        self._outcomes = node.create_publisher(
            EpisodeOutcome, f'{namespace}/episode_outcome', qos.OUTCOME
        )
        self.sent: dict[int, float] = {}
        self.episodes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='played robot')

    def start(self) -> None:
        self._files.publish(String(data=shared_file('config/robots/sim_arm.yaml').read_text()))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.episodes += 1
            episode_id = f'episode-{self.episodes}'
            for _ in range(self._draw.randrange(1, self._longest_steps)):
                self._step(episode_id)
            self._outcomes.publish(
                EpisodeOutcome(client_id=self._client_id, episode_id=episode_id, outcome=1)
            )
            self._report('')
            self._stop.wait(self._draw.uniform(0.0, 0.5))

    def _step(self, episode_id: str) -> None:
        self._joints.publish(JointState(name=['a'], position=[1.0]))
        number = len(self.sent) + 1
        stamp = self._node.get_clock().now().to_msg()
        self.sent[number] = time.monotonic()
        self._actions.publish(
            ExecutedAction(
                stamp=stamp, control_step=number, client_id=self._client_id, episode_id=episode_id
            )
        )
        if number % 6 == 0:
            self._report(episode_id)
        self._stop.wait(1 / RATE_HZ)

    def _report(self, episode_id: str) -> None:
        stamp = self._node.get_clock().now().to_msg()
        self._states.publish(
            EdgeState(stamp=stamp, client_id=self._client_id, episode_id=episode_id)
        )


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case. Main thread. Raises UserError."""
    return [kill_often(folder, KILLS, random.Random(1))]


def kill_often(folder: Path, kills: int, draw: random.Random) -> Case:
    root = folder / 'killed_bags'
    shutil.rmtree(root, ignore_errors=True)
    spans: list[tuple[int, float]] = []
    with spinning_node('bench_kills') as node:
        robot = PlayedRobot(node, draw)
        robot.start()
        try:
            for number in range(kills):
                spans.append(record_and_kill(root, folder / f'kill_{number}.log', robot, draw))
        finally:
            robot.stop()
    with child(record_command(root, *SHORT_WAIT), folder / 'kill_last.log'):
        wait_for(lambda: not list(root.glob('*.recording')), 'cut bags are completed')
    return judge(root, robot, spans)


def record_command(root: Path, *words: str) -> list[str]:
    words = ('--strategy', 'episodic', *words)
    return [str(executable_path('lerobot-serve')), 'record', str(root), *words]


def record_and_kill(
    root: Path, log: Path, robot: PlayedRobot, draw: random.Random
) -> tuple[int, float]:
    """Record a while; return how many steps were sent before, and when it was killed."""
    begin = len(robot.sent)
    with child(record_command(root, *SHORT_WAIT), log) as process:
        wait_for(lambda: '/executed_action ' in log.read_text(), 'the recorder hears the robot')
        time.sleep(draw.uniform(0.0, 2.0))
        process.kill()
        killed_s = time.monotonic()
        process.wait()
    log.unlink()
    return begin, killed_s


def judge(root: Path, robot: PlayedRobot, spans: list[tuple[int, float]]) -> Case:
    """Find each step that is missing although it was recorded for more than a second."""
    found, damaged = steps_of(folders_of(root), lambda step: step.control_step)
    lost, lost_s = 0, []
    ends = [begin for begin, _ in spans[1:]] + [len(robot.sent)]
    for (begin, killed_s), end in zip(spans, ends, strict=True):
        own = [n for n in range(begin + 1, end + 1) if n in found and robot.sent[n] < killed_s]
        if own:
            wanted = [n for n in range(own[0], end + 1) if robot.sent[n] < killed_s - LOST_S]
            lost += sum(n not in found for n in wanted)
            lost_s.append(1e3 * (killed_s - robot.sent[own[-1]]))
    return Case(
        'kills',
        counts={
            'kills': len(spans),
            'kills_with_steps': len(lost_s),
            'episodes': robot.episodes,
            'bags': len(folders_of(root)),
            'damaged_bags': damaged,
            'older_steps_lost': lost,
            'steps_twice': sum(count > 1 for count in found.values()),
        },
        series_ms={'gone at a kill': lost_s},
        goals={
            'no step older than 1 s is lost': lost == 0,
            'all bags whole': damaged == 0,
        },
    )


def folders_of(bags: Path) -> list[Path]:
    return sorted(each.parent for each in bags.glob('*/metadata.yaml'))


def steps_of(
    folders: Iterable[Path], key: Callable[[records.ExecutedAction], KeyT]
) -> tuple[Counter[KeyT], int]:
    """Return how often each control step is in the bags, and how many of them are damaged."""
    found: Counter[KeyT] = Counter()
    damaged = 0
    for folder in folders:
        bag = Bag(folder)
        for message in bag.read():
            if message.type == EXECUTED:
                found[key(decode(records.ExecutedAction, message.data))] += 1
        damaged += not bag.is_complete
    return found, damaged


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds. Raises UserError."""
    wait_until(holds, f'{what}: not within {START_LIMIT_S:g} s', START_LIMIT_S)
