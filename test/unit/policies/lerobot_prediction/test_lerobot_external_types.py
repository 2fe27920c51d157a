# SPDX-License-Identifier: Apache-2.0
"""Policies and processors that other packages bring: one session, or refused."""

from dataclasses import dataclass
import json

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from safetensors.torch import save_file  # noqa: E402
from support.policies import lerobot_rig as rig  # noqa: E402
from support.policies.lerobot_rig import (  # noqa: E402
    add_step,
    copy_of,
    folder_of,
    loading,
    requests_for,
)

from lerobot_serve.contract.schema import StateClass  # noqa: E402
from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot.compat import lerobot  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402

PARTS = lerobot()

from lerobot.processor import ProcessorStep, ProcessorStepRegistry, TransitionKey  # noqa: E402
from support.policies.lerobot_rig import Oracle  # noqa: E402
from support.policies.relative_rig import ACTION, reanchored, relative_folder, Steps  # noqa: E402

LAST_ROW = 'foreign_last_row'


def trusting(folder):
    return rig.trusting(folder, __name__)


@PARTS.config_class.register_subclass('foreign_counter')
@dataclass
class CounterConfig(PARTS.config_class):
    """As another package would register one; the class of its policy is found beside it."""

    rows: int = 3
    answers: str = 'chunk'

    observation_delta_indices = None
    action_delta_indices = None
    reward_delta_indices = None

    def get_optimizer_preset(self):
        return None

    def get_scheduler_preset(self):
        return None

    def validate_features(self):
        pass


class CounterPolicy(PARTS.policy_class):
    """Answers how often it was asked since its reset: state of its own, which nobody knows of."""

    config_class = CounterConfig
    name = 'foreign_counter'

    def __init__(self, config):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.reset()

    def reset(self):
        self.asked = 0

    def predict_action_chunk(self, batch):
        if self.config.answers == 'nothing':
            raise NotImplementedError('no chunks here')
        if self.config.answers == 'flat':
            return torch.zeros(1, 6)
        self.asked += 1
        return torch.full((1, self.config.rows, 6), float(self.asked)) + torch.randn(1) * 0

    def get_optim_params(self):
        return {}

    def forward(self, batch):
        return None, None

    def select_action(self, batch):
        return None


@ProcessorStepRegistry.register(LAST_ROW)
class LastRow(ProcessorStep):
    """Takes the last row of a chunk, as one of LeRobot's does: it wants rows one by one."""

    def __call__(self, transition):
        action = transition[TransitionKey.ACTION]
        return transition | {TransitionKey.ACTION: action[:, -1] if action.ndim == 3 else action}

    def transform_features(self, features):
        return features


@pytest.fixture
def foreign(tmp_path):
    """Write a foreign policy, with the processors of another."""

    def write(**config):
        folder = copy_of('act', tmp_path)
        described = json.loads((folder / 'config.json').read_text())
        features = {key: described[key] for key in ('input_features', 'output_features')}
        described = {'type': 'foreign_counter', 'device': 'cpu', **features, **config}
        (folder / 'config.json').write_text(json.dumps(described))
        save_file({'weight': torch.zeros(1)}, folder / 'model.safetensors')
        return folder

    return write


def test_it_serves_one_session(foreign):
    described = load(trusting(foreign())).describe()
    assert described.state_class is StateClass.EXCLUSIVE
    assert described.policy_type == 'foreign_counter'
    assert described.chunk_size == 3
    assert described.batch_limit == 1
    assert 'one session at a time' in ' '.join(described.notes)


def test_it_is_reset_when_an_episode_begins(foreign):
    policy = load(trusting(foreign()))
    first = requests_for(policy, 1)[0]
    onward = replace(first, episode_start=False)
    asked = [policy.predict([each])[0].model[0, 0] for each in (first, onward, onward)]
    assert asked == [1, 2, 3]
    assert policy.predict([replace(onward, episode=1)])[0].model[0, 0] == 1
    assert policy.predict([replace(first, episode=1)])[0].model[0, 0] == 1
    policy.reset(first.session_id)
    assert policy.predict([onward])[0].model[0, 0] == 1


