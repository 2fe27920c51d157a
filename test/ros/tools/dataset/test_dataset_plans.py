# SPDX-License-Identifier: Apache-2.0
"""Which rows a bag gives, and which messages each row has; without LeRobot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from std_msgs.msg import String
from support.tools.bag_rig import write_sqlite

from benchmarks.recording.example_bag import EdgeBag, image, NODE, ROBOT_FILE, STEP_NS
from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode
from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset import as_of
from lerobot_serve.tools.dataset.as_of import plan_sampled
from lerobot_serve.tools.dataset.bag_index import BagIndex, index_bags, numbered
from lerobot_serve.tools.dataset.episodes import (
    DatasetError,
    EpisodePlan,
    is_selected,
    parse_filter,
    parse_robot,
    RecordedRobot,
)
from lerobot_serve.tools.dataset.executed import plan_recorded
from lerobot_serve.tools.dataset.features import (
    camera_columns,
    FrameShape,
    HAS_POLICY_ACTION,
    row_values,
)
from lerobot_serve.tools.dataset.records import episode_record, Existing
from lerobot_serve_interfaces.msg import EpisodeOutcome, ExecutedAction


def index_of(*bags: Path) -> BagIndex:
    return index_bags([Bag(bag) for bag in bags], lambda _: None)


def plans_of(*bags: Path) -> list[EpisodePlan]:
    return list(plan_recorded(index_of(*bags)))


def plan_of(folder: Path, *episode: object, robot_file: str = ROBOT_FILE, **more: object):
    """Return the plan of a bag with one episode."""
    bag = EdgeBag(folder / 'bag', robot_file=robot_file)
    bag.episode(*episode, **more)
    (plan,) = plans_of(bag.close())
    return plan


def test_a_row_names_the_newest_messages_of_its_step(tmp_path):
    plan = plan_of(tmp_path, 'one', 6)
    assert [row.messages[0].number for row in plan.rows] == list(range(6))
    assert [key.topic for key in plan.rows[0].messages] == [
        '/arm/joint_states',
        '/arm/camera/front/image_raw',
        '/arm/camera/wrist/image_raw',
    ]
    assert (plan.task, plan.outcome, plan.label, plan.fps) == (
        'reach the disc',
        'success',
        True,
        30,
    )


def test_a_slow_camera_gives_the_same_frame_to_several_rows(tmp_path):
    def every_third(step):
        if step.number % 3:
            step.frames['front'] = None

    plan = plan_of(tmp_path, 'one', 7, change=every_third)
    assert [row.messages[1].number for row in plan.rows] == [0, 0, 0, 1, 1, 1, 2]


def test_a_camera_that_stops_cuts_the_episode_and_takes_its_label(tmp_path):
    def stop(step):
        if step.number >= 10:
            step.frames['wrist'] = None

    plan = plan_of(tmp_path, 'one', 60, change=stop)
    # rows 0 to 9, and those within half a second
    assert 24 <= len(plan.rows) <= 25
    assert 'wrist' in plan.cut and '0.5 s' in plan.cut
    assert plan.label is None and not plan.is_whole


def test_a_camera_that_begins_late_costs_the_rows_before(tmp_path):
    def late(step):
        if step.number < 4:
            step.frames['front'] = None

    plan = plan_of(tmp_path, 'one', 8, change=late)
    assert len(plan.rows) == 4 and not plan.cut
    assert sum(plan.left_out.values()) == 4


def test_a_frame_that_the_recorder_lost_costs_its_row_only(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')

    def lose(step):
        if step.number == 3:
            bag.put, kept = lose_one, bag.put
            step.action.reason = 'lost'
            restore.append(kept)

    restore: list = []

    def lose_one(topic, message, **options):
        if topic.endswith('front/image_raw'):
            bag.put = restore.pop()
            return bag.clock_ns + 7
        return restore[0](topic, message, **options)

    bag.episode('one', 8, change=lose)
    (plan,) = plans_of(bag.close())
    assert len(plan.rows) == 7 and not plan.cut
    assert [row.messages[0].number for row in plan.rows] == [0, 1, 2, 4, 5, 6, 7]


def test_a_step_without_a_command_is_no_row(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')

    def pause(step):
        if step.number in (2, 3):
            step.commanded = np.zeros(0, np.float32)

    bag.episode('one', 6, change=pause)
    (plan,) = plans_of(bag.close())
    assert len(plan.rows) == 4 and plan.left_out == {'no command was sent': 2}


def test_rows_of_two_recordings_of_one_episode_are_joined(tmp_path):
    whole = EdgeBag(tmp_path / 'whole')
    whole.episode('one', 9)
    whole.close()
    again = EdgeBag(tmp_path / 'again')
    again.episode('one', 9)
    again.close()
    (plan,) = plans_of(tmp_path / 'whole', tmp_path / 'again')
    assert len(plan.rows) == 9
    assert plan.digest == plans_of(tmp_path / 'whole')[0].digest


def test_rows_of_overlapping_recordings_are_in_order_and_only_once(tmp_path):
    """Two recorders of one edge: the one that began first ended last, with a hole."""
    bag = EdgeBag(tmp_path / 'all')
    bag.episode('one', 9)
    rows = list(Bag(bag.close()).read())
    seen = {'long': (0, 1, 2, 6, 7, 8), 'short': (2, 3, 4, 5, 6)}
    for name, steps in seen.items():
        part, number = EdgeBag(tmp_path / name, robot_file=''), -1
        for message in rows:
            if message.topic.endswith('executed_action'):
                number += 1
                if number not in steps:
                    continue
            part.writer.add_topic(BagTopic(message.topic, message.type))
            part.writer.write(message)
        part.close()
    (plan,) = plans_of(tmp_path / 'long', tmp_path / 'short')
    steps = [decode(records.ExecutedAction, row.executed).control_step for row in plan.rows]
    assert steps == list(range(9))
    assert plan.digest == plans_of(tmp_path / 'all')[0].digest


@pytest.mark.parametrize('first_step', [0, 2, 9])
def test_an_id_of_two_attempts_is_refused_with_both_bags(tmp_path, first_step):
    """A caller names its episodes, and does so again after a restart of the edge."""
    monday = EdgeBag(tmp_path / 'monday')

    def number(step):
        step.action.control_step += first_step

    monday.episode('ep_1', 7, change=number)
    tuesday = EdgeBag(tmp_path / 'tuesday')
    tuesday.clock_ns = monday.clock_ns + 24 * 3600 * 10**9
    tuesday.episode('ep_1', 7, target_xy=(0.2, -0.1))
    bags = monday.close(), tuesday.close()
    with pytest.raises(DatasetError, match=r"'arm' episode 'ep_1' .*/monday and .*/tuesday;"):
        plans_of(*bags)
    assert len(plans_of(bags[0])[0].rows) == 7


def test_the_bag_of_a_killed_recorder_gives_its_rows_without_an_end(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('one', 5)
    bag.episode('two', 5, outcome=None)
    # the recorder dies before the state that ends the episode
    folder = bag.kill()
    file = next(folder.glob('*.mcap'))
    file.write_bytes(file.read_bytes()[:-300])
    first, *_ = plans_of(folder)
    assert first.is_whole and len(first.rows) == 5
    assert index_of(folder).damage


def killed_in_an_episode(folder: Path) -> EdgeBag:
    """A bag that has five rows of an episode, and nothing of its end."""
    bag = EdgeBag(folder)
    put = bag.put

    def put_until_the_end(topic, message, **options):
        # the state without an episode is its end
        if topic.endswith('/state') and not message.episode_id:
            bag.put = lambda *_, **__: 0
            return 0
        return put(topic, message, **options)

    bag.put = put_until_the_end
    bag.episode('died', 5)
    bag.close()
    return bag


@pytest.mark.parametrize(
    ('pause_ns', 'steps_lost', 'is_whole'),
    [(5 * 10**9, 150, False), (5 * 10**9, 0, True), (10**8, 3, True)],
)
def test_a_later_bag_ends_an_episode_only_if_it_continues_it(
    tmp_path, pause_ns, steps_lost, is_whole
):
    before = killed_in_an_episode(tmp_path / 'before')
    after = EdgeBag(tmp_path / 'after')
    after.clock_ns = before.clock_ns + pause_ns

    def number(step):
        step.action.control_step += 5 + steps_lost

    after.episode('next', 3, change=number)
    plans = {plan.episode_id: plan for plan in plans_of(tmp_path / 'before', after.close())}
    assert plans['died'].is_whole == is_whole and plans['next'].is_whole
    assert len(plans['died'].rows) == 5


def test_an_outcome_in_a_later_bag_does_not_make_an_episode_whole(tmp_path):
    before = killed_in_an_episode(tmp_path / 'before')
    after = EdgeBag(tmp_path / 'after')
    after.clock_ns = before.clock_ns + 60 * 10**9
    after.put(
        f'{NODE}/episode_outcome',
        EpisodeOutcome(client_id='arm', episode_id='died', outcome=EpisodeOutcome.SUCCESS),
    )
    (plan,) = plans_of(tmp_path / 'before', after.close())
    assert plan.outcome == 'success' and not plan.is_whole and plan.label is None


def test_without_states_an_outcome_ends_its_episode(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    put = bag.put
    bag.put = lambda topic, message, **options: (
        0 if topic.endswith('/state') else put(topic, message, **options)
    )
    bag.episode('one', 3)
    (plan,) = plans_of(bag.close())
    assert plan.is_whole and plan.label


def test_without_an_outcome_there_is_no_label(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('none', 3, outcome=None)
    bag.episode('aborted', 3, outcome=EpisodeOutcome.ABORTED)
    bag.episode('failed', 3, outcome=EpisodeOutcome.FAILURE)
    assert [plan.label for plan in plans_of(bag.close())] == [None, None, False]


def test_filters_of_one_kind_are_alternatives_and_others_all_hold(tmp_path):
    def by_person(step):
        step.action.source = ExecutedAction.SOURCE_PERSON

    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('good', 2)
    bag.episode('bad', 2, outcome=EpisodeOutcome.FAILURE, slot='b', policy='sha256:bbbb')
    bag.episode('helped', 2, change=by_person)
    bag.episode('open', 2, outcome=None)
    plans = plans_of(bag.close())

    def chosen(*texts):
        filters = [parse_filter(text) for text in texts]
        return [plan.episode_id for plan in plans if is_selected(plan, filters)]

    assert chosen('success') == ['good', 'helped']
    assert chosen('success', 'failure') == ['good', 'bad', 'helped']
    assert chosen('success', 'intervention') == ['helped']
    assert chosen('slot=b') == chosen('policy=sha256:bb') == ['bad']
    assert len(chosen()) == 4
    for wrong in ('lucky', 'slot=', 'slot', 'success=1'):
        with pytest.raises(WrongCommandLine):
            parse_filter(wrong)


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', 'no robot file'),
        ('name: x', 'not a robot file'),
        ('[', 'not YAML'),
        (ROBOT_FILE.replace('gripper.pos:', 'gripper.pos: {joint: gripper}\n  extra:'), 'joint'),
    ],
)
def test_a_wrong_robot_file_is_refused_with_the_reason(tmp_path, text, says):
    with pytest.raises(DatasetError, match=says):
        plan_of(tmp_path, 'one', 2, robot_file=text)


def test_a_robot_file_of_another_robot_is_refused(tmp_path):
    fewer = ROBOT_FILE.replace(
        '  gripper.pos: {joint: gripper, min: -3, max: 3, max_step: 0.3}\n', ''
    )
    assert fewer != ROBOT_FILE
    with pytest.raises(DatasetError, match='does not fit'):
        plan_of(tmp_path, 'one', 2, robot_file=fewer)


def test_each_episode_is_read_with_the_robot_file_of_its_time(tmp_path):
    """The edge begins again with another file, in one bag and in the next."""
    texts = [ROBOT_FILE.replace('max_age_s: 0.25', f'max_age_s: 0.{n}') for n in (3, 4, 5)]
    bag = EdgeBag(tmp_path / 'a', robot_file=texts[0])
    bag.episode('one', 2)
    bag.put(f'{NODE}/robot_file', String(data=texts[1]))
    bag.episode('two', 2)
    bag.close()
    later = EdgeBag(tmp_path / 'b', robot_file='')
    # the recorder receives the file behind the first rows
    later.episode('three', 2)
    later.put(f'{NODE}/robot_file', String(data=texts[2]))
    plans = plans_of(tmp_path / 'a', later.close())
    assert [plan.robot.text for plan in plans] == texts


def test_a_robot_file_may_name_a_urdf_that_is_not_here(tmp_path):
    bag = EdgeBag(tmp_path / 'bag', robot_file=f'urdf: nowhere.urdf\nlimits: urdf\n{ROBOT_FILE}')
    bag.episode('one', 2)
    assert len(plans_of(bag.close())[0].rows) == 2


def test_a_bag_without_source_timestamps_is_refused(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('one', 2)
    file = write_sqlite(tmp_path / 'bag.db3', Bag(bag.close()).read())
    with pytest.raises(DatasetError, match='source timestamps'):
        plans_of(file)


def test_hostile_ids_are_only_text(tmp_path):
    plan = plan_of(tmp_path, '../../etc/\x1b[2J', 2, client='/tmp/x\n')
    assert '\x1b' not in plan.title and '\n' not in plan.title


def dataset_of(*plans: EpisodePlan) -> Existing:
    lines = [json.dumps(episode_record(plan, plan.digest)) for plan in plans]
    return Existing({}, 30, 'sim_arm', len(plans), 0, tuple(lines), {})


def test_an_episode_is_the_same_with_an_outcome_and_an_end_of_a_later_bag(tmp_path):
    killed_in_an_episode(tmp_path / 'before')
    after = EdgeBag(tmp_path / 'after')
    after.put(
        f'{NODE}/episode_outcome',
        EpisodeOutcome(client_id='arm', episode_id='died', outcome=EpisodeOutcome.FAILURE),
    )
    (alone,) = plans_of(tmp_path / 'before')
    (both,) = plans_of(tmp_path / 'before', after.close())
    assert both.outcome == 'failure' and alone.outcome == ''
    assert alone.digest in dataset_of(alone).refuse_others([both])
    # the staged rows have a label, so they are not those of the other
    assert alone.labels != both.labels


def test_an_episode_that_is_there_with_other_rows_is_refused_with_its_name(tmp_path):
    before = killed_in_an_episode(tmp_path / 'before')
    after = EdgeBag(tmp_path / 'after')
    after.clock_ns = before.clock_ns

    def number(step):
        step.action.control_step += 5

    after.episode('died', 3, change=number)
    (half,) = plans_of(tmp_path / 'before')
    (whole,) = plans_of(tmp_path / 'before', after.close())
    with pytest.raises(DatasetError, match=r"'arm' episode 'died' .*5 there, 8 in these bags"):
        dataset_of(half).refuse_others([whole])


@pytest.mark.parametrize(('robots', 'outcome'), [(('arm',), 'failure'), (('arm', 'leg'), '')])
def test_an_outcome_without_a_robot_is_of_the_only_one_with_its_episode(tmp_path, robots, outcome):
    bag = EdgeBag(tmp_path / 'bag')
    for robot in robots:
        bag.episode('one', 2, outcome=None, client=robot)
    bag.put(
        f'{NODE}/episode_outcome',
        EpisodeOutcome(episode_id='one', outcome=EpisodeOutcome.SUCCESS),
    )
    bag.put(
        f'{NODE}/episode_outcome',
        EpisodeOutcome(episode_id='one', outcome=EpisodeOutcome.FAILURE),
    )
    # the last report counts
    assert [plan.outcome for plan in plans_of(bag.close())] == [outcome] * len(robots)


def test_both_passes_give_a_message_the_same_number(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('one', 3)
    messages = list(Bag(bag.close()).read())
    camera = '/arm/camera/front/image_raw'
    first = next(m for m in messages if m.topic == camera)
    # of a type that is not an input, and of a time that no clock has
    messages.insert(0, first._replace(type='std_msgs/msg/String'))
    messages.insert(0, first._replace(sent_ns=1 << 63))
    messages.insert(0, first._replace(stamp_ns=(1 << 64) - 1))

    class Bagged:
        path, damage = tmp_path, ()

        def read(self):
            return iter(messages)

    index = index_bags([Bagged()], lambda _: None)
    assert len(index.damage) == 2 and camera in index.damage[0]
    numbers = {(m.topic, n): m for n, m in numbered(messages, {})}
    assert numbers[camera, 0] is first
    for topic, known in index.topics.items():
        found = [numbers[topic, n].stamp_ns for n in range(len(known.received_ns))]
        assert found == list(known.received_ns) and (topic, len(found)) not in numbers


def test_a_policy_action_that_is_not_finite_is_not_known(tmp_path):
    def spoil(step):
        if step.number == 1:
            step.action.raw = [float('nan'), *step.action.raw[1:]]

    plan = plan_of(tmp_path, 'one', 2, change=spoil)
    state = np.zeros(6)
    rows = [
        row_values(plan, n, state=state, frames={}, command=None, is_labelled=False)
        for n in range(2)
    ]
    assert [bool(row[HAS_POLICY_ACTION][0]) for row in rows] == [True, False]
    assert np.array_equal(rows[1]['complementary_info.policy_action'], rows[1]['action'])


def test_two_cameras_of_one_column_are_refused_with_both_names():
    text = ROBOT_FILE.replace('observation.images.wrist:', 'front:')
    robot = parse_robot(text, 'robot.yaml', NODE)
    colour, depth = FrameShape(48, 64, 3, 'uint8'), FrameShape(48, 64, 1, 'uint16')
    names = 'observation.images.front', 'front'
    with pytest.raises(DatasetError, match=r"'observation\.images\.front' and 'front'"):
        camera_columns(robot, dict.fromkeys(names, colour))
    # colour and depth have columns of their own
    assert camera_columns(robot, {names[0]: colour, names[1]: depth}) == {
        names[0]: 'observation.images.front',
        names[1]: 'observation.depth.front',
    }


# bags of other recorders


def sampling_robot() -> RecordedRobot:
    return parse_robot(ROBOT_FILE, 'robot.yaml', '/arm/anything')


def sampled(folder: Path) -> tuple[BagIndex, list[EpisodePlan]]:
    index = index_of(folder)
    return index, list(plan_sampled(index, sampling_robot(), bag_name='old', first_numbers={}))


def test_a_sampled_row_never_has_a_message_of_its_future(tmp_path):
    generator = np.random.default_rng(3)
    bag = EdgeBag(tmp_path / 'bag')

    def jitter(step):
        bag.clock_ns += int(generator.integers(0, STEP_NS // 2))
        if generator.random() < 0.3:
            step.frames['front'] = None

    bag.episode('ignored', 80, change=jitter)
    index, plans = sampled(bag.close())
    rows = [row for plan in plans for row in plan.rows]
    assert len(rows) > 60
    for row in rows:
        for key in row.messages:
            times = index.topics[key.topic].received_ns
            assert times[key.number] <= row.received_ns
            # the newest of those
            later = times[key.number + 1 :]
            assert not later or later[0] > row.received_ns
    steps = np.diff([row.received_ns for row in plans[0].rows])
    assert (np.abs(steps - STEP_NS) <= 1).all()


def test_a_gap_divides_a_sampled_bag(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('ignored', 10)
    bag.clock_ns += 3 * 10**9
    bag.episode('ignored', 10)
    _, plans = sampled(bag.close())
    assert [plan.bag for plan in plans] == ['old', 'old']
    assert plans[0].episode_id < plans[1].episode_id
    assert plans[0].cut and not plans[1].cut
    assert all(plan.label is None for plan in plans)


def test_a_sampled_episode_is_the_same_behind_other_bags(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('ignored', 6)
    index, (alone,) = sampled(bag.close())
    first_numbers = dict.fromkeys(index.topics, 7)
    behind = plan_sampled(index, sampling_robot(), bag_name='old', first_numbers=first_numbers)
    assert [plan.digest for plan in behind] == [alone.digest]


def test_a_stamp_far_in_the_future_costs_no_time(tmp_path, monkeypatch):
    """Nearly three centuries behind the others, whose steps nothing could count."""
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('ignored', 6)
    bag.clock_ns = (1 << 63) - 10**9
    bag.episode('ignored', 6)
    looks = []
    newest = as_of._Received.newest

    def count(received, now_ns):
        looks.append(1)
        assert len(looks) < 1000
        return newest(received, now_ns)

    monkeypatch.setattr(as_of._Received, 'newest', count)
    _, plans = sampled(bag.close())
    assert len(plans) == 2
    assert len(plans[1].rows) >= 5


def test_a_sampled_bag_without_a_topic_is_refused_with_what_it_has(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.put('/arm/joint_trajectory_other', image(np.zeros((2, 2, 3), np.uint8)))
    with pytest.raises(DatasetError, match=r'joint_states.*joint_trajectory_other'):
        sampled(bag.close())


def test_a_sqlite_bag_can_be_sampled(tmp_path):
    bag = EdgeBag(tmp_path / 'bag')
    bag.episode('ignored', 10)
    file = write_sqlite(tmp_path / 'bag.db3', Bag(bag.close()).read())
    _, plans = sampled(file)
    assert len(plans) == 1 and len(plans[0].rows) >= 8


def test_the_topics_are_those_of_the_namespace_of_the_edge():
    robot = sampling_robot()
    assert robot.command_topic == '/arm/joint_trajectory'
    assert robot.inputs[0].topics == ('/arm/joint_states',)
    assert {topic for one in robot.inputs if one.camera for topic in one.topics} >= {
        '/arm/camera/front/image_raw',
        '/arm/camera/front/image_raw/compressed',
    }
