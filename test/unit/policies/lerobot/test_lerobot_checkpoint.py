# SPDX-License-Identifier: Apache-2.0
"""LeRobot directories that are refused before anything is loaded; neither torch nor LeRobot."""

import json
import os

import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyCamera, PolicyError
from lerobot_serve.policies.files.assets import Asset
from lerobot_serve.policies.lerobot.checkpoint.asset_rules import check_asset, DEPTH_LIMIT
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import policy_id, read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import read_features, unspecified_options

NORMALIZER_FILE = 'policy_preprocessor_step_0_normalizer_processor.safetensors'
FRONT = 'observation.images.front'
CONFIG = {
    'type': 'act',
    'input_features': {
        FRONT: {'type': 'VISUAL', 'shape': [3, 48, 64]},
        'observation.state': {'type': 'STATE', 'shape': [2]},
    },
    'output_features': {'action': {'type': 'ACTION', 'shape': [2]}},
}
PREPROCESSOR = {
    'steps': [
        {'registry_name': 'normalizer_processor', 'config': {}, 'state_file': NORMALIZER_FILE}
    ]
}
POSTPROCESSOR = {'steps': [{'registry_name': 'device_processor', 'config': {'device': 'cpu'}}]}
NAMES = ('shoulder.pos', 'elbow.pos')
SAID = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0}


@pytest.fixture
def folder(tmp_path):
    """A directory with all that is looked at before weights are read."""
    path = tmp_path / 'act_so101'
    path.mkdir()
    write(path, 'config.json', CONFIG)
    write(path, 'policy_preprocessor.json', PREPROCESSOR)
    write(path, 'policy_postprocessor.json', POSTPROCESSOR)
    for name in ('model.safetensors', NORMALIZER_FILE):
        (path / name).write_bytes(name.encode())
    return path


def write(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def features_of(folder, **said):
    return read_features(
        read_checkpoint(str(folder)), LoadOptions(path=str(folder), **(SAID | said))
    )


def test_a_directory_is_read(folder):
    held = read_checkpoint(str(folder))
    assert held.policy_type == 'act'
    assert [step.registry_name for step in held.preprocessor] == ['normalizer_processor']
    assert {file.name for file in held.files} == {file.name for file in folder.iterdir()}


@pytest.mark.parametrize(
    'name',
    [
        'config.json',
        'model.safetensors',
        'policy_preprocessor.json',
        'policy_postprocessor.json',
        NORMALIZER_FILE,
    ],
)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    remedy = r'.*migrate_policy_normalization\.py' if 'processor.json' in name else ''
    with pytest.raises(PolicyError, match=f'{name} is missing{remedy}'):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    'name', ['config.json', 'policy_preprocessor.json', 'policy_postprocessor.json']
)
@pytest.mark.parametrize('text', ['', '{', '\x00', '[' * 100_000, '[]', '3', 'null'])
def test_a_damaged_file_is_named(folder, name, text):
    write(folder, name, text)
    with pytest.raises(PolicyError, match=f'{name} (is not readable JSON|must hold a JSON obj)'):
        read_checkpoint(str(folder))


def test_a_file_of_another_encoding_is_named(folder):
    (folder / 'config.json').write_bytes(b'\xff\xfe{}')
    with pytest.raises(PolicyError, match='is not readable JSON'):
        read_checkpoint(str(folder))


def step(**entries):
    return {'steps': [{'registry_name': 'device_processor', 'config': {}} | entries]}


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        ({}, "must hold a list of 'steps'"),
        ({'steps': {}}, "must hold a list of 'steps'"),
        ({'steps': [3]}, 'step 0 must be a JSON object'),
        ({'steps': [{'class': 'os.system'}]}, "names a class to import, 'os.system'; code is not"),
        (step(**{'class': 'os.system'}), 'step 0 names a class to import'),
        ({'steps': [{}]}, "step 0 has no 'registry_name'"),
        (step(registry_name=3), "step 0 has no 'registry_name'"),
        (step(registry_name=''), "step 0 has no 'registry_name'"),
        (step(config=[]), "'config' must be a JSON object"),
        (step(state_file=3), 'names the state file 3'),
        (step(state_file='../up.safetensors'), 'named without a path'),
        (step(state_file='/etc/passwd'), 'named without a path'),
        (step(state_file='sub/file'), 'named without a path'),
        (step(state_file='..'), 'named without a path'),
        (step(state_file=''), 'named without a path'),
        (step(state_file='gone.safetensors'), r'gone\.safetensors is missing'),
    ],
)
@pytest.mark.parametrize('name', ['policy_preprocessor.json', 'policy_postprocessor.json'])
def test_a_processor_that_must_not_be_loaded(folder, name, content, said):
    write(folder, name, content)
    with pytest.raises(PolicyError, match=said) as refused:
        read_checkpoint(str(folder))
    assert name in str(refused.value)
    assert '\n' not in str(refused.value)


