# SPDX-License-Identifier: Apache-2.0
"""Each option in config/trainers is one that LeRobot, accelerate and torchrun themselves read."""

from __future__ import annotations

import pytest
from support.paths import REPOSITORY

from lerobot_serve.learner.trainers.trainer_file import filled, PLACEHOLDERS, read_trainer_file

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow
MODULE, PROGRAM = 'lerobot.scripts.lerobot_train', 'lerobot-train'
FILES = ('accelerate.yaml', 'lerobot_act.yaml', 'lerobot_smolvla.yaml', 'torchrun.yaml')


def words_of(name: str) -> list[str]:
    values = dict.fromkeys(PLACEHOLDERS, '/folder') | {'seed': '3', 'steps': '2000'}
    options = read_trainer_file(REPOSITORY / 'config' / 'trainers' / name)
    return [filled(word, values) for word in options.command]


def options_of_lerobot(name: str) -> list[str]:
    words = words_of(name)
    return words[words.index(MODULE if MODULE in words else PROGRAM) + 1 :]


@pytest.fixture(scope='module')
def draccus():
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()
    return pytest.importorskip('draccus')


@pytest.mark.parametrize('name', FILES)
def test_lerobot_reads_each_option(draccus, name):
    from lerobot.configs import parser
    from lerobot.configs.train import TrainPipelineConfig

    words = options_of_lerobot(name)
    config = draccus.parse(
        TrainPipelineConfig, None, args=parser.filter_path_args('policy', words)
    )
    assert (config.steps, config.seed) == (2000, 3)
    assert str(config.output_dir) == config.dataset.root == '/folder'
    assert config.wandb.enable is False and config.save_freq <= config.steps
    assert parser.get_path_arg('policy', words) == '/folder'


@pytest.mark.parametrize('name', FILES)
def test_the_policy_reads_each_of_its_options(draccus, name):
    from lerobot.configs import parser
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig

    kind = SmolVLAConfig if 'smolvla' in name else ACTConfig
    given = parser.get_cli_overrides('policy', options_of_lerobot(name))
    config = draccus.parse(kind, None, args=given)
    assert config.push_to_hub is False
    if name == 'lerobot_act.yaml':
        assert config.pretrained_backbone_weights is None
    with pytest.raises(SystemExit):
        draccus.parse(kind, None, args=[*given, '--optimiser_lr=1'])


def test_torchrun_reads_its_options():
    from torch.distributed.run import get_args_parser

    read = get_args_parser().parse_args(words_of('torchrun.yaml')[1:])
    assert read.standalone and read.module and read.nproc_per_node == '2'
    assert read.training_script == MODULE
    assert read.training_script_args == options_of_lerobot('torchrun.yaml')


def test_accelerate_reads_its_options():
    from accelerate.commands.launch import launch_command_parser

    program, verb, *words = words_of('accelerate.yaml')
    assert (program, verb) == ('accelerate', 'launch')
    read = launch_command_parser().parse_args(words)
    assert read.multi_gpu and read.module and read.num_processes == 2
    assert read.training_script == MODULE
    assert read.training_script_args == options_of_lerobot('accelerate.yaml')
