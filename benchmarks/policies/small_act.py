# SPDX-License-Identifier: Apache-2.0
"""A small ACT policy with random weights, for measurements without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.peer_process import JOINT_NAMES as JOINTS
from benchmarks.policies import random_lerobot

CAMERAS = ('observation.images.front',)
PIXELS = 96
IMAGES = dict.fromkeys(CAMERAS, (PIXELS, PIXELS))
CHUNK_ROWS = 50
FPS = 30.0
SETTINGS = {
    'chunk_size': CHUNK_ROWS,
    'n_action_steps': CHUNK_ROWS,
    'dim_model': 128,
    'n_heads': 4,
    'dim_feedforward': 512,
    'n_encoder_layers': 2,
    'n_decoder_layers': 1,
    'n_vae_encoder_layers': 1,
    'latent_dim': 16,
    'pretrained_backbone_weights': None,
}


def build(
    folder: Path,
    images: Mapping[str, tuple[int, int]] = IMAGES,
    settings: Mapping[str, object] = SETTINGS,
    seed: int = 0,
) -> Path:
    """Write an ACT to `folder` and return it. Raises PolicyError without LeRobot."""
    return random_lerobot.build_policy(
        'act', folder, images=images, joints=len(JOINTS), settings=settings, seed=seed
    )


def server_parameters(folder: Path) -> dict[str, object]:
    """Return the parameters of a policy_server that serves it."""
    names = '[' + ','.join(f"'{name}'" for name in JOINTS) + ']'
    return {
        'policy_kind': 'lerobot',
        'policy_path': folder,
        'state_names': names,
        'action_names': names,
        'trained_fps': FPS,
    }
