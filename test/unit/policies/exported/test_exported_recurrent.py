# SPDX-License-Identifier: Apache-2.0
"""Exported programs with a hidden state: as torch answers, for each session and each episode."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('onnxscript', reason='onnxscript is not installed')

from support.policies import recurrent_rig as rig  # noqa: E402

from lerobot_serve.contract.schema import StateClass  # noqa: E402
from lerobot_serve.policies.base import LoadOptions, PolicyError  # noqa: E402
from lerobot_serve.policies.exported.loader import load  # noqa: E402

TOLERANCE = 1e-5


@pytest.fixture(scope='module', params=['pt2', 'onnx'])
def lstm(request, tmp_path_factory):
    if request.param == 'onnx' and torch.__version__.startswith('2.11.'):
        pytest.skip('torch 2.11 exports an LSTM to ONNX that onnxruntime cannot read')
    folder = tmp_path_factory.mktemp('lstm')
    return rig.build(folder, rig.Lstm, onnx=request.param == 'onnx')


@pytest.fixture
def policy(lstm):
    return load(LoadOptions(lstm, state_limit=3))


def states(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, rig.JOINTS)).astype(np.float32)


def ask(policy, session, state, **others):
    return policy.predict([rig.request(session, state, **others)])[0]


@pytest.mark.slow
@pytest.mark.parametrize('onnx', [False, True])
def test_a_network_without_memory_answers_as_torch_does(tmp_path, onnx):
    policy = load(LoadOptions(rig.build(tmp_path, rig.Mlp, onnx=onnx)))
    assert policy.describe().state_class is StateClass.CHUNK_STATELESS
    for state in states(20):
        answer = ask(policy, 'a', state)
        np.testing.assert_allclose(answer.robot, rig.Torch(rig.Mlp)(state), atol=TOLERANCE)
        assert not answer.state_lost
        assert not answer.state_found


def test_it_says_that_it_remembers(policy):
    assert policy.describe().state_class is StateClass.RECURRENT


def test_an_episode_goes_as_with_torch(policy):
    torchs = rig.Torch(rig.Lstm)
    for number, state in enumerate(states(50)):
        answer = ask(policy, 'a', state, episode_start=number == 0)
        np.testing.assert_allclose(answer.robot, torchs(state), atol=TOLERANCE)
        assert answer.state_found is (number > 0)
        assert not answer.state_lost


def test_sessions_share_nothing_alone_and_together(policy):
    own = {name: rig.Torch(rig.Lstm) for name in 'abc'}
    for number, state in enumerate(states(30)):
        begins = number == 0
        asked = [
            rig.request(name, state * (i + 1), episode_start=begins) for i, name in enumerate(own)
        ]
        answers = (
            policy.predict(asked) if number % 2 else [policy.predict([one])[0] for one in asked]
        )
        for i, (name, answer) in enumerate(zip(own, answers, strict=True)):
            np.testing.assert_allclose(answer.robot, own[name](state * (i + 1)), atol=TOLERANCE)


@pytest.mark.parametrize('how', ['start', 'episode', 'reset'])
def test_an_episode_begins_with_nothing(policy, how):
    first = states(1)[0]
    expected = ask(policy, 'a', first, episode_start=True).robot
    for state in states(5, 1):
        ask(policy, 'a', state)
    if how == 'reset':
        policy.reset('a')
    others = {'episode_start': how == 'start', 'episode': int(how == 'episode')}
    answer = ask(policy, 'a', first, **others)
    np.testing.assert_allclose(answer.robot, expected, atol=TOLERANCE)
    assert answer.state_lost is (how == 'reset')


def test_the_oldest_session_is_forgotten_and_says_so(policy):
    for name in 'abcd':
        ask(policy, name, states(1)[0], episode_start=True)
    assert ask(policy, 'a', states(1)[0]).state_lost
    assert not ask(policy, 'd', states(1)[0]).state_lost


def test_a_prediction_that_fails_changes_no_session(policy):
    first, second = states(2)
    ask(policy, 'a', first, episode_start=True)
    with pytest.raises(PolicyError, match='state must be'):
        policy.predict([rig.request('a', second), rig.request('b', np.zeros(3, np.float32))])
    torchs = rig.Torch(rig.Lstm)
    torchs(first)
    np.testing.assert_allclose(ask(policy, 'a', second).robot, torchs(second), atol=TOLERANCE)


@pytest.mark.parametrize(
    ('given', 'said'),
    [
        ([[1, 8], [1, 9]], 'fails on|takes|cannot be run'),
        ([[1, 8]], 'fails on|takes|cannot be run'),
        ([], 'states must be a list of up to 16 shapes'),
        ([[0]], r'states\[0\]\[0\] must be'),
        ([[1 << 12, 1 << 12]], 'states must be'),
        ([[1]] * 17, 'states must be'),
        ('1x8', 'states must be'),
        ([[True]], r'states\[0\]\[0\] must be'),
    ],
)
def test_states_that_are_not_the_programs_are_refused(lstm, tmp_path, given, said):
    import shutil

    folder = tmp_path / 'policy'
    shutil.copytree(lstm, folder)
    sidecar = json.loads((folder / 'policy.json').read_text())
    (folder / 'policy.json').write_text(json.dumps({**sidecar, 'states': given}))
    with pytest.raises(PolicyError, match=said):
        load(LoadOptions(str(folder)))