def test_a_step_that_is_switched_off(folder):
    steps = [{'registry_name': 'a', 'config': {'enabled': on}} for on in (False, True)]
    write(folder, 'policy_preprocessor.json', {'steps': [*steps, {'registry_name': 'b'}]})
    held = read_checkpoint(str(folder), ('a_package',))
    assert [each.active for each in held.preprocessor] == [False, True, True]


ADAPTER = r'is a PEFT adapter.*merge it'


@pytest.mark.parametrize(
    ('file', 'content', 'said'),
    [
        ('adapter_config.json', {}, ADAPTER),
        ('config.json', CONFIG | {'use_peft': True}, ADAPTER),
        *(('config.json', CONFIG | {'type': each}, "has no 'type'") for each in (None, 3, {})),
    ],
)
def test_adapters_and_configs_without_a_type_are_refused(folder, file, content, said):
    write(folder, file, content)
    with pytest.raises(PolicyError, match=said):
        read_checkpoint(str(folder))


@pytest.mark.parametrize('policy_type', ['xvla', 'pi0_fast'])
@pytest.mark.parametrize('trusted', [(), ('a_package',)])
def test_a_type_that_is_not_served_is_refused_by_its_config_alone(folder, policy_type, trusted):
    for file in folder.iterdir():
        file.unlink()
    write(folder, 'config.json', {'type': policy_type, 'chunk_size': 'unknown'})
    with pytest.raises(PolicyError, match=f'{policy_type!r} cannot be served: '):
        read_checkpoint(str(folder), trusted)


@pytest.mark.parametrize('nested', [lambda value: [value], lambda value: {'a': value}])
def test_a_tokenizer_file_is_nested_no_deeper_than_the_limit(tmp_path, nested):
    value: object = 1
    for _ in range(DEPTH_LIMIT):
        value = nested(value)
    write(tmp_path, 'tokenizer_config.json', value)
    check_asset(Asset('words', tmp_path))
    write(tmp_path, 'tokenizer_config.json', nested(value))
    with pytest.raises(PolicyError, match=f'nested deeper than {DEPTH_LIMIT}'):
        check_asset(Asset('words', tmp_path))


def test_a_name_on_the_hub_is_not_a_directory():
    with pytest.raises(PolicyError, match='hf download lerobot/act_aloha --local-dir act_aloha'):
        read_checkpoint('lerobot/act_aloha')


@pytest.mark.parametrize('path', ['', '/nowhere', 'gone', '../gone/away'])
def test_a_path_that_is_no_directory(path):
    with pytest.raises(PolicyError, match=r'is its directory; .* is not a directory'):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ('path', 'name'),
    [
        ('act_so101', 'act_so101'),
        ('runs/act_so101/', 'act_so101'),
        ('act_so101/checkpoints/020000/pretrained_model', 'act_so101-020000'),
        ('act_so101/020000/pretrained_model', '020000'),
        ('my policy, take 2', 'my-policy-take-2'),
        ('a' * 100, 'a' * 64),
        ('日本', 'policy'),
    ],
)
def test_a_policy_is_called_as_its_directory(tmp_path, path, name):
    assert policy_id(LoadOptions(path=str(tmp_path / path))) == name


def test_the_last_checkpoint_is_called_by_its_number(tmp_path):
    (tmp_path / 'run' / 'checkpoints' / '0100' / 'pretrained_model').mkdir(parents=True)
    last = tmp_path / 'run' / 'checkpoints' / 'last'
    os.symlink('0100', last)
    assert policy_id(LoadOptions(path=str(last / 'pretrained_model'))) == 'run-0100'


def test_the_operator_names_a_policy():
    assert policy_id(LoadOptions(path='/some/where', name='left arm')) == 'left-arm'


def test_features_are_read(folder):
    features = features_of(folder)
    assert features.state_names == features.action_names == NAMES
    assert features.cameras == (PolicyCamera(FRONT, 48, 64, 3),)
    assert features.trained_fps == 30.0


