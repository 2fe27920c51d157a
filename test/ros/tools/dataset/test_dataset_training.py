# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own programs take the dataset: Rerun shows it, and an ACT is trained and served."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.tools.cli.main import main

pytest.importorskip('lerobot')
pytestmark = pytest.mark.release

# a program of LeRobot, where torchvision has no video reader
PROGRAM = """
import importlib
import sys
import av
import torch
from lerobot.datasets import lerobot_dataset


def decode(path, timestamps, tolerance_s, backend=None):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = {
            round(float(f.pts * stream.time_base), 3): f.to_ndarray(format='rgb24')
            for f in container.decode(stream)
        }
    times = sorted(frames)
    found = []
    for at_s in timestamps:
        nearest = min(times, key=lambda t: abs(t - at_s))
        assert abs(nearest - at_s) < 1e-3, (nearest, at_s)
        found.append(torch.from_numpy(frames[nearest]).permute(2, 0, 1).float() / 255)
    return torch.stack(found)


lerobot_dataset.decode_video_frames = decode
name = sys.argv.pop(1)
sys.exit(importlib.import_module(f'lerobot.scripts.{name}').main())
"""


def test_lerobot_trains_an_act_that_is_served(tmp_path):
    made = EdgeBag(tmp_path / 'bag', size=(64, 64))
    for number, y_m in enumerate((0.1, -0.1, 0.05)):
        made.episode(f'e{number}', 20, target_xy=(0.25, y_m))
    data, run = tmp_path / 'data', tmp_path / 'run'
    assert main(['dataset', str(made.close()), str(data), '--check']) == 0
    run_program('lerobot_dataset_viz', tmp_path, *view_options(data, tmp_path / 'rerun'))
    assert list((tmp_path / 'rerun').glob('*.rrd'))
    run_program('lerobot_train', tmp_path, *training_options(data, run))
    checkpoint = run / 'checkpoints/last/pretrained_model'
    assert (checkpoint / 'model.safetensors').is_file()
    chunk = predict(checkpoint)
    assert chunk.shape[1] == 6 and np.isfinite(chunk).all()


def view_options(data: Path, out: Path) -> list[str]:
    episode = ['--repo-id', 'local/data', '--root', str(data), '--episode-index', '1']
    return [*episode, '--save', '1', '--output-dir', str(out), '--num-workers', '0']


def training_options(data: Path, run: Path) -> list[str]:
    sizes = {
        'dim_model': 32,
        'n_heads': 2,
        'dim_feedforward': 32,
        'n_encoder_layers': 1,
        'n_vae_encoder_layers': 1,
        'latent_dim': 4,
        'chunk_size': 8,
        'n_action_steps': 8,
    }
    return [
        '--dataset.repo_id=local/data',
        f'--dataset.root={data}',
        '--policy.type=act',
        '--policy.device=cpu',
        '--policy.push_to_hub=false',
        '--policy.pretrained_backbone_weights=null',
        *(f'--policy.{name}={value}' for name, value in sizes.items()),
        f'--output_dir={run}',
        '--steps=3',
        '--save_freq=3',
        '--batch_size=4',
        '--num_workers=0',
        '--wandb.enable=false',
    ]


def run_program(name: str, folder: Path, *options: str) -> None:
    script = folder / 'program.py'
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), name, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]


def predict(checkpoint: Path) -> np.ndarray:
    """Return the actions of a chunk, as a policy server computes it."""
    from support.policies.lerobot_rig import requests_for

    from lerobot_serve.policies.base import LoadOptions
    from lerobot_serve.policies.lerobot.loader import load

    policy = load(LoadOptions(path=str(checkpoint), cpu_threads=1))
    described = policy.describe()
    # names and rate come from the dataset, by the checkpoint's train_config.json
    assert described.action_names[0] == 'shoulder_pan.pos'
    (chunk,) = policy.predict(requests_for(policy, 1))
    return np.asarray(chunk.robot)
