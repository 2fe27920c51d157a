# SPDX-License-Identifier: Apache-2.0
"""The node without a round: its folder, its parameters, what it hears and what it says."""

from __future__ import annotations

from msgspec.structs import replace
import pytest
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from support.learner.learner_node_rig import host, REACH
from support.nodes.service_asking import ask as ask_service

from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve_interfaces.msg import RecordedEpisode


def drops(rig) -> dict[str, int]:
    return {each.reason: each.count for each in rig.state.dropped} if rig.state else {}


def test_two_learners_on_one_folder_the_second_is_refused_with_the_holder(learner_rig):
    first = learner_rig.start()
    learner_rig.wait_for(Phase.WAITING)
    log = learner_rig.log
    second = learner_rig.start('second')
    assert second.wait(30) == 1
    assert f'is in use by /learner (process {first.pid} on {host()})' in (learner_rig.log)
    assert 'Traceback' not in learner_rig.log + log


def test_a_damaged_memory_is_refused_in_one_line(learner_rig):
    file = learner_rig.folder / 'learner' / 'learner.sqlite'
    file.parent.mkdir()
    file.write_bytes(b'SQLite format 3\0' + b'\xff' * 5000)
    assert learner_rig.start().wait(30) == 1
    assert 'is damaged' in learner_rig.log and 'Traceback' not in learner_rig.log


def test_announcements_are_counted_by_what_they_are(learner_rig):
    rig = learner_rig
    rig.start(episodes_per_round=100)
    (good,) = rig.record('a')
    rig.wait(lambda: rig.state and rig.state.episodes_new == 1, 'the episode is new')
    rig.announce(replace(good, path='/mnt/copy', host='robot'))
    rig.announce(replace(good, sha256='1' * 64))
    rig.announce(replace(good, sha256='2' * 64, episode_id='b', host='robot', path='/nowhere'))
    rig.announce(replace(good, sha256='3' * 64, episode_id='c', outcome=good.Outcome.FAILURE))
    rig.announce(replace(good, sha256='4' * 64, episode_id='d', path='relative'))
    rig._episodes.publish(RecordedEpisode(outcome=77))
    expected = {
        'double': 1,
        'other_bag': 1,
        'other_host': 1,
        'not_selected': 1,
        'malformed': 2,
    }
    rig.wait(lambda: drops(rig) == expected, f'{expected} are counted')
    assert rig.state.episodes == 3 and rig.state.episodes_new == 1
    assert 'mount that folder here under the same path' in rig.log


@pytest.mark.slow
def test_bags_in_a_folder_are_found_at_start(learner_rig):
    rig = learner_rig
    rig.record('a', 'b', is_announced=False)
    (rig.bags / 'not_a_bag').mkdir()
    rig.start(episodes_per_round=100, episode_folders=f'[{rig.bags}]')
    rig.wait(lambda: rig.state and rig.state.episodes_new == 2, 'both are found')
    assert drops(rig) == {'no_episode': 1}
    rig.wait(lambda: rig.state.parent.startswith('reach@'), 'the parent is read')


def test_live_parameters_are_applied_and_shown(learner_rig, node):
    rig = learner_rig
    rig.start(episodes_per_round=7)
    rig.wait(lambda: rig.state and rig.state.episodes_wanted == 7, '7 are wanted')
    client = node.create_client(SetParameters, '/learner/set_parameters')
    value = ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=9)
    request = SetParameters.Request(parameters=[Parameter(name='episodes_per_round', value=value)])
    assert ask_service(node, client, request).results[0].successful
    rig.wait(lambda: rig.state.episodes_wanted == 9, '9 are wanted')


@pytest.mark.slow
def test_a_round_without_episodes_ends_and_says_so(learner_rig):
    rig = learner_rig
    rig.start()
    rig.wait_for(Phase.WAITING)
    assert rig.call('start_round').success
    rig.wait(lambda: 'no round: there is no new episode' in rig.log, 'the search ends')
    assert rig.call('pause').success
    rig.wait_for(Phase.PAUSED)
    assert rig.call('resume').success
    rig.wait_for(Phase.WAITING)
    assert rig.state.round == 0


def test_a_parent_of_no_policy_is_said(learner_rig):
    rig = learner_rig
    (rig.folder / 'empty').mkdir()
    rig.start(parent=rig.folder / 'empty')
    rig.wait(lambda: 'cannot be used' in rig.log, 'the parent is refused')
    assert rig.state is None or rig.state.parent == ''
    assert REACH.is_dir()
