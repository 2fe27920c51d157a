# SPDX-License-Identifier: Apache-2.0
"""What the demo is made of: its processes, what it saw, and what it says of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from support.paths import REPOSITORY

from lerobot_serve.demo import process_specs
from lerobot_serve.demo.arm_animation import arm_animation, ArmClip, ArmFrame, CLIP_S, FRAMES_HZ
from lerobot_serve.demo.audit_summary import audit_traces
from lerobot_serve.demo.report import html_report
from lerobot_serve.demo.scoreboard import (
    CanaryStatus,
    EndedEpisode,
    ReplicaStatus,
    RobotStatus,
    Scoreboard,
    ShadowStatus,
    SlotStatus,
)
from lerobot_serve.demo.screen import candidate_text, Screen
from lerobot_serve.demo.summary import as_text, summarize_run
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import parameter_specs
from lerobot_serve.policies.builtin.settings import read_settings
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters

POLICIES = REPOSITORY / 'config' / 'policies'
OF = {
    'policy_server': ServerParameters,
    'policy_router': RouterParameters,
    'edge_controller': EdgeParameters,
    'sim_robot': SimParameters,
}
FIGURES = {
    'serve': {'shown': True, 'robots': 3, 'robots_with_torch': [], 'first_action_s': 9.5},
    'shadow': {'shown': True, 'samples': 40, 'episodes': 6, 'divergence_rad': 0.0123},
    'kill': {
        'shown': True,
        'robots_stalled': 0,
        'longest_gap_ms': 41.0,
        'longest_pause_between_episodes_ms': 1071.4,
        'missed_after_s': 1.25,
        'at_s': 105.0,
    },
    'canary': {
        'shown': True,
        'ends': 'promoted',
        'took_s': 60.0,
        'steps': [{'share_percent': 5, 'after_s': 0.0}, {'share_percent': 100, 'after_s': 60.0}],
    },
    'broken': {
        'shown': False,
        'why': '<rolled back>',
        'episodes_with_v3': 2,
        'episodes_with_v3_a_second_later': 1,
        'commands_changed_by_the_cage': 71,
    },
}
SVG = 'http://www.w3.org/2000/svg'
PROOF = {'violations': 0, 'traces': 7, 'judged': 900, 'without_end': 1}


def parts() -> list[process_specs.ProcessSpec]:
    traces = Path('out/traces')
    servers = [
        process_specs.server_spec(name, 'v1', POLICIES, traces) for name in process_specs.SLOTS
    ]
    return [
        *servers,
        process_specs.router_spec(Path('out/state'), traces),
        *process_specs.robot_specs('robot_1', 0, traces),
    ]


@pytest.fixture
def board() -> Scoreboard:
    seen = Scoreboard(process_specs.robot_names(2))
    seen.slots = {
        'a': SlotStatus('HEALTHY', '', 'v1@1', 95, replicas={'/a1/s': ReplicaStatus('READY', 7)})
    }
    seen.slots['b'] = SlotStatus(
        'UNAVAILABLE',
        'it has gone',
        'v2@2',
        5,
        replicas={'/b1/s': ReplicaStatus('UNAVAILABLE', 9)},
    )
    seen.canary = CanaryStatus('undecided', 5, 0, 4, 'undecided', 'v2@2', 'v1@1')
    seen.shadow = ShadowStatus('v2@2', 'v1@1', 6, 40, 0.0123)
    seen.ended_episodes = [
        EndedEpisode(100.0 + i, 'robot_1', ('v1@1', 'v2@2')[i % 2], i % 4 != 0, 1.5)
        for i in range(40)
    ]
    seen.placements = [(100.0, 'v1@1'), (101.0, 'v2@2'), (105.0, 'v2@2')]
    seen.ages_ms, seen.shares = [100.0, 250.0], [(100.0, 0.0), (110.0, 5.0)]
    seen.round_trips_ms = {'v1@1': [(101.0, 9.0), (102.0, 11.0)], '': [(99.0, 0.0)]}
    seen.robots['robot_1'].drops = {'stale': 2}
    seen.robots['robot_2'].drops = {'stale': 1, 'late': 1}
    seen.add_event(103.0, 'a1 is killed <hard>', 'a1 killed')
    return seen


def test_every_parameter_exists_and_every_version_is_there():
    for part in parts():
        known = {spec.name for spec in parameter_specs(OF[part.executable])}
        assert set(part.parameters) <= known, part.name
    for folder in process_specs.VERSIONS.values():
        assert read_settings(POLICIES / folder / 'policy.json').chunk_size == 30


def test_the_weights_are_small():
    files = [POLICIES / folder / 'model.safetensors' for folder in process_specs.VERSIONS.values()]
    assert sum(file.stat().st_size for file in files) < 2_000_000


def test_no_two_processes_have_one_name():
    names = [(part.namespace, part.executable) for part in parts()]
    assert len(set(names)) == len(names)
    assert len({part.name for part in parts()}) == len(names)


@pytest.mark.parametrize(
    ('names', 'played'),
    [
        ([], ['serve']),
        (['kill'], ['serve', 'kill']),
        (['canary'], ['serve', 'shadow', 'canary']),
        (['broken'], ['serve', 'shadow', 'canary', 'broken']),
        (['broken', 'kill'], list(process_specs.PHASE_CLAIMS)),
    ],
)
def test_an_act_brings_those_that_it_needs(names, played):
    assert process_specs.ordered_phases(names) == played


def test_figures_of_the_board(board):
    assert board.successes() == {'v1@1': (10, 20), 'v2@2': (20, 20)}
    assert board.first_placed('v2') == 101.0
    assert board.first_placed('v2', after_s=101.0) == 105.0
    assert board.first_placed('v3') is None
    assert [board.placed_after('v2', time_s) for time_s in (0.0, 101.0, 105.0)] == [
        2,
        1,
        0,
    ]
    assert board.busiest('a') == '/a1/s'
    assert board.replica_state('b', '/b1/s') == 'UNAVAILABLE'
    assert board.replica_state('c', '/b1/s') == ''


def test_the_summary_is_ok_when_all_was_shown_and_proved(board):
    shown = {name: {**each, 'shown': True} for name, each in FIGURES.items()}
    assert summarize_run(board, shown, PROOF, {}, 60.0)['ok']
    assert not summarize_run(board, FIGURES, PROOF, {}, 60.0)['ok']
    assert not summarize_run(board, shown, {**PROOF, 'violations': 1}, {}, 60.0)['ok']
    assert not summarize_run(board, shown, {}, {}, 60.0)['ok']
    assert not summarize_run(board, shown, PROOF, {}, 60.0, 'the robots did not move')['ok']


def test_the_summary_reads_well(board):
    found = summarize_run(board, FIGURES, PROOF, {'router': 0}, 61.0, '')
    json.dumps(found)
    assert found['episodes'] == {
        'v1': {'ended': 20, 'successes': 10},
        'v2': {'ended': 20, 'successes': 20},
    }
    told = as_text(found).splitlines()
    assert told[0] == 'In 61 s:'
    assert told[1].startswith(
        '  ok     robots without weights execute chunks: 3 robots, no torch in'
    )
    assert told[2].endswith(
        '40 requests of 6 episodes compared, 0.012 rad from the executed actions'
    )
    assert told[3].endswith(
        '0 robots stalled; at most 41 ms between two actions, '
        '1071 ms between two episodes; marked unavailable after 1.2 s'
    )
    assert told[4].endswith('promoted after 60 s (5 % at 0 s, 100 % at 60 s)')
    assert told[5].startswith(
        '  FAILED v3 is rolled back automatically: <rolled back> (2 episodes'
    )
    assert '  ok     audit of 7 traces: 900 commands' in told[6]
    assert '  dropped by the robots: late 1, stale 3' in told
    assert '  STOPPED: no' in as_text({**found, 'error': 'no'}).splitlines()


def test_a_wait_between_two_episodes_is_none_within_one():
    robot = RobotStatus()
    for now_s, episode_id in ((5.0, 'a'), (5.1, 'a'), (6.6, 'b'), (6.9, 'b'), (7.0, 'b')):
        robot.add_action(now_s, episode_id, 0.5)
    assert (robot.max_action_gap_s, robot.max_episode_gap_s) == (
        pytest.approx(0.3),
        pytest.approx(1.5),
    )


def test_a_board_that_saw_nothing_has_a_summary_and_a_report():
    empty = Scoreboard(['robot_1'])
    found = summarize_run(empty, {}, {}, {}, 1.0, 'the robots move: not within 1 s')
    assert 'STOPPED: the robots move' in as_text(found)
    assert 'no data' in html_report(empty, found)


def test_the_report_has_the_pictures_and_escapes_what_it_tells(board):
    text = html_report(board, summarize_run(board, FIGURES, PROOF, {}, 61.0))
    assert text.count('<svg') == 4
    # in each of the three plots that have data
    assert text.count('>a1 killed</text>') == 3
    assert '00:01:43' in text
    assert 'class="mark"' in text
    assert '&lt;rolled back&gt;' in text
    assert 'killed &lt;hard&gt;' in text
    assert '<hard>' not in text
    assert 'http' not in text.replace('http-equiv', '').replace(SVG, '')


def test_a_robot_between_two_episodes_is_idle_and_one_that_ran_dry_is_stalled():
    robot = RobotStatus()
    seen = []
    # streams, its queue is cleared at the end of an episode, streams, runs dry
    for state, stalls in (('STREAMING', 0), ('STALLED', 0), ('STREAMING', 0), ('STALLED', 1)):
        robot.set_state(state, stalls)
        seen.append(robot.state)
    assert seen == ['STREAMING', 'IDLE', 'STREAMING', 'STALLED']
    robot.set_state('STALLED', 1)
    assert (robot.state, robot.stalls) == ('STALLED', 1)
    robot.set_state('STREAMING', 1)
    robot.set_state('STALLED', 1)
    assert robot.state == 'IDLE'


def test_a_rollback_is_said_once(board):
    board.canary = CanaryStatus(
        'rolled_back', 0, 0, 4, 'rolled back: too many trips', 'v3@3', 'v2@2'
    )
    told = candidate_text(board).plain
    assert 'canary v3: rolled back; too many trips' in told
    assert told.count('rolled back') == 1


def test_no_column_is_cut(board):
    board.canary = CanaryStatus(
        'rolled_back', 0, 0, 4, 'rolled back: ' + 'x' * 300, 'v3@3', 'v2@2'
    )
    picture = Screen(board, process_specs.PHASE_CLAIMS).picture()
    for head in ('slot', 'policy', 'new', 'success', 'servers', 'HEALTHY'):
        assert head in picture
    assert '\u2026' not in picture


def test_the_film_shows_each_version_and_says_who_drove_nothing():
    board = Scoreboard(['robot_1', 'robot_2'])
    for number in range(200):
        # the second robot has a gap, so its clip is shorter
        time_s = 100.0 + number * 0.05
        board.robots['robot_1'].policy = 'v1@1'
        board.add_arm_frame('robot_1', ArmFrame(time_s, 0.1 * number, 1.0, (0.2, 0.1)))
        if number < 40:
            board.robots['robot_2'].policy = 'v2@2'
            board.add_arm_frame('robot_2', ArmFrame(time_s, 0.2, 0.1, (0.3, 0.0)))
    frames = board.longest_clip('v1')
    assert 8.0 <= frames[-1].time_s - frames[0].time_s <= CLIP_S + 0.2
    assert len(frames) <= CLIP_S * FRAMES_HZ * 1.2
    picture = arm_animation(
        {version: board.longest_clip(version) for version in process_specs.VERSIONS}
    )
    parsed = ElementTree.fromstring(picture)
    assert len(parsed.findall(f'{{{SVG}}}g')) == 3
    assert picture.count('no robot controlled') == 1
    assert picture.count('<animateTransform') == 4
    for element in parsed.iter():
        if element.tag.endswith(('animate', 'animateTransform')):
            times = [float(each) for each in element.get('keyTimes').split(';')]
            assert (times[0], times[-1]) == (0, 1)
            assert times == sorted(times)
            assert len(times) == len(element.get('values').split(';'))


def test_a_clip_keeps_no_gap():
    clip = ArmClip()
    for time_s in (0.0, 0.1, 0.2, 5.0, 5.1, 5.15, 5.2):
        clip.add(ArmFrame(time_s, 0.0, 0.0, (0.2, 0.0)))
    assert [frame.time_s for frame in clip.frames] == [5.0, 5.1, 5.2]


def test_a_terminal_shows_all_of_it(board):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, height=50, color_system=None)
    with Screen(board, process_specs.PHASE_CLAIMS, console) as screen:
        screen.mark_phase('kill', '->')
    for text in (
        'robot_2',
        'undecided',
        'v2',
        '40 requests compared',
        'a1 is killed <hard>',
        '-> a server',
    ):
        assert text in shown.getvalue(), text


def test_the_view_is_a_picture_too(board):
    picture = Screen(board, process_specs.PHASE_CLAIMS).picture()
    assert picture.startswith('<svg')
    assert 'robot_2' in picture
    assert 'url(' not in picture.replace('url(#', '')


def test_where_there_is_no_terminal_lines_tell(board, capsys):
    console = Console(file=io.StringIO(), force_terminal=False)
    with Screen(board, process_specs.PHASE_CLAIMS, console) as screen:
        screen.mark_phase('kill', '->')
        board.add_event(104.0, 'a1 is back')
        screen.refresh()
    told = capsys.readouterr().out
    assert told.startswith(f'-> {process_specs.PHASE_CLAIMS["kill"]}\n')
    assert told.count('a1 is killed') == told.count('a1 is back') == 1
    assert 'v1 10/20, v2 20/20; slot b 5 %, canary undecided' in told


def test_without_traces_nothing_is_proved(tmp_path):
    assert audit_traces(tmp_path / 'none') == {}
    (tmp_path / 'some').mkdir()
    (tmp_path / 'some' / 'torn.jsonl').write_text('{"kind":')
    found = audit_traces(tmp_path / 'some')
    assert found.get('violations') is None or found['outcome'] != 'holds'
