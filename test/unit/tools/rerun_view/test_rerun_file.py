# SPDX-License-Identifier: Apache-2.0
"""What `lerobot-serve rerun` writes is what the bag has: read back with Rerun's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rerun as rr
from support.tools.bag_rig import begin, write, write_sqlite
from support.tools.recorder_rig import ROBOT_FILE, text
from support.tools.rerun_rig import BEGIN_NS, CLOCK_AHEAD_NS, JOINTS, ROBOT, Scene, STEP_NS
from support.tools.rrd_file import RrdFile

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.types import Time
from lerobot_serve.tools.bags.message import (
    BagError,
    BagMessage,
    COMPRESSED_TYPE,
    CompressedImage,
    RAW_TYPE,
    RawImage,
    TEXT_TYPE,
)
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.rerun_view import message_view
from lerobot_serve.tools.rerun_view.destinations import open_sink
from lerobot_serve.tools.rerun_view.entries import path_part
from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping
from lerobot_serve.tools.rerun_view.message_view import MessageView, show_bag

AT = ('robots', ROBOT)
PIXELS = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)
STEPS = 50


def frame(name: str = 'front', codec: Codec = Codec.JPEG, pixels: np.ndarray = PIXELS) -> Image:
    return image_codec.encode(name, pixels, codec)


def episode() -> Scene:
    """A robot that plays a chunk of 50 rows."""
    scene = Scene()
    scene.session()
    scene.state()
    scene.observe(1, [0.1, 0.2], (frame(), frame('wrist', Codec.RAW)), task='reach')
    rows = np.random.default_rng(7).normal(size=(STEPS, 2)).astype(np.float32)
    scene.reply(1, rows)
    for row in range(STEPS):
        cage = 'clamped' if 20 <= row < 25 else 'pass'
        scene.execute(rows[row].tolist(), [0.5 * rows[row, 0], 1.0], seq=1, row=row, cage=cage)
    scene.outcome('ep', 'success')
    return scene


@pytest.fixture(params=['mcap', 'sqlite'])
def bag(request, tmp_path) -> Path:
    """The episode in both storages of rosbag2."""
    if request.param == 'mcap':
        return write(tmp_path / 'bag', episode().messages, every=7)
    return write_sqlite(tmp_path / 'bag.db3', episode().messages)


def saved(bag: Path, *options: str) -> RrdFile:
    file = bag.parent / 'view.rrd'
    assert main(['rerun', str(bag), '--save', str(file), *options]) == 0
    return RrdFile(file)


def test_joints_have_the_values_and_times_of_the_bag(bag, capsys):
    found = saved(bag)
    executed = [m for m in episode().messages if m.type.endswith('ExecutedAction')]
    rows = np.random.default_rng(7).normal(size=(STEPS, 2)).astype(np.float32)
    for column, joint in enumerate(JOINTS):
        wanted = found.at(*AT, 'joints', joint, 'wanted')
        assert len(wanted) == len(executed) == STEPS
        # float32 of the wire, exactly
        assert found.values(*AT, 'joints', joint, 'wanted') == rows[:, column].tolist()
        assert [row.times for row in wanted] == [
            {
                'time': message.stamp_ns,
                f'clock of {ROBOT}': message.stamp_ns + CLOCK_AHEAD_NS,
                'control_step': step,
            }
            for step, message in enumerate(executed, 1)
        ]
        *plan, end = found.values(*AT, 'joints', joint, 'plan', '0')
        assert plan == rows[:, column].tolist()
        assert np.isnan(end)
    halves = (0.5 * rows[:, 0]).astype(np.float32)
    assert found.values(*AT, 'joints', JOINTS[0], 'commanded') == halves.tolist()
    assert found.values(*AT, 'joints', JOINTS[1], 'measured') == [np.float32(0.2)]
    assert found.timelines == {'time', f'clock of {ROBOT}', 'control_step'}
    assert found.application == 'lerobot_serve'
    messages = len(episode().messages)
    assert f'{messages} of {messages} messages shown; end of the bag' in capsys.readouterr().out


def test_states_events_and_queue_are_in_the_file(bag):
    found = saved(bag)
    assert found.values(*AT, 'states', 'cage') == ['pass', 'clamped', 'pass']
    assert [row.times['control_step'] for row in found.at(*AT, 'states', 'cage')] == [1, 21, 26]
    texts = [row.components['TextLog:text'][0] for row in found.at(*AT, 'events')]
    levels = [row.components['TextLog:level'][0] for row in found.at(*AT, 'events')]
    assert {*zip(texts, levels, strict=True)} >= {
        ('task: reach', 'INFO'),
        ('policy reach@1 in slot prod', 'INFO'),
        ('cage: clamped', 'WARN'),
        ('episode ep: success after 1.5 s', 'INFO'),
    }
    assert found.values(*AT, 'queue', 'remaining_s') == [0.5]
    assert found.values(*AT, 'request', 'inference_ms') == [12.5]


def test_frames_are_those_of_the_request(bag):
    found = saved(bag)
    (row,) = found.at(*AT, 'cameras', 'front')
    blob = row.components['EncodedImage:blob'][0]
    assert bytes(blob) == bytes(frame().data)
    assert row.components['EncodedImage:media_type'] == ['image/jpeg']
    (row,) = found.at(*AT, 'cameras', 'wrist')
    assert bytes(row.components['Image:buffer'][0]) == PIXELS.tobytes()
    assert (row.times['time'], 'control_step' in row.times) == (BEGIN_NS + 3 * STEP_NS, False)


def test_the_view_has_each_camera_and_joint(bag):
    found = saved(bag)
    paths = [(*AT, 'cameras', name) for name in ('front', 'wrist')]
    paths += [(*AT, 'joints', joint) for joint in JOINTS]
    paths += [(*AT, 'states'), (*AT, 'events'), (*AT, 'request'), (*AT, 'queue')]
    assert found.origins() == {rr.new_entity_path(list(path)) for path in paths}
    style = found.static[rr.new_entity_path([*AT, 'joints', JOINTS[0], 'wanted'])][0]
    assert style.components['SeriesLines:names'] == ['wanted by the policy']


def test_plots_of_nodes_are_of_each_node(tmp_path):
    scene = Scene()
    scene.router({'a': ('old@1', 'healthy', 75), 'b': ('new@2', 'healthy', 25)})
    found = saved(write(tmp_path / 'bag', scene.messages))
    path = ('nodes', 'policy_router', 'share_percent', 'slot_b')
    assert found.values(*path) == [25.0]
    # a view takes no pattern within a path: it was empty
    assert '/nodes/policy_router/share_percent/**' in found.contents()
    assert not [each for each in found.contents() if '*' in each.removesuffix('/**')]


def test_depth_and_grey_frames_are_shown(tmp_path):
    depth = np.arange(80, dtype=np.uint16).reshape(8, 10, 1) * 100
    grey = np.arange(80, dtype=np.uint8).reshape(8, 10, 1)
    scene = Scene()
    images = (
        frame('depth', Codec.RAW, depth),
        frame('grey', Codec.RAW, grey),
        frame('jpeg', Codec.JPEG, grey),
        frame('deep', Codec.RAW, np.repeat(depth, 3, 2)),
    )
    scene.observe(1, [0.1], images)
    found = saved(write(tmp_path / 'bag', scene.messages))
    (depth,) = found.at(*AT, 'cameras', 'depth')
    pixels = np.frombuffer(bytes(depth.components['DepthImage:buffer'][0]), np.uint16)
    assert pixels.tolist() == (np.arange(80) * 100).tolist()
    assert depth.components['DepthImage:meter'] == [1000.0]
    for name, kind in (('grey', 'Image'), ('jpeg', 'EncodedImage'), ('deep', 'Image')):
        (row,) = found.at(*AT, 'cameras', name)
        assert any(component.startswith(f'{kind}:') for component in row.components)


def test_each_recorded_image_is_shown_at_the_robot_whose_file_names_its_topic(tmp_path):
    scene, edge = Scene(), f'/{ROBOT}/edge_controller'
    scene.state()
    scene.tell(f'{edge}/robot_file', TEXT_TYPE, text(ROBOT_FILE))
    grey, depth = PIXELS[:, :, :1], np.full((8, 10, 1), 0.5, np.float32)
    times = [
        scene.tell(topic, RAW_TYPE, encode(raw_image(pixels, encoding))).stamp_ns
        for topic, pixels, encoding in (
            ('/cam/image', PIXELS, 'bgr8'),
            ('/cam/image', grey, 'mono8'),
            ('/other/depth', depth, '32FC1'),
            ('/cam/image', PIXELS, 'yuv422'),
        )
    ]
    jpeg = CompressedImage(data=frame().data)
    scene.tell('/cam/image/compressed', COMPRESSED_TYPE, encode(jpeg))
    bag = write(tmp_path / 'bag', scene.messages)
    found = saved(bag)
    color, mono = found.at(*AT, 'cameras', '/cam/image')
    assert bytes(color.components['Image:buffer'][0]) == PIXELS[:, :, ::-1].tobytes()
    assert bytes(mono.components['Image:buffer'][0]) == grey.tobytes()
    assert [color.times['time'], mono.times['time']] == times[:2]
    (row,) = found.at('images', '/other/depth')
    assert row.components['DepthImage:meter'] == [1.0]
    (row,) = found.at('images', '/cam/image/compressed')
    assert bytes(row.components['EncodedImage:blob'][0]) == bytes(frame().data)
    assert rr.new_entity_path(['images', '/other/depth']) in found.origins()
    mapping = MessageMapping('robot_8')
    shown = [entry.path[0] for message in scene.messages for entry in mapping.add(message)]
    assert shown == ['images', 'images']


def raw_image(pixels: np.ndarray, encoding: str) -> RawImage:
    height, width, _ = pixels.shape
    step = pixels.nbytes // height
    return RawImage(Time(), 'c', height, width, encoding, 0, step, pixels.tobytes())


HOSTILE = [
    *('../../etc/passwd', 'a/b', '/', '//', ' ', 'tab\there', 'ü 机器人 🤖', '__properties', '**'),
    *('$origin', '- x', 'x' * 128, '"quoted" \\ back', '\u202egnp', ''),
]


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_names_are_entities_of_their_own(tmp_path, name):
    scene = Scene(robot=name)
    scene.session((name, 'gripper'))
    scene.observe(1, [1.0, 2.0], (frame(name), frame('front')))
    scene.execute([0.25, 0.5])
    other = Scene()
    other.execute([3.0])
    found = saved(write(tmp_path / 'bag', [*scene.messages, *other.messages]))
    part = path_part(name)
    at = ('robots', part)
    assert found.values(*at, 'joints', part, 'wanted') == [0.25]
    assert found.values(*at, 'joints', 'gripper', 'wanted') == [0.5]
    assert len(found.at(*at, 'cameras', part)) == len(found.at(*at, 'cameras', 'front')) == 1
    assert found.values(*AT, 'joints', 'action_0', 'wanted') == [3.0]
    assert rr.new_entity_path([*at, 'cameras', part]) in found.origins()
    assert f'clock of {part}' in found.timelines
    # nothing but the two robots, and what Rerun adds by itself
    roots = {path.split('/')[1] for path in found.rows}
    assert roots <= {'robots', '__properties'}


def test_one_robot_of_a_bag(tmp_path, capsys):
    other = Scene('robot_8')
    other.execute([3.0])
    bag = write(tmp_path / 'bag', [*episode().messages, *other.messages])
    found = saved(bag, '--robot', 'robot_8')
    assert found.values('robots', 'robot_8', 'joints', 'action_0', 'wanted') == [3.0]
    assert not [path for path in found.rows if ROBOT in path]
    assert f'1 of {len(episode().messages) + 1} messages shown' in capsys.readouterr().out


def test_an_unknown_robot_leaves_no_file(tmp_path, capsys):
    bag = write(tmp_path / 'bag', episode().messages)
    file = tmp_path / 'view.rrd'
    assert main(['rerun', str(bag), '--robot', 'robot_77', '--save', str(file)]) == 1
    assert "'robot_77'; did you mean robot_7? found: robot_7" in capsys.readouterr().err
    assert not file.exists()


def test_a_cut_bag_is_shown_up_to_its_damage(tmp_path, capsys):
    writer = begin(tmp_path / 'bag', episode().messages)
    writer.abort()
    whole = writer.path.read_bytes()
    writer.path.write_bytes(whole[: len(whole) * 2 // 3])
    found = saved(tmp_path / 'bag')
    shown = found.values(*AT, 'joints', JOINTS[0], 'wanted')
    rows = np.random.default_rng(7).normal(size=(STEPS, 2)).astype(np.float32)
    assert 5 < len(shown) < STEPS
    assert shown == rows[: len(shown), 0].tolist()
    assert 'ends or is damaged at byte' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('name', 'said'), [('missing', 'does not exist'), ('x.mcap', 'is not an MCAP file')]
)
def test_what_is_no_bag_is_one_sentence(tmp_path, capsys, name, said):
    file = tmp_path / 'view.rrd'
    (tmp_path / 'x.mcap').write_bytes(b'no mcap at all')
    assert main(['rerun', str(tmp_path / name), '--save', str(file)]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count('\n') == 1
    assert not file.exists()


def test_an_interrupted_view_of_a_bag_is_a_whole_file(tmp_path):
    """`is_stopped` is asked after each message; a signal in a process: test/ros/tools."""
    bag = Bag(write(tmp_path / 'bag', episode().messages))
    file = tmp_path / 'view.rrd'
    mapping = MessageMapping()
    sink = open_sink('bag', save=file, viewer='', window_s=0.0, is_live=False)
    asked = iter([False] * 30 + [True])
    assert not show_bag(bag, MessageView(mapping, sink), lambda: next(asked))
    assert len(RrdFile(file).at(*AT, 'joints', JOINTS[0], 'wanted')) == 26


def test_a_bag_that_breaks_in_the_middle_leaves_what_was_read(tmp_path):
    class BrokenBag(Bag):
        def read(self):
            yield from list(super().read())[:30]
            raise BagError('the disk is gone')

    bag = BrokenBag(write(tmp_path / 'bag', episode().messages))
    file = tmp_path / 'view.rrd'
    sink = open_sink('bag', save=file, viewer='', window_s=0.0, is_live=False)
    with pytest.raises(BagError):
        show_bag(bag, MessageView(MessageMapping(), sink), lambda: False)
    assert RrdFile(file).at(*AT, 'states', 'connection')


def test_a_long_bag_is_flushed_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(message_view, 'FLUSH_BYTES', 1000)
    flushed = []

    class CountingSink:
        destination = 'nowhere'

        def show(self, entries, layout) -> None:
            pass

        def flush(self, layout) -> None:
            flushed.append(layout.version)

        def close(self, layout) -> None:
            pass

        def abort(self) -> None:
            pass

    bag = Bag(write(tmp_path / 'bag', episode().messages))
    view = MessageView(MessageMapping(), CountingSink())
    assert show_bag(bag, view, lambda: False)
    data_bytes = sum(len(message.data) for message in episode().messages)
    assert 5 < len(flushed) <= data_bytes / 1000


def test_nothing_shown_is_a_file_without_entities(tmp_path, capsys):
    text = BagMessage('/a', 'std_msgs/msg/String', BEGIN_NS, bytes(8))
    found = saved(write(tmp_path / 'bag', [text, text]))
    assert not [path for path in found.rows if path.startswith('/robots')]
    told = capsys.readouterr().out
    assert '0 of 2 messages shown' in told
    assert '2  not shown: messages of type std_msgs/msg/String' in told
