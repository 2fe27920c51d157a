# SPDX-License-Identifier: Apache-2.0
"""What a recorder keeps and announces: for late subscribers, after kills, on a full disk."""

from __future__ import annotations

from functools import partial
import json
from pathlib import Path
import random
import resource
import shutil
import signal
import socket
import sys

import pytest
from support.nodes.edge_rig import EdgeRig
from support.nodes.recorder_process import (
    recorder,
    run_episode,
    wait_until_heard,
)
from support.tools.episode_bags import complete_at, file_of, sha256sum, whole_episodes
from support.tools.recorder_rig import bags, has_messages

from lerobot_serve.experience.recorded_episode import decode_recorded
from lerobot_serve.experience.scanning import episodes_in
from lerobot_serve.ros import qos
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.recorder.announcer import ANNOUNCED_LIMIT
from lerobot_serve_interfaces.msg import EpisodeOutcome, RecordedEpisode

pytestmark = pytest.mark.long

TOPIC = '/recorded_episodes'
EPISODIC = '--strategy', 'episodic'
KILLS = 6


class Learner:
    """A subscriber that stays; `heard` has the announcements as they come."""

    def __init__(self, rig_node: object, topic: str = TOPIC) -> None:
        self.node, self.raw = rig_node, []
        self._subscription = rig_node.create_subscription(
            RecordedEpisode, topic, self.raw.append, qos.RECORDED_EPISODES, raw=True
        )

    @property
    def heard(self) -> list:
        return [decode_recorded(each) for each in list(self.raw)]

    @property
    def ids(self) -> list[str]:
        return [each.episode_id for each in self.heard]

    def end(self) -> None:
        self.node.destroy_subscription(self._subscription)


@pytest.fixture
def rig(edge_rig) -> EdgeRig:
    edge_rig.start_server()
    edge_rig.start(run_on_start=False)
    edge_rig.wait(lambda: edge_rig.seen.states, 'the state of the edge')
    return edge_rig


def check_against_disk(learner: Learner) -> None:
    """What was announced is on the disk, whole, with this hash."""
    for episode in learner.heard:
        bag = Path(episode.path)
        assert (bag / 'metadata.yaml').is_file()
        assert not bag.name.endswith('.recording')
        assert episode.sha256 == sha256sum(bag)
        assert episode.size_bytes == file_of(bag).stat().st_size


def test_a_late_subscriber_gets_what_a_start_announces():
    assert qos.RECORDED_EPISODES.depth == ANNOUNCED_LIMIT


@pytest.mark.slow
def test_a_late_subscriber_gets_episodes_of_before_and_of_a_restart(rig, tmp_path):
    root = tmp_path / 'bags'
    topic = '/lab/recorded_episodes'
    with recorder(root, *EPISODIC, '--namespace', 'lab') as process:
        wait_until_heard(rig, process)
        # from its end on, edge and recorder have found each other
        run_episode(rig, 'ep-0')
        run_episode(rig, 'ep-1')
        run_episode(rig, 'ep-2', EpisodeOutcome.FAILURE)
        rig.wait(lambda: len(bags(root)) == 3, 'all bags are whole')
        late = Learner(rig.node, topic)
        rig.wait(lambda: len(late.raw) == 3, 'a late subscriber has all')
        assert process.stop() == 0, process.log
        assert '3 episodes announced\n' in process.log
        # a recorder does not record what it announces
        assert f'recording {topic}' not in process.log
    check_against_disk(late)
    _, second, third = late.heard
    assert [each.episode_id for each in late.heard] == ['ep-0', 'ep-1', 'ep-2']
    assert [each.outcome.word for each in late.heard] == ['success', 'success', 'failure']
    assert {each.host for each in late.heard} == {socket.gethostname()}
    assert all(each.control_steps >= 10 for each in (second, third))
    assert all(each.policies and not each.control_steps_person for each in late.heard)
    assert [each.path for each in late.heard] == [str(bag) for bag in bags(root)]
    assert list(episodes_in(root)) == late.heard
    before = list(late.raw)
    late.end()
    with recorder(root, *EPISODIC, '--namespace', 'lab') as process:
        again = Learner(rig.node, topic)
        rig.wait(lambda: len(again.raw) == 3, 'a start announces all')
        assert again.raw == before
        assert process.stop() == 0, process.log
    again.end()


@pytest.mark.slow
def test_the_last_episode_of_a_recorder_that_is_stopped_is_announced(rig, tmp_path):
    root = tmp_path / 'bags'
    learner = Learner(rig.node)
    with recorder(root, *EPISODIC) as process:
        wait_until_heard(rig, process)
        rig.wait(lambda: rig.node.count_publishers(TOPIC), 'the recorder is found')
        run = rig.run(episode_id='runs')
        rig.wait_for_play(10)
        assert process.stop() == 0, process.log
        rig.wait(lambda: learner.ids == ['runs'], 'the cut episode is announced')
    run.cancel()
    run.result()
    check_against_disk(learner)
    learner.end()


