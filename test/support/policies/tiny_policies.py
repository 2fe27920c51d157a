# SPDX-License-Identifier: Apache-2.0
"""
LeRobot policies small enough for a test: random weights and statistics, no network, one seed.

Each is a directory as LeRobot itself writes it: configuration, weights and both processors.
LeRobot is imported when the first one is built. Runs in the test's own thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.policies import random_lerobot
from lerobot_serve.policies.lerobot.compat import lerobot

HEIGHT, WIDTH, CROP_MARGIN = 48, 64, 4
CAMERAS = {
    'act': ('front', 'wrist'),
    'diffusion': ('front', 'wrist'),
    'vqbet': ('front',),
    'tdmpc': ('image',),
    'smolvla': ('front', 'wrist'),
}
# resnet18 is the smallest backbone that LeRobot allows: 45 MB a file
SETTINGS = {
    'act': {
        'chunk_size': 16,
        'n_action_steps': 16,
        'dim_model': 32,
        'n_heads': 2,
        'dim_feedforward': 64,
        'n_encoder_layers': 1,
        'n_decoder_layers': 1,
        'n_vae_encoder_layers': 1,
        'latent_dim': 8,
        'pretrained_backbone_weights': None,
    },
    'diffusion': {
        'n_obs_steps': 2,
        'horizon': 8,
        'n_action_steps': 4,
        'down_dims': (16, 32),
        'n_groups': 4,
        'diffusion_step_embed_dim': 16,
        'spatial_softmax_num_keypoints': 4,
        'num_train_timesteps': 5,
        'pretrained_backbone_weights': None,
        'use_group_norm': True,
        'use_separate_rgb_encoder_per_camera': False,
    },
    'vqbet': {
        'n_obs_steps': 3,
        'n_action_pred_token': 3,
        'action_chunk_size': 4,
        'gpt_block_size': 64,
        'gpt_n_layer': 1,
        'gpt_n_head': 2,
        'gpt_hidden_dim': 32,
        'gpt_input_dim': 32,
        'gpt_output_dim': 32,
        'vqvae_embedding_dim': 16,
        'vqvae_enc_hidden_dim': 16,
        'vqvae_n_embed': 4,
        'spatial_softmax_num_keypoints': 4,
        'pretrained_backbone_weights': None,
        'use_group_norm': True,
    },
    'tdmpc': {
        'horizon': 5,
        'n_gaussian_samples': 16,
        'n_pi_samples': 4,
        'n_elites': 4,
        'cem_iterations': 2,
        'latent_dim': 16,
        'mlp_dim': 16,
        'q_ensemble_size': 2,
        'image_encoder_hidden_dim': 8,
        'state_encoder_hidden_dim': 16,
    },
    'smolvla': {
        'chunk_size': 16,
        'n_action_steps': 16,
        'max_state_dim': 8,
        'max_action_dim': 8,
        'num_steps': 2,
        'num_vlm_layers': 2,
        'expert_width_multiplier': 0.5,
        'tokenizer_max_length': 8,
        'resize_imgs_with_padding': (64, 64),
        'load_vlm_weights': False,
    },
}


def build(
    kind: str,
    folder: Path,
    *,
    seed: int = 0,
    cameras: tuple[str, ...] | None = None,
    height: int = HEIGHT,
    width: int = WIDTH,
    joints: int = 6,
    **config: Any,
) -> Path:
    """Write a policy of one kind into a folder and return that; `config` goes before ours."""
    settings = SETTINGS[kind] | config
    key = 'observation.images.{}'
    if kind == 'tdmpc':
        # its forward pass reads one square image, under the name without a camera
        height, key = width, 'observation.image'
    if kind in ('diffusion', 'vqbet'):
        settings.setdefault('crop_shape', (height - CROP_MARGIN, width - CROP_MARGIN))
    if kind == 'smolvla' and 'vlm_model_name' not in config:
        lerobot()
        from benchmarks.policies.smolvlm import build_vlm

        settings['vlm_model_name'] = str(build_vlm(folder / 'vlm'))
    names = CAMERAS[kind] if cameras is None else cameras
    images = {key.format(name): (height, width) for name in names}
    return random_lerobot.build_policy(
        kind, folder, images=images, joints=joints, settings=settings, seed=seed
    )


def cached(kind: str, root: Path) -> Path:
    """Return the policy of this kind below a folder that outlives a test, built on first use."""
    folder = root / kind
    return folder if (folder / 'policy_postprocessor.json').exists() else build(kind, folder)


def relative(folder: Path) -> Path:
    """
    Make the actions of a built policy relative to the state that it last saw, and return it.

    The two steps are those of `plugin/relative_steps.py`.
    """
    insert(folder / 'policy_preprocessor.json', 'to_batch_processor', 'test_relative_state')
    insert(folder / 'policy_postprocessor.json', 'unnormalizer_processor', 'test_relative_action')
    return folder


def insert(file: Path, behind: str, name: str, **config: Any) -> None:
    """Put a step of a pipeline behind another one."""
    pipeline = json.loads(file.read_text())
    names = [step['registry_name'] for step in pipeline['steps']]
    step = {'registry_name': name, 'config': config}
    pipeline['steps'].insert(names.index(behind) + 1, step)
    file.write_text(json.dumps(pipeline, indent=2))
