# SPDX-License-Identifier: Apache-2.0
"""config/trainers/lerobot_act.yaml continues a tiny ACT, and the new one is served."""

from __future__ import annotations

from dataclasses import replace
import json
import math
from pathlib import Path
import threading

import numpy as np
import pytest

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.learner.trainers.base import TrainingJob
from lerobot_serve.learner.trainers.command import CommandTrainer
from lerobot_serve.learner.trainers.contract import FIELDS
from lerobot_serve.learner.trainers.options import CommandOptions
from lerobot_serve.learner.trainers.trainer_file import read_trainer_file
from lerobot_serve.tools.cli.main import main

pytest.importorskip('lerobot')

from support.paths import REPOSITORY

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


def shipped() -> CommandOptions:
    """Return the shipped file with fewer steps, each of which is logged."""
    options = read_trainer_file(REPOSITORY / 'config/trainers/lerobot_act.yaml')
    small = {'--save_freq=500': '--save_freq=3', '--log_freq=50': '--log_freq=1'}
    small |= {'--batch_size=8': '--batch_size=4', '--num_workers=2': '--num_workers=0'}
    assert set(small) <= set(options.command)
    words = tuple(small.get(word, word) for word in options.command)
    return replace(options, command=words, steps=STEPS)


def from_nothing(options: CommandOptions) -> CommandOptions:
    """Return the same training of a new policy, which is the first parent."""
    words = [word for word in options.command if not word.startswith('--policy.path')]
    sizes = [f'--policy.{name}={value}' for name, value in SIZES.items()]
    kind = ['--policy.type=act', '--policy.device=cpu', *sizes]
    return replace(options, command=(*words, *kind))


def test_an_act_is_continued_and_served(data, tmp_path):
    same = dict.fromkeys(FIELDS, 1)
    first = CommandTrainer(from_nothing(shipped()), read=lambda *_: same)
    job = TrainingJob(
        dataset=data,
        parent=data,
        output=tmp_path / 'first',
        work=tmp_path / 'work0',
        new_episodes=frozenset({0, 1}),
        seed=3,
        budget_s=300.0,
    )
    stop, reports = threading.Event(), []
    parent = first.train(job, lambda _: None, stop)

    again = replace(job, parent=parent, output=tmp_path / 'second', work=tmp_path / 'work1')
    trainer = CommandTrainer(shipped())
    trainer.check(parent)
    folder = trainer.train(again, reports.append, stop)
    assert reports[-1].done_share == 1.0 and math.isfinite(reports[-1].loss)
    assert 'End of training' in (tmp_path / 'work1/train.log').read_text()
    before, after = ((path / 'model.safetensors').read_bytes() for path in (parent, folder))
    assert before != after and len(before) == len(after)
    # the version needs no dataset to know its names
    data.rename(data.with_name('gone'))
    described, chunk = predict(folder)
    assert described.action_names[0] == 'shoulder_pan.pos' and described.trained_fps == 30
    assert chunk.shape == (8, 6) and np.isfinite(chunk).all()
    config = json.loads((folder / 'config.json').read_text())
    assert config['pretrained_backbone_weights'] is None


def predict(checkpoint: Path):
    """Return the description and a chunk, as a policy server has them."""
    from support.policies.lerobot_rig import requests_for

    from lerobot_serve.policies.lerobot.loader import load

    policy = load(LoadOptions(path=str(checkpoint), cpu_threads=1))
    (prediction,) = policy.predict(requests_for(policy, 1))
    return policy.describe(), np.asarray(prediction.robot)
