# SPDX-License-Identifier: Apache-2.0
"""Statistics of LeRobot's processors: there, of the right shape, finite, or refused."""

from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
safetensors_torch = pytest.importorskip('safetensors.torch', reason='(TORCH=none)')

from lerobot_serve.contract.services.action_range import ActionRange  # noqa: E402
from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (  # noqa: E402
    Checkpoint,
    ProcessorStepSpec,
)
from lerobot_serve.policies.lerobot.checkpoint.normalization_statistics import (  # noqa: E402
    action_range,
    check_statistics,
)

FRONT, STATE, ACTION = 'observation.images.front', 'observation.state', 'action'
SHAPES = {FRONT: (3, 48, 64), STATE: (2,), ACTION: (2,)}
TYPES = {FRONT: 'VISUAL', STATE: 'STATE', ACTION: 'ACTION'}
FEATURES = {key: {'type': TYPES[key], 'shape': list(shape)} for key, shape in SHAPES.items()}
BOTH = ('preprocessor', 'postprocessor')
NEEDED = {
    'MEAN_STD': ('mean', 'std'),
    'MIN_MAX': ('min', 'max'),
    'QUANTILES': ('q01', 'q99'),
    'QUANTILE10': ('q10', 'q90'),
}


@pytest.fixture
def checked(tmp_path):
    """Check the statistics of a policy whose every value is normalised in one mode."""

    def check(held, mode='MEAN_STD', *, only=None, allow=False, without_file=False):
        file = tmp_path / 'statistics.safetensors'
        safetensors_torch.save_file(held, file)
        config = {
            'features': FEATURES,
            'norm_map': dict.fromkeys(TYPES.values(), mode),
            'normalize_observation_keys': only,
        }
        step = ProcessorStepSpec('normalizer_processor', config, None if without_file else file)
        return check_statistics(Checkpoint(tmp_path, 'act', {}, (step,), (step,)), allow)

    return check


def statistics(mode='MEAN_STD'):
    low, high = NEEDED[mode]
    shapes = SHAPES | {FRONT: (3, 1, 1)}
    values = {}
    for key, shape in shapes.items():
        values |= {f'{key}.{low}': torch.zeros(shape), f'{key}.{high}': torch.ones(shape)}
    return values


@pytest.mark.parametrize('mode', NEEDED)
def test_whole_statistics_are_taken(checked, mode):
    assert checked(statistics(mode), mode) == ()


def test_a_value_that_is_not_normalised_needs_none(checked):
    assert checked({}, 'IDENTITY') == ()


@pytest.mark.parametrize('key', SHAPES)
def test_missing_statistics_are_refused_unless_allowed(checked, key):
    held = {name: value for name, value in statistics().items() if not name.startswith(key)}
    with pytest.raises(PolicyError, match=f'{key} has no statistics.*allow_missing_statistics'):
        checked(held)
    (note,) = checked(held, allow=True)
    assert key in note


def test_a_missing_file_of_statistics_is_like_an_empty_one(checked):
    with pytest.raises(PolicyError, match='has no statistics'):
        checked(statistics(), without_file=True)
    assert len(checked(statistics(), allow=True, without_file=True)) == len(SHAPES)


@pytest.mark.parametrize(
    ('mode', 'name'), [(mode, name) for mode, names in NEEDED.items() for name in names]
)
@pytest.mark.parametrize('key', SHAPES)
def test_half_of_the_statistics_are_refused_even_when_missing_ones_are_allowed(
    checked, mode, name, key
):
    held = statistics(mode)
    del held[f'{key}.{name}']
    with pytest.raises(PolicyError, match=f'{key} has no {name}, which the mode {mode} needs'):
        checked(held, mode, allow=True)


@pytest.mark.parametrize('value', [float('nan'), float('inf'), float('-inf')])
@pytest.mark.parametrize('key', SHAPES)
@pytest.mark.parametrize('name', ['mean', 'std'])
def test_values_must_be_finite(checked, key, name, value):
    held = statistics()
    held[f'{key}.{name}'].view(-1)[-1] = value
    with pytest.raises(PolicyError, match=f'{key}.{name} has values that are not finite'):
        checked(held, allow=True)


@pytest.mark.parametrize(
    ('key', 'shape'), [(STATE, (3,)), (STATE, (1,)), (STATE, (1, 2)), (ACTION, ()), (FRONT, (2,))]
)
def test_statistics_of_another_shape_are_refused(checked, key, shape):
    with pytest.raises(PolicyError, match=f'{key}.std has the shape .*of another policy'):
        checked(statistics() | {f'{key}.std': torch.ones(shape)})


