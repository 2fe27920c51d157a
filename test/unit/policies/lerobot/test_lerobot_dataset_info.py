# SPDX-License-Identifier: Apache-2.0
"""Names and rate from the data set that a policy was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import (
    BYTES_LIMIT,
    DatasetInfo,
    feature_sizes,
    read_dataset_info,
    read_features,
    unspecified_options,
    with_dataset_defaults,
)

NAMES = ['pan.pos', 'lift.pos']
INFO = {
    'fps': 30,
    'features': {'observation.state': {'names': NAMES}, 'action': {'names': NAMES[::-1]}},
}
CONFIG = {
    'input_features': {'observation.state': {'type': 'STATE', 'shape': [2]}},
    'output_features': {'action': {'type': 'ACTION', 'shape': [2]}},
}


def write(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def policy(path: Path, **config: object) -> Checkpoint:
    return Checkpoint(path, 'act', CONFIG | config, (), ())


def test_a_copy_of_the_file_beside_the_weights_is_read(tmp_path):
    file = write(tmp_path / 'meta' / 'info.json', INFO)
    expected = DatasetInfo(tuple(NAMES), tuple(NAMES[::-1]), 30.0, str(file))
    assert read_dataset_info(tmp_path) == expected
    features = read_features(policy(tmp_path), LoadOptions(str(tmp_path)))
    assert features.state_names == tuple(NAMES)
    assert features.action_names == tuple(NAMES[::-1])
    assert features.trained_fps == 30.0


def test_the_data_set_that_the_training_names_is_found(tmp_path, monkeypatch):
    folder, home = tmp_path / 'policy', tmp_path / 'home'
    root = write(tmp_path / 'data' / 'meta' / 'info.json', INFO).parents[1]
    write(folder / 'train_config.json', {'dataset': {'repo_id': 'me/set', 'root': str(root)}})
    assert read_dataset_info(folder).trained_fps == 30.0
    write(folder / 'train_config.json', {'dataset': {'repo_id': 'me/set', 'root': None}})
    monkeypatch.setenv('HF_LEROBOT_HOME', str(home))
    assert read_dataset_info(folder) == DatasetInfo()
    write(home / 'me' / 'set' / 'meta' / 'info.json', INFO | {'fps': 50})
    assert read_dataset_info(folder).trained_fps == 50.0


def test_a_relative_data_set_is_found_from_where_the_training_ran(tmp_path):
    write(tmp_path / 'data' / 'set' / 'meta' / 'info.json', INFO)
    training = {'dataset': {'root': 'data/set'}, 'output_dir': 'out/act'}
    checkpoints = tmp_path / 'out' / 'act' / 'checkpoints'
    write(checkpoints / '001000' / 'pretrained_model' / 'train_config.json', training)
    (checkpoints / 'last').symlink_to('001000')
    for step in ('001000', 'last'):
        assert read_dataset_info(checkpoints / step / 'pretrained_model').trained_fps == 30.0
    # a copy that lies elsewhere, beside another data set of this name
    write(tmp_path / 'moved' / 'data' / 'set' / 'meta' / 'info.json', INFO)
    for place in ('moved/act/checkpoints/1/pretrained_model', 'out/act/1/pretrained_model', 'p'):
        write(tmp_path / place / 'train_config.json', training)
        assert read_dataset_info(tmp_path / place) == DatasetInfo(), place
    for output in ('', '/out/act', None, 7, '..'):
        write(tmp_path / 'p' / 'train_config.json', training | {'output_dir': output})
        assert read_dataset_info(tmp_path / 'p') == DatasetInfo(), output


@pytest.mark.parametrize(
    'dataset',
    [
        {'repo_id': '../../etc/passwd'},
        {'repo_id': '/etc'},
        {'repo_id': 7},
        {'root': 'relative'},
        {'root': 7},
        [],
        'x',
    ],
)
def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path, monkeypatch, dataset):
    monkeypatch.setenv('HF_LEROBOT_HOME', str(tmp_path / 'home'))
    write(tmp_path / 'train_config.json', {'dataset': dataset})
    assert read_dataset_info(tmp_path) == DatasetInfo()


@pytest.mark.parametrize(
    'content',
    ['', '[', '3', '[' * 100_000, {}, {'features': 3, 'fps': 'fast'}, 'x' * (BYTES_LIMIT + 1)],
)
def test_what_cannot_be_read_says_nothing(tmp_path, content):
    write(tmp_path / 'meta' / 'info.json', content)
    found = read_dataset_info(tmp_path)
    assert (found.state_names, found.action_names, found.trained_fps) == ((), (), 0.0)


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        ({'motors': NAMES}, tuple(NAMES)),
        ([[1]], ()),
        (['a', 'a'], ()),
        (['a', ''], ()),
        (['x' * 200], ()),
        (None, ()),
    ],
)
def test_names_are_a_list_or_a_group(tmp_path, names, expected):
    write(tmp_path / 'meta' / 'info.json', {'features': {'action': {'names': names}}})
    assert read_dataset_info(tmp_path).action_names == expected


def test_what_the_operator_says_wins_and_what_does_not_fit_is_left_out(tmp_path):
    write(tmp_path / 'meta' / 'info.json', INFO)
    loading = LoadOptions(str(tmp_path), state_names=('a', 'b'), trained_fps=10.0)
    whole = with_dataset_defaults(policy(tmp_path), loading)
    assert (whole.state_names, whole.trained_fps) == (('a', 'b'), 10.0)
    assert whole.action_names == tuple(NAMES[::-1])
    three = {'action': {'type': 'ACTION', 'shape': [3]}}
    assert (
        with_dataset_defaults(policy(tmp_path, output_features=three), loading).action_names == ()
    )


def test_all_that_is_missing_is_in_one_message(tmp_path):
    with pytest.raises(PolicyError) as refused:
        read_features(policy(tmp_path), LoadOptions(str(tmp_path)))
    for name in ('trained_fps', 'state_names', 'action_names'):
        assert f'{name} must be' in str(refused.value)


def test_what_is_lacking_is_known_before_anything_is_loaded(tmp_path):
    everything = ('state_names', 'action_names', 'trained_fps')
    assert unspecified_options(policy(tmp_path), LoadOptions()) == everything
    assert unspecified_options(policy(tmp_path), LoadOptions(trained_fps=30.0)) == everything[:2]
    held = policy(tmp_path, action_feature_names=['x', 'y'])
    assert unspecified_options(held, LoadOptions()) == ('state_names', 'trained_fps')
    assert feature_sizes(held) == (2, 2)
    write(tmp_path / 'meta' / 'info.json', INFO)
    assert unspecified_options(policy(tmp_path), LoadOptions()) == ()
