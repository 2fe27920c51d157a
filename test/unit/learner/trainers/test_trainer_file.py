# SPDX-License-Identifier: Apache-2.0
"""
Trainer files: what they say, and how a mistake is named. Values of other types, missing and
unknown fields are in test/golden/refusals.
"""

from __future__ import annotations

from pathlib import Path
import re

import pytest
from support.paths import REPOSITORY

from lerobot_serve.files.parsing import from_yaml
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.trainer_file import (
    BuiltinOptions,
    CommandOptions,
    filled,
    PLACEHOLDERS,
    read_trainer_file,
    trainer_options,
)

FOLDER = REPOSITORY / 'config' / 'trainers'
FILES = sorted(path.name for path in FOLDER.iterdir())
SMALL = "command: [train, '{dataset}']\nresult: '{output}/policy'\n"


def refused(folder: Path, text: str) -> str:
    file = folder / 'my.yaml'
    file.write_text(text)
    with pytest.raises(TrainerError) as refusal:
        read_trainer_file(file)
    assert f'config/trainers; {file}: ' in str(refusal.value)
    assert '\n' not in str(refusal.value)
    return str(refusal.value)


def parsed(text: str) -> BuiltinOptions | CommandOptions:
    return trainer_options(from_yaml(text), 'my.yaml')


def test_the_shipped_files():
    assert FILES == [
        'accelerate.yaml',
        'builtin.yaml',
        'lerobot_act.yaml',
        'lerobot_smolvla.yaml',
        'torchrun.yaml',
    ]


@pytest.mark.parametrize('name', FILES)
def test_each_shipped_file_is_read(name):
    options = read_trainer_file(FOLDER / name)
    assert isinstance(options, BuiltinOptions if name == 'builtin.yaml' else CommandOptions)
    if isinstance(options, CommandOptions):
        assert options.steps >= 1000
        assert '--dataset.root={dataset}' in options.command
        assert '--policy.path={parent}' in options.command
        assert '--seed={seed}' in options.command
        # what the command would ask a network or a person for
        assert '--wandb.enable=false' in options.command
        assert '--policy.push_to_hub=false' in options.command


def test_the_shipped_file_of_the_built_in_trainer_has_its_defaults():
    assert read_trainer_file(FOLDER / 'builtin.yaml') == BuiltinOptions()
    assert parsed('builtin:') == BuiltinOptions()


def test_patterns_of_torchrun_are_the_defaults():
    options = read_trainer_file(FOLDER / 'torchrun.yaml')
    defaults = CommandOptions((), '')
    assert options.step_pattern == defaults.step_pattern
    assert options.loss_pattern == defaults.loss_pattern


def test_some_options_are_given():
    found = parsed('builtin: {steps: 5, learning_rate: 1.0e-2}')
    assert found == BuiltinOptions(steps=5, learning_rate=0.01)
    found = parsed(f"{SMALL}environment: {{A: '{{work}}'}}\nend_s: 2")
    assert found == CommandOptions(
        ('train', '{dataset}'), '{output}/policy', environment={'A': '{work}'}, end_s=2.0
    )


def test_placeholders_are_filled_once():
    values = dict.fromkeys(PLACEHOLDERS, 'x') | {'dataset': '{parent}'}
    assert filled('--a={dataset}/{seed} {"b": 1} {}', values) == '--a={parent}/x {"b": 1} {}'


@pytest.mark.parametrize(
    ('line', 'expected'),
    [
        ('environmant: {}', "unknown field 'environmant'; did you mean environment?"),
        ('builtin:', 'must have the key builtin'),
        ('steps: 0', 'steps must be a whole number from 1 to'),
        ('end_s: .inf', 'end_s must be a number from 0.1 to 3600, got inf'),
        ('end_s: .nan', 'end_s must be a number from 0.1 to 3600, got nan'),
        ("environment: {A-B: ''}", "the name 'A-B' must be that of a variable"),
        ("environment: {A: '{parrent}'}", 'unknown placeholder {parrent} in'),
        ("step_pattern: 'step (\\d+'", 'step_pattern must be a regular expression'),
        ('step_pattern: 3', 'step_pattern must be a regular expression'),
        ("loss_pattern: 'loss:'", 'with a group around the number, such'),
        ('steps: 1\nsteps: 2', "duplicate 'steps'"),
        ('- x', 'not YAML'),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, expected):
    assert expected in refused(tmp_path, f'{SMALL}{line}\n')


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ("command: [train]\nresult: '{parent}'", 'below {output} or {work}'),
        ("command: [train]\nresult: '{output}/../{parent}'", 'below {output} or {work}'),
        ("command: [train]\nresult: '/tmp/x'", 'below {output} or {work}'),
        (
            "command: [train, '--root={datset}']\nresult: '{output}'",
            "unknown placeholder {datset} in '--root={datset}'; did you mean {dataset}?",
        ),
        ("command: [train, '--n={steps}']\nresult: '{output}'", 'needs the key steps'),
        ("command: [train, '--n={zzzzzz}']\nresult: '{output}'", '{zzzzzz} in'),
        ('builtin: {stepps: 3}', "builtin: unknown field 'stepps'; did you mean steps?"),
        ('builtin: {steps: 3}\nresult: x', "unknown field 'result'; allowed are builtin"),
        ('builtin: {intervention_weight: 0.5}', 'from 1 to 1000, got 0.5'),
        ('builtin: {batch_size: 1}', 'batch_size must be a whole number from 2'),
        ('builtin: {steps: 100000, batch_size: 60000}', 'steps x batch_size must be at most'),
        ('', 'must have the key builtin (options'),
        ('[]', 'must have the key builtin (options'),
        ('a: {b', 'not YAML'),
        ('[' * 5000, 'not YAML'),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, expected):
    assert expected in refused(tmp_path, text)


def test_a_file_that_is_not_there_or_too_large(tmp_path):
    with pytest.raises(TrainerError, match=r'config/trainers; .*no.yaml: cannot be read \(No'):
        read_trainer_file(tmp_path / 'no.yaml')
    large = tmp_path / 'large.yaml'
    large.write_text('#' * (1 << 21))
    with pytest.raises(TrainerError, match='larger than 1024 KiB'):
        read_trainer_file(large)


def test_every_placeholder_is_in_the_page():
    page = (REPOSITORY / 'docs' / 'trainers.md').read_text()
    assert set(re.findall(r'^\| `\{(\w+)\}` \|', page, re.M)) == set(PLACEHOLDERS)