@pytest.mark.slow
def test_two_recorders_announce_on_one_topic(rig, tmp_path):
    roots = tmp_path / 'left', tmp_path / 'right'
    with recorder(roots[0], *EPISODIC) as left, recorder(roots[1], *EPISODIC) as right:
        wait_until_heard(rig, left, right)
        run_episode(rig, 'ep')
        rig.wait(lambda: all(map(bags, roots)), 'both bags are whole')
        late = Learner(rig.node)
        rig.wait(lambda: len(late.raw) == 2, 'both are announced')
        left.kill()
        run_episode(rig, 'alone')
        rig.wait(lambda: len(late.raw) == 3, 'the other one continues')
        assert right.stop() == 0, right.log
    check_against_disk(late)
    assert late.ids == ['ep', 'ep', 'alone']
    assert {Path(each.path).parent for each in late.heard[:2]} == set(roots)
    late.end()


def test_other_strategies_announce_nothing(rig, tmp_path):
    with recorder(tmp_path / 'bags', '--strategy', 'sentry') as process:
        wait_until_heard(rig, process)
        assert not rig.node.count_publishers(TOPIC)
        assert process.stop() == 0, process.log
        assert 'announced' not in process.log


def control_steps(bag: Path) -> list[int]:
    found = [each for each in Bag(bag).read() if each.type == EXECUTED]
    return [each.record().control_step for each in found]


@pytest.mark.slow
def test_a_recorder_that_is_killed_at_any_moment_announces_whole_bags_as_before(rig, tmp_path):
    root, draw = tmp_path / 'bags', random.Random(11)
    live = Learner(rig.node)
    announced: dict[str, bytes] = {}

    def check() -> None:
        for raw in list(live.raw):
            path = decode_recorded(raw).path
            assert announced.setdefault(path, raw) == raw
        check_against_disk(live)

    for number in range(KILLS):
        with recorder(root, *EPISODIC, '--outcome-wait', '0.5') as process:
            wait_until_heard(rig, process)
            run_episode(rig, f'ended-{number}')
            # a recorder that is behind its robot, as on busy cores, has not written it yet
            rig.wait(partial(has_messages, root, f'ended-{number}'), 'the episode is written')
            run = rig.run(episode_id=f'cut-{number}')
            # its bag becomes whole, and is hashed, meanwhile
            rig.wait_for_play(draw.randrange(1, 45))
            process.kill()
            last = rig.seen.played[-1].control_step
            run.cancel()
            run.result()
        check()
        # of the running one at most the last second is gone, and the next start completes it
        for cut in root.glob(f'*_cut-{number}_*.recording'):
            if steps := control_steps(cut):
                assert steps == list(range(steps[0], steps[0] + len(steps)))
                assert last - steps[-1] <= 45
        live.raw.clear()
    with recorder(root, *EPISODIC) as process:
        rig.wait(lambda: not list(root.glob('*.recording')), 'cut bags are completed')
        paths = {str(bag) for bag in bags(root)}
        rig.wait(lambda: {each.path for each in live.heard} >= paths, 'all are announced')
        check()
        assert set(announced) == paths
        assert process.stop() == 0, process.log
    assert sum('_ended-' in path for path in paths) == KILLS
    live.end()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='RLIMIT_FSIZE with SIGXFSZ is of Linux')
def test_what_was_whole_on_a_full_disk_is_announced_again(rig, tmp_path):
    root = tmp_path / 'bags'
    learner = Learner(rig.node)

    def limit() -> None:
        # no file may grow beyond this, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    with recorder(root, *EPISODIC, preexec_fn=limit) as process:
        wait_until_heard(rig, process)
        run_episode(rig, 'whole')
        rig.wait(lambda: learner.ids == ['whole'], 'the whole one is announced')
        run = rig.run(episode_id='too-long')
        rig.wait(lambda: process.process.poll() is not None, 'the recorder has stopped')
        assert process.process.returncode == 1
        assert 'cannot be written: File too large' in process.log
    # the robot continues
    rig.wait_for_play(10)
    run.cancel()
    run.result()
    assert learner.ids == ['whole']
    before = learner.raw.pop()
    with recorder(root, *EPISODIC) as process:
        rig.wait(lambda: len(learner.raw) == 2, 'both are announced')
        assert process.stop() == 0, process.log
    assert before in learner.raw
    assert sorted(learner.ids) == ['too-long', 'whole']
    check_against_disk(learner)
    learner.end()


def many_bags(root: Path, count: int) -> None:
    """Make bags with other ids of one."""
    (bag,) = whole_episodes(root, 'first')
    about = json.loads((bag / 'intervals.json').read_text())
    for number in range(count - 1):
        copy = root / f'bag_{number:05}'
        shutil.copytree(bag, copy)
        (copy / 'intervals.json').write_text(json.dumps({**about, 'episode_id': f'ep-{number}'}))
        complete_at(copy, 1_100_000_000 + number)


@pytest.mark.slow
def test_a_late_subscriber_gets_the_newest_thousand(node, wait_until, tmp_path):
    root = tmp_path / 'bags'
    many_bags(root, 1005)
    with recorder(root, *EPISODIC) as process:
        wait_until(
            lambda: 'earlier episodes are announced' in process.log, 'the start has announced all'
        )
        assert '1000 earlier episodes are announced, 5 older ones are not' in process.log
        late = Learner(node)
        wait_until(lambda: len(late.raw) == 1000, 'a late subscriber has a thousand')
        assert late.ids == [f'ep-{number}' for number in range(4, 1004)]
        assert process.stop() == 0, process.log
    late.end()
