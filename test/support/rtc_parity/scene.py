# SPDX-License-Identifier: Apache-2.0
"""A SmolVLA small enough for a thousand scripts, and what a robot sees. Needs LeRobot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.policies import random_lerobot
from lerobot_serve.policies.lerobot.compat import lerobot

JOINTS = tuple(f'joint_{number}.pos' for number in range(6))
CAMERA, HEIGHT, WIDTH = 'observation.images.front', 48, 64
CHUNK_ROWS = 16
TASK, ROBOT_TYPE, FPS = 'pick', 'bench', 30.0
SETTINGS = {
    'chunk_size': CHUNK_ROWS,
    'n_action_steps': CHUNK_ROWS,
    'max_state_dim': 8,
    'max_action_dim': 8,
    'num_steps': 3,
    'num_vlm_layers': 1,
    'expert_width_multiplier': 0.5,
    'tokenizer_max_length': 8,
    'resize_imgs_with_padding': (64, 64),
    'load_vlm_weights': False,
}


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedObservation:
    """What the robot sees at one request."""

    state: np.ndarray
    frame: np.ndarray


def scripted_observation(script: int, turn: int) -> ScriptedObservation:
    """Return another observation for each turn of each script, always the same."""
    random = np.random.default_rng([1, script, turn])
    state = random.uniform(-1, 1, len(JOINTS)).astype(np.float32)
    return ScriptedObservation(state, random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))


def build(folder: Path) -> Path:
    """Write the policy into a folder and return that. Raises PolicyError without LeRobot."""
    lerobot()
    from benchmarks.policies.smolvlm import build_vlm

    settings = SETTINGS | {'vlm_model_name': str(build_vlm(folder / 'vlm'))}
    images = {CAMERA: (HEIGHT, WIDTH)}
    return random_lerobot.build_policy(
        'smolvla', folder, images=images, joints=len(JOINTS), settings=settings
    )