@pytest.mark.parametrize('shape', [(3, 1, 1), (3, 48, 64), (1,), ()])
def test_statistics_of_a_camera_may_be_of_its_channels(checked, shape):
    assert checked(statistics() | {f'{FRONT}.std': torch.ones(shape)}) == ()


@pytest.mark.parametrize('mode', NEEDED)
def test_a_value_that_never_varied_is_noted(checked, mode):
    held = statistics(mode)
    held[f'{STATE}.{NEEDED[mode][1]}'].zero_()
    (note,) = checked(held, mode)
    assert STATE in note
    assert 'never varied' in note


def test_only_the_values_that_are_normalised_need_statistics(checked):
    held = {name: value for name, value in statistics().items() if not name.startswith(FRONT)}
    assert checked(held, only=[STATE]) == ()
    with pytest.raises(PolicyError, match=f'{FRONT} has no statistics'):
        checked(held, only=[STATE, FRONT])


def test_actions_need_none_before_and_observations_none_after(checked, tmp_path):
    held = statistics()
    before = {name: value for name, value in held.items() if not name.startswith(ACTION)}
    after = {name: value for name, value in held.items() if name.startswith(ACTION)}
    config = {'features': FEATURES, 'norm_map': dict.fromkeys(TYPES.values(), 'MEAN_STD')}
    steps = {}
    for place, values in zip(BOTH, (before, after), strict=True):
        file = tmp_path / f'{place}.safetensors'
        safetensors_torch.save_file(values, file)
        steps[place] = (ProcessorStepSpec(f'{place}_normalizer', config, file),)
    assert check_statistics(Checkpoint(Path(), 'act', {}, **steps), False) == ()


@pytest.mark.parametrize(
    ('name', 'key', 'place'),
    [
        ('groot_pack_inputs_v3', STATE, 'preprocessor'),
        ('groot_action_unpack_unnormalize_v1', ACTION, 'postprocessor'),
    ],
)
def test_groot_normalises_by_steps_of_its_own(tmp_path, name, key, place):
    def check(held, **config):
        file = tmp_path / 'groot.safetensors'
        safetensors_torch.save_file(held, file)
        steps = dict.fromkeys(BOTH, ()) | {place: (ProcessorStepSpec(name, config, file),)}
        return check_statistics(Checkpoint(tmp_path, 'groot', {}, **steps), False)

    values = {f'{key}.min': torch.zeros(2), f'{key}.max': torch.ones(2)}
    assert check(values) == ()
    assert check({}, normalize_min_max=False) == ()
    with pytest.raises(PolicyError, match=f'{name}: {key} has no statistics'):
        check({})


def test_a_damaged_file_is_named(tmp_path):
    file = tmp_path / 'damaged.safetensors'
    file.write_bytes(b'{}')
    step = ProcessorStepSpec('groot_pack_inputs_v3', {}, file)
    with pytest.raises(PolicyError, match=r'damaged\.safetensors is not a readable safetensors'):
        check_statistics(Checkpoint(tmp_path, 'groot', {}, (step,), ()), False)


@pytest.mark.parametrize(
    ('held', 'expected'),
    [
        ({'mean': [0.0, 1.0], 'std': [1.0, 2.0]}, ((-3.0, -5.0), (3.0, 7.0))),
        ({'q01': [0.0, 1.0], 'q99': [1.0, 2.0]}, ((0.0, 1.0), (1.0, 2.0))),
        # the ends say more than what nearly all of it lies between
        (
            {'mean': [0.0, 0.0], 'std': [9.0, 9.0], 'min': [-1.0, -2.0], 'max': [1.0, 2.0]},
            ((-1.0, -2.0), (1.0, 2.0)),
        ),
        ({'min': [-1.0, -2.0]}, None),
        ({'min': [1.0], 'max': [0.0]}, None),
        ({'min': [float('nan')], 'max': [0.0]}, None),
        ({'min': [[1.0]], 'max': [[2.0]]}, None),
        ({}, None),
    ],
)
def test_the_range_of_the_actions_is_found(tmp_path, held, expected):
    file = tmp_path / 'statistics.safetensors'
    tensors = {f'{ACTION}.{name}': torch.tensor(value) for name, value in held.items()}
    tensors[f'{STATE}.min'] = torch.tensor([-99.0, -99.0])
    safetensors_torch.save_file(tensors, file)
    step = ProcessorStepSpec('unnormalizer_processor', {}, file)
    found = action_range(Checkpoint(tmp_path, 'act', {}, (), (step,)))
    assert found == (ActionRange(*expected) if expected else None)
    assert action_range(Checkpoint(tmp_path, 'act', {}, (), ())) is None