def test_a_request_of_another_client_costs_an_episode_its_state(foreign):
    policy = load(trusting(foreign()))
    first = requests_for(policy, 1)[0]
    onward, goal = replace(first, episode_start=False), replace(first, session_id='a goal')
    asked = []
    for each in (first, onward, goal, onward, onward):
        (predicted,) = policy.predict([each])
        asked.append((predicted.model[0, 0], predicted.state_lost, predicted.state_found))
    assert asked == [
        (1, False, False),
        (2, False, True),
        (1, False, False),
        (1, True, False),
        (2, False, True),
    ]


def test_a_failed_prediction_costs_an_episode_its_state(foreign, monkeypatch):
    policy = load(trusting(foreign()))
    first = requests_for(policy, 1)[0]
    onward = replace(first, episode_start=False)
    policy.predict([first])
    with monkeypatch.context() as patch:
        patch.setattr(policy.network.config, 'answers', 'nothing')
        with pytest.raises(NotImplementedError):
            policy.predict([onward])
    (predicted,) = policy.predict([onward])
    assert (predicted.model[0, 0], predicted.state_lost) == (1, True)


@pytest.mark.parametrize(
    ('answers', 'said'),
    [
        ('nothing', 'a first prediction failed with NotImplementedError: no chunks here'),
        ('flat', r'returned (1, 6) for 1 requests, expected 1 x rows x 6 actions'),
    ],
)
def test_one_that_gives_no_chunks_is_refused(foreign, answers, said):
    with pytest.raises(PolicyError) as refusal:
        load(trusting(foreign(answers=answers)))
    assert said in str(refusal.value)


def test_one_without_a_chunk_method_is_refused(foreign, monkeypatch):
    monkeypatch.delattr(CounterPolicy, 'predict_action_chunk')
    with pytest.raises(PolicyError, match="type 'foreign_counter' predicts no chunks"):
        load(trusting(foreign()))


def test_one_that_needs_a_package_is_refused(foreign, monkeypatch):
    def missing(name):
        raise ImportError('no module named elsewhere')

    parts = replace(PARTS, get_policy_class=missing)
    monkeypatch.setattr('lerobot_serve.policies.lerobot.loader.lerobot', lambda: parts)
    with pytest.raises(PolicyError, match=r'no module named elsewhere.*lerobot\[foreign_counter'):
        load(trusting(foreign()))


def test_rows_are_processed_one_by_one_where_a_chunk_would_come_out_otherwise(tmp_path):
    folder = copy_of('act', tmp_path)
    plain = load(loading(folder))
    add_step(folder / 'policy_postprocessor.json', LAST_ROW)
    policy = load(trusting(folder))
    assert plain.processors.takes_whole_chunk
    assert not policy.processors.takes_whole_chunk
    request = requests_for(policy, 1)[0]
    expected = plain.predict([request])[0].robot
    np.testing.assert_array_equal(policy.predict([request])[0].robot, expected)


# relative actions with real-time chunking: a prefix is carried over to the present state


ROWS, DELAY, HORIZON = 9, 3, 8
EXCLUDED = ('joint_5',)


@Steps.register('test_doubled_action')
class Doubled(Steps.base):
    """Does to actions what the way in does not undo."""

    def __call__(self, transition):
        return transition | {ACTION: 2 * transition[ACTION]}

    def transform_features(self, features):
        return features


def prefixed(request, rows: np.ndarray, **changes):
    """Return a request with a prefix, whose rows in model space are of no use."""
    prefix = {'prefix_robot': rows, 'prefix_model': np.full_like(rows, 7.0)}
    return replace(
        request, inference_delay_steps=DELAY, execution_horizon=HORIZON, **(prefix | changes)
    )


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 6)).astype(np.float32)


