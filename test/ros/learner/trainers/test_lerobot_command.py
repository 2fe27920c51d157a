# SPDX-License-Identifier: Apache-2.0
"""
config/trainers/lerobot_act.yaml continues a tiny ACT, and the new one is served; torchrun.yaml and
accelerate.yaml do the same with two processes, here on the CPU. lerobot_smolvla.yaml continues a
SmolVLA with a language model of two layers and random weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
import threading

from msgspec import structs
import numpy as np
import pytest

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.learner.trainers.base import Progress, TrainingJob
from lerobot_serve.learner.trainers.command import CommandTrainer
from lerobot_serve.learner.trainers.contract import FIELDS
from lerobot_serve.learner.trainers.trainer_file import CommandOptions, read_trainer_file
from lerobot_serve.tools.cli.main import main

pytest.importorskip('lerobot')

from support.learner.trainer_rig import training_job
from support.paths import REPOSITORY
from support.policies import tiny_policies

from lerobot_serve.policies.base import LoadOptions

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]
STEPS = 3
SIZES = {'dim_model': 32, 'n_heads': 2, 'dim_feedforward': 32, 'n_encoder_layers': 1}
SIZES |= {'n_vae_encoder_layers': 1, 'latent_dim': 4, 'chunk_size': 8, 'n_action_steps': 8}


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('rounds')
    made = EdgeBag(folder / 'bag', size=(64, 64))
    for number, y_m in enumerate((0.1, -0.1)):
        made.episode(f'e{number}', 20, target_xy=(0.25, y_m))
    bag, out = str(made.close()), folder / 'data'
    assert main(['dataset', bag, str(out), '--vcodec', 'png']) == 0
    return out


SMALL = {
    '--save_freq': '3',
    '--log_freq': '1',
    '--batch_size': '4',
    '--num_workers': '0',
}
# of the file -> on the CPUs of this machine
ON_CPUS = {'--multi_gpu': '--cpu', '--mixed_precision=bf16': '--mixed_precision=no'}


def shipped(name: str = 'lerobot_act.yaml') -> CommandOptions:
    """Return a shipped file with fewer steps, each of which is logged, on the CPU."""
    options = read_trainer_file(REPOSITORY / 'config/trainers' / name)
    keys = [word.partition('=')[0] for word in options.command]
    assert set(SMALL) <= set(keys)
    words = [
        f'{key}={SMALL[key]}' if key in SMALL else ON_CPUS.get(word, word)
        for key, word in zip(keys, options.command, strict=True)
    ]
    environment = {**options.environment, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
    return structs.replace(options, command=tuple(words), steps=STEPS, environment=environment)


def from_nothing(options: CommandOptions) -> CommandOptions:
    """Return the same training of a new policy, which is the first parent."""
    words = [word for word in options.command if not word.startswith('--policy.path')]
    sizes = [f'--policy.{name}={value}' for name, value in SIZES.items()]
    kind = ['--policy.type=act', '--policy.device=cpu', *sizes]
    return structs.replace(options, command=(*words, *kind))


@pytest.fixture(scope='module')
def first_job(data, tmp_path_factory) -> TrainingJob:
    """The job of the next training, from a tiny ACT that was trained before."""
    folder = tmp_path_factory.mktemp('first')
    same = dict.fromkeys(FIELDS, 1)
    first = CommandTrainer(from_nothing(shipped()), read=lambda *_: same)
    job = training_job(folder, dataset=data, parent=data)
    parent = first.train(job, lambda _: None, threading.Event())
    return structs.replace(job, parent=parent)


@pytest.mark.parametrize('name', ['lerobot_act.yaml', 'torchrun.yaml', 'accelerate.yaml'])
def test_an_act_is_continued_and_served(first_job, data, tmp_path, name):
    reports: list[Progress] = []
    job = structs.replace(first_job, output=tmp_path / 'second', work=tmp_path / 'work')
    trainer = CommandTrainer(shipped(name))
    trainer.check(job.parent)
    folder = trainer.train(job, reports.append, threading.Event())
    check_ended(reports, tmp_path / 'work')
    before, after = ((path / 'model.safetensors').read_bytes() for path in (job.parent, folder))
    assert before != after and len(before) == len(after)
    # the version needs no dataset to know its names
    gone = data.rename(data.with_name('gone'))
    try:
        described, chunk = predict(folder)
    finally:
        gone.rename(data)
    assert described.action_names[0] == 'shoulder_pan.pos' and described.trained_fps == 30
    assert chunk.shape == (8, 6) and np.isfinite(chunk).all()
    config = json.loads((folder / 'config.json').read_text())
    assert config['pretrained_backbone_weights'] is None


def test_the_action_expert_of_a_smolvla_is_continued_and_served(data, tmp_path):
    from safetensors.numpy import load_file

    reports: list[Progress] = []
    first = tiny_policies.build('smolvla', tmp_path / 'first', height=64, width=64)
    job = training_job(tmp_path, dataset=data, parent=first)
    trainer = CommandTrainer(shipped('lerobot_smolvla.yaml'))
    trainer.check(job.parent)
    folder = trainer.train(job, reports.append, threading.Event())
    check_ended(reports, tmp_path / 'work')
    before, after = (load_file(path / 'model.safetensors') for path in (job.parent, folder))
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed and not [name for name in changed if '.vlm.' in name]
    described, chunk = predict(folder)
    assert described.policy_type == 'smolvla' and described.trained_fps == 30
    assert chunk.shape == (16, 6) and np.isfinite(chunk).all()


def check_ended(reports: list[Progress], work: Path) -> None:
    assert reports[-1].done_share == 1.0 and math.isfinite(reports[-1].loss)
    assert 'End of training' in (work / 'train.log').read_text()


def predict(checkpoint: Path):
    """Return the description and a chunk, as a policy server has them."""
    from support.policies.lerobot_rig import requests_for

    from lerobot_serve.policies.lerobot.loader import load

    policy = load(LoadOptions(path=str(checkpoint), cpu_threads=1))
    (prediction,) = policy.predict(requests_for(policy, 1))
    return policy.describe(), np.asarray(prediction.robot)
