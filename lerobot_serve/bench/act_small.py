"""
A small ACT policy with random weights, written as LeRobot itself writes one. For measurements.

Random weights cost as much as trained ones.
"""

from __future__ import annotations

from pathlib import Path

import torch

from lerobot_serve.policies.lerobot.compat import lerobot

JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
CAMERAS = ('observation.images.front',)
PIXELS = 96
CHUNK_ROWS = 50
FPS = 30.0
SIZES = {
    'dim_model': 128,
    'n_heads': 4,
    'dim_feedforward': 512,
    'n_encoder_layers': 2,
    'n_decoder_layers': 1,
    'n_vae_encoder_layers': 1,
    'latent_dim': 16,
    'pretrained_backbone_weights': None,
}


def build(folder: Path) -> Path:
    """Write the policy to `folder` and return it. Raises PolicyError without LeRobot."""
    lerobot()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )

    torch.manual_seed(1)
    joints = len(JOINTS)
    inputs = {n: PolicyFeature(FeatureType.VISUAL, (3, PIXELS, PIXELS)) for n in CAMERAS}
    inputs['observation.state'] = PolicyFeature(FeatureType.STATE, (joints,))
    config = make_policy_config(
        'act',
        input_features=inputs,
        output_features={'action': PolicyFeature(FeatureType.ACTION, (joints,))},
        device='cpu',
        push_to_hub=False,
        chunk_size=CHUNK_ROWS,
        n_action_steps=CHUNK_ROWS,
        **SIZES,
    )
    shapes = dict.fromkeys(CAMERAS, (3, 1, 1))
    shapes |= {'observation.state': (joints,), 'action': (joints,)}
    statistics = {
        name: {'mean': torch.zeros(shape), 'std': torch.ones(shape)}
        for name, shape in shapes.items()
    }
    before, after = make_pre_post_processors(config, dataset_stats=statistics)
    for part in (get_policy_class('act')(config), before, after):
        part.save_pretrained(folder)
    return folder


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