@pytest.mark.parametrize('excluded', [(), EXCLUDED])
def test_a_prefix_guides_as_lerobots_loop_guides_with_it(excluded):
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    folder = relative_folder(exclude=excluded)
    policy, oracle = load(loading(folder)), Oracle(folder)
    assert policy.describe().supports_rtc
    oracle.policy.config.rtc_config = RTCConfig(enabled=True)
    oracle.policy.init_rtc_processor()
    for number, request in enumerate(requests_for(policy, 3)):
        rows = drawn(number)
        batch = oracle.batches(request)[-1]
        prefix = reanchored(oracle.pre, torch.from_numpy(rows), excluded).unsqueeze(0)
        torch.manual_seed(request.seed)
        with torch.no_grad():
            model = oracle.policy.predict_action_chunk(
                batch,
                inference_delay=DELAY,
                execution_horizon=HORIZON,
                prev_chunk_left_over=prefix,
            )[0]
            robot = oracle.post(model.unsqueeze(0))[0].numpy()
        guided = policy.predict([prefixed(request, rows)])[0]
        assert guided.model.tobytes() == model.numpy().tobytes()
        assert guided.robot.tobytes() == robot.tobytes()
        unguided = policy.predict([replace(request, session_id='another')])[0]
        assert not np.array_equal(guided.model, unguided.model)


def test_rows_in_model_space_do_not_guide_relative_actions():
    policy = load(loading(relative_folder()))
    request, rows = requests_for(policy, 1)[0], drawn(1)
    first, second = (
        policy.predict([prefixed(request, rows, prefix_model=np.full((ROWS, 6), value))])[0]
        for value in (0.0, 5.0)
    )
    assert first.model.tobytes() == second.model.tobytes()
    none = policy.predict([prefixed(request, rows[:0], prefix_model=rows)])[0]
    assert none.model.tobytes() == policy.predict([request])[0].model.tobytes()


@pytest.mark.parametrize('excluded', [(), EXCLUDED])
def test_what_is_left_stays_where_the_robot_would_have_gone(excluded):
    """The prefix of a second request, read as actions at its state, is that of the first."""
    policy = load(loading(relative_folder(exclude=excluded)))
    first, second = requests_for(policy, 2)
    chunk = policy.predict([first])[0]
    pair = policy._prepare(second).memory.pair
    prefix = pair.reanchorer.reanchor_prefix(torch.from_numpy(chunk.robot))
    again = pair.postprocess(prefix.unsqueeze(0), whole=True)[0].numpy()
    np.testing.assert_allclose(again, chunk.robot, atol=1e-5)
    assert not np.allclose(prefix.numpy(), chunk.model, atol=1e-2)


def test_eight_sessions_are_each_anchored_at_their_own_state():
    folder = relative_folder()
    shared, single = load(loading(folder)), load(loading(folder))
    for turn in range(2):
        asked = [
            prefixed(request, drawn(turn + number), episode_start=not turn)
            for number, request in enumerate(requests_for(shared, 8, seed=turn))
        ]
        for request in asked:
            alone = single.predict([replace(request, session_id='alone', episode_start=True)])[0]
            assert shared.predict([request])[0].model.tobytes() == alone.model.tobytes()


def test_steps_that_a_prefix_cannot_be_carried_through_turn_it_off():
    folder = relative_folder(after='test_doubled_action')
    policy = load(trusting(folder))
    described = policy.describe()
    assert not described.supports_rtc
    assert any('real-time chunking is off' in note for note in described.notes)
    request = requests_for(policy, 1)[0]
    guided = policy.predict([prefixed(request, drawn(1))])[0]
    assert guided.model.tobytes() == policy.predict([request])[0].model.tobytes()


def test_absolute_actions_are_guided_in_model_space_as_before():
    policy = load(loading(folder_of('smolvla')))
    request, rows = requests_for(policy, 1)[0], drawn(1)
    first, second = (
        policy.predict([prefixed(request, value * rows, prefix_model=rows)])[0] for value in (1, 2)
    )
    assert first.model.tobytes() == second.model.tobytes()