@pytest.mark.parametrize('fps', [0.0, -1.0, float('nan'), float('inf')])
def test_the_rate_must_be_given(folder, fps):
    with pytest.raises(PolicyError, match='trained_fps must be set and above 0'):
        features_of(folder, trained_fps=fps)


@pytest.mark.parametrize('names', [(), ('one',), ('a', 'b', 'c'), ('same', 'same'), ('a', '')])
@pytest.mark.parametrize('parameter', ['state_names', 'action_names'])
def test_names_must_be_given(folder, parameter, names):
    with pytest.raises(PolicyError, match=f'{parameter} must be 2 different names.*info.json'):
        features_of(folder, **{parameter: names})


def test_names_that_the_policy_holds_are_used(folder):
    write(folder, 'config.json', CONFIG | {'action_feature_names': ['x', 'y']})
    assert features_of(folder, action_names=()).action_names == ('x', 'y')
    assert features_of(folder, action_names=('x', 'y')).action_names == ('x', 'y')
    with pytest.raises(PolicyError, match=r"but the policy was trained with \['x', 'y'\]"):
        features_of(folder, action_names=('y', 'x'))


def test_names_of_a_state_are_asked_for_where_there_is_one(folder):
    options = LoadOptions(path=str(folder), trained_fps=30.0, action_names=NAMES)
    assert unspecified_options(read_checkpoint(str(folder)), options) == ('state_names',)
    without = {k: v for k, v in CONFIG['input_features'].items() if k != 'observation.state'}
    write(folder, 'config.json', CONFIG | {'input_features': without})
    assert unspecified_options(read_checkpoint(str(folder)), options) == ()


def test_a_policy_without_a_state_has_no_state_names(folder):
    inputs = {FRONT: CONFIG['input_features'][FRONT]}
    write(folder, 'config.json', CONFIG | {'input_features': inputs})
    assert features_of(folder, state_names=()).state_names == ()
    with pytest.raises(PolicyError, match='state_names must be 0'):
        features_of(folder)


def test_cameras_that_the_network_fills_in_are_not_asked_for(folder):
    empty = {'observation.images.empty_camera_0': {'type': 'VISUAL', 'shape': [3, 480, 640]}}
    config = CONFIG | {'type': 'pi0', 'input_features': CONFIG['input_features'] | empty}
    for count, names in ((1, [FRONT]), (0, [FRONT, *empty])):
        write(folder, 'config.json', config | {'empty_cameras': count})
        assert [camera.name for camera in features_of(folder).cameras] == names


@pytest.mark.parametrize(
    ('place', 'key', 'feature', 'said'),
    [
        ('input', 'observation.environment_state', ('ENV', [3]), 'observations do not carry'),
        ('input', 'observation.velocity', ('STATE', [3]), 'observations do not carry'),
        ('input', 'observation.state', ('ENV', [2]), 'observations do not carry'),
        ('input', 'observation.state', ('STATE', [2, 2]), 'must be a list of values'),
        ('input', FRONT, ('VISUAL', [48, 64]), 'must be channels x height x width'),
        ('input', FRONT, ('VISUAL', [3, 0, 64]), "must have a 'type' and a 'shape'"),
        ('input', FRONT, ('VISUAL', 3), "must have a 'type' and a 'shape'"),
        ('input', FRONT, (3, [3, 48, 64]), "must have a 'type' and a 'shape'"),
        ('output', 'next.reward', ('REWARD', [1]), 'observations do not carry'),
        ('output', 'action', ('ACTION', []), 'must be a list of values'),
    ],
)
def test_features_that_are_not_served(folder, place, key, feature, said):
    name = f'{place}_features'
    entry = dict(zip(('type', 'shape'), feature, strict=True))
    write(folder, 'config.json', CONFIG | {name: CONFIG[name] | {key: entry}})
    with pytest.raises(PolicyError, match=said) as refused:
        features_of(folder)
    assert key in str(refused.value)


@pytest.mark.parametrize('name', ['input_features', 'output_features'])
@pytest.mark.parametrize('value', [None, {}, []])
def test_a_config_without_features_is_refused(folder, name, value):
    write(folder, 'config.json', CONFIG | {name: value})
    with pytest.raises(PolicyError, match=f'has no {name}'):
        features_of(folder)
