# SPDX-License-Identifier: Apache-2.0
"""Sessions share the network and nothing else: neither processors nor hidden state."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies import lerobot_rig as rig  # noqa: E402
from support.policies.lerobot_rig import add_step, copy_of, loaded, requests_for  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot.compat import lerobot  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402

lerobot()

from lerobot.processor import ProcessorStep, ProcessorStepRegistry, TransitionKey  # noqa: E402

REMEMBER, ADD = 'isolation_relative_state', 'isolation_absolute_action'
made = []


def trusting(folder, **said):
    return rig.trusting(folder, __name__, **said)


@ProcessorStepRegistry.register(REMEMBER)
@dataclass
class RememberState(ProcessorStep):
    """Remembers the last state, and adds up all of the episode."""

    last: torch.Tensor | None = None
    total: torch.Tensor | None = None
    seen: list = field(default_factory=list)

    def __post_init__(self):
        made.append(self)

    def __call__(self, transition):
        self.last = transition[TransitionKey.OBSERVATION]['observation.state']
        # in place: a copy that shares the sum would show
        self.total = torch.zeros_like(self.last) if self.total is None else self.total
        self.total += self.last
        self.seen.append(len(self.seen))
        return transition

    def transform_features(self, features):
        return features


@ProcessorStepRegistry.register(ADD)
class AddState(ProcessorStep):
    """Adds what the other remembered, so that actions are relative to it."""

    def __init__(self):
        self.memory = made[-1]

    def __call__(self, transition):
        action = transition[TransitionKey.ACTION]
        offset = self.memory.last + self.memory.total
        offset = offset.unsqueeze(1) if action.ndim == 3 else offset
        return transition | {TransitionKey.ACTION: action + offset + len(self.memory.seen)}

    def transform_features(self, features):
        return features


@pytest.fixture(scope='module')
def relative(tmp_path_factory):
    """The folder of an ACT policy with a processor that remembers."""
    folder = copy_of('act', tmp_path_factory.mktemp('isolation'))
    add_step(folder / 'policy_preprocessor.json', REMEMBER, 1)
    add_step(folder / 'policy_postprocessor.json', ADD, 2)
    # the state file of the normalizer keeps its name, whatever its place
    return folder


def rounds(policy, sessions, count):
    """Return requests of some sessions over an episode, all different and far apart."""
    return [
        [
            replace(each, episode_start=not turn, state=each.state * 10 ** (number % 4))
            for number, each in enumerate(requests_for(policy, sessions, seed=turn))
        ]
        for turn in range(count)
    ]


@pytest.mark.slow
def test_eight_interleaved_sessions_answer_as_eight_policies_with_one_each(relative):
    shared = load(trusting(relative))
    turns = rounds(shared, 8, 3)
    own = [load(trusting(relative)) for _ in turns[0]]
    for turn in turns:
        for policy, request in zip(own, turn, strict=True):
            together, single = shared.predict([request])[0], policy.predict([request])[0]
            assert together.robot.tobytes() == single.robot.tobytes()
            assert together.model.tobytes() == single.model.tobytes()
            # actions are relative to this session's states
            assert not np.allclose(single.robot, together.model)


def test_so_do_sessions_that_are_predicted_together(relative):
    shared, single = load(trusting(relative)), load(trusting(relative))
    for turn in rounds(shared, 5, 3):
        for request, answer in zip(turn, shared.predict(turn), strict=True):
            expected = single.predict([request])[0]
            np.testing.assert_allclose(answer.robot, expected.robot, rtol=1e-6, atol=1e-5)


def test_a_prediction_that_fails_changes_no_session(relative):
    policy, untouched = load(trusting(relative)), load(trusting(relative))
    first, second = rounds(policy, 2, 2)
    for each in (policy, untouched):
        each.predict(first)
    broken = replace(second[1], images={})
    with pytest.raises(PolicyError, match=r"camera 'observation.images.front' must have 1"):
        policy.predict([second[0], broken])
    for left, right in zip(policy.predict(second), untouched.predict(second), strict=True):
        assert left.robot.tobytes() == right.robot.tobytes()


@pytest.mark.parametrize('begin', ['start', 'episode', 'reset'])
def test_an_episode_begins_with_processors_that_have_seen_nothing(relative, begin):
    policy = load(trusting(relative))
    first, second = (turn[0] for turn in rounds(policy, 1, 2))
    fresh = policy.predict([replace(second, session_id='another', episode_start=True)])[0]
    policy.predict([first])
    if begin == 'start':
        second = replace(second, episode_start=True)
    elif begin == 'episode':
        second = replace(second, episode=1)
    else:
        policy.reset(second.session_id)
    again = policy.predict([second])[0]
    assert again.robot.tobytes() == fresh.robot.tobytes()
    assert again.state_lost == (begin == 'reset')


def test_the_oldest_session_is_forgotten_and_says_so(relative):
    policy = load(trusting(relative, state_limit=2))
    first, second = rounds(policy, 3, 2)
    for request in first:
        assert not policy.predict([request])[0].state_lost
    assert [policy.predict([request])[0].state_lost for request in second[::-1]] == [
        False,
        False,
        True,
    ]


def test_tdmpc_keeps_a_plan_for_each_session():
    shared = loaded('tdmpc')
    own = [loaded('tdmpc') for _ in range(3)]
    for turn in rounds(shared, 3, 3):
        for policy, request in zip(own, turn, strict=True):
            together, single = shared.predict([request])[0], policy.predict([request])[0]
            assert together.model.tobytes() == single.model.tobytes()
            assert not together.state_lost


def test_a_lost_plan_is_said_and_a_new_one_made():
    policy = loaded('tdmpc')
    request = requests_for(policy, 1)[0]
    anew = policy.predict([request])[0]
    policy.reset(request.session_id)
    lost = policy.predict([replace(request, episode_start=False)])[0]
    assert lost.state_lost
    np.testing.assert_array_equal(lost.model, anew.model)


def test_a_failed_plan_is_not_remembered(monkeypatch):
    policy, untouched = loaded('tdmpc'), loaded('tdmpc')
    first, second = (turn[0] for turn in rounds(policy, 1, 2))
    for each in (policy, untouched):
        each.predict([first])
    with monkeypatch.context() as patch:
        patch.setattr(policy.network.model, 'encode', lambda observations: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            policy.predict([second])
    left, right = policy.predict([second])[0], untouched.predict([second])[0]
    assert left.model.tobytes() == right.model.tobytes()


def test_a_failed_history_leaves_nothing_behind(monkeypatch):
    policy, untouched = loaded('diffusion'), loaded('diffusion')
    first, second = requests_for(policy, 2)
    with monkeypatch.context() as patch:
        patch.setattr(policy.network.diffusion, 'generate_actions', lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            policy.predict([first])
    assert not any(policy.network._queues.values())
    left, right = policy.predict([second])[0], untouched.predict([second])[0]
    assert left.model.tobytes() == right.model.tobytes()


@pytest.mark.parametrize('kind', ['act', 'diffusion', 'vqbet', 'tdmpc', 'smolvla'])
def test_the_shared_policy_is_never_reset(kind, monkeypatch):
    policy = loaded(kind)
    monkeypatch.setattr(policy.network, 'reset', lambda: pytest.fail('reset'))
    request = requests_for(policy, 1)[0]
    policy.predict([request])
    policy.reset(request.session_id)
    policy.predict([replace(request, episode=2)])


def test_copies_share_statistics_and_tokenizers():
    processors = loaded('smolvla').processors
    one, other = processors.new_pair(), processors.new_pair()
    for left, right in zip(one.pre.steps, other.pre.steps, strict=True):
        assert left is not right
        if hasattr(left, 'input_tokenizer'):
            assert left.input_tokenizer is right.input_tokenizer
        if hasattr(left, '_tensor_stats'):
            stats = left._tensor_stats['observation.state']['mean']
            assert stats is right._tensor_stats['observation.state']['mean']


def test_processors_do_not_hold_on_to_images():
    policy = loaded('smolvla')
    request = requests_for(policy, 1)[0]
    policy.predict([request])
    memory, _ = policy._states.take(request.session_id, request.episode, False)
    assert not any(getattr(step, '_current_transition', None) for step in memory.pair.pre.steps)


def test_rtc_is_off_when_actions_are_relative_to_the_state(tmp_path):
    folder = copy_of('smolvla', tmp_path)
    add_step(folder / 'policy_preprocessor.json', REMEMBER)
    policy = load(trusting(folder))
    assert not policy.describe().supports_rtc
    assert 'real-time chunking is off' in ' '.join(policy.describe().notes)
    request = requests_for(policy, 1)[0]
    plain = policy.predict([request])[0]
    told = replace(request, prefix_model=np.ones((5, 6), np.float32), inference_delay_steps=2)
    np.testing.assert_array_equal(policy.predict([told])[0].model, plain.model)
