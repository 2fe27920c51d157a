# SPDX-License-Identifier: Apache-2.0
"""
The allowed settings of config.json of a LeRobot policy, by policy type, with their ranges.

A size determines the memory and the computing time of the network, so each has a limit far above
that of known policies. LeRobot itself refuses unknown settings. Plain data, any thread.
"""

from __future__ import annotations

from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint.value_rules import (
    check_keys,
    COUNT,
    DEVICE,
    FieldRule,
    FLAG,
    FRACTION,
    integer_range,
    is_text,
    LAYERS,
    list_of,
    NAME,
    NAMES,
    NORMALIZATION,
    NUMBER,
    number_range,
    one_of,
    optional,
    Rules,
    SIZE,
    TEXT,
    WIDTH,
)

ANY_VALUE = FieldRule('anything', lambda value: True)
STEPS = integer_range(1, 1000)
PAIR = optional(list_of(SIZE, 2))
PRECISION = one_of('float32', 'bfloat16')
SAMPLES = integer_range(1, 1 << 14)
BACKBONE = one_of(*(f'resnet{depth}' for depth in (18, 34, 50, 101, 152)))
GEMMA = one_of('gemma_300m', 'gemma_2b')
COMPILE_MODE = one_of('default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs')
# of these, those that capture CUDA graphs
CUDA_GRAPH_MODES = ('reduce-overhead', 'max-autotune')
ACTIVATION = one_of('relu', 'gelu', 'glu')
# names of the RTC modes, as LeRobot spells them
GUIDED, TRAINED = 'guided', 'trained'
RTC_RULES: Rules = {
    'enabled': FLAG,
    'mode': one_of(GUIDED, TRAINED),
    'prefix_attention_schedule': one_of('ZEROS', 'ONES', 'LINEAR', 'EXP'),
    'max_guidance_weight': number_range(0, 1e6),
    'execution_horizon': COUNT,
    'debug': FLAG,
    'debug_maxlen': NUMBER,
}
RTC = FieldRule(
    'null or an object of RTC settings',
    lambda value: (
        value is None
        or (
            isinstance(value, dict)
            and all(
                name in RTC_RULES and RTC_RULES[name].is_valid(each)
                for name, each in value.items()
            )
        )
    ),
)
BASE_RULES: Rules = {
    'type': NAME,
    'n_obs_steps': integer_range(1, 64),
    # checked entry by entry when they are read
    'input_features': ANY_VALUE,
    'output_features': ANY_VALUE,
    'normalization_mapping': NORMALIZATION,
    'device': DEVICE,
    'use_amp': FLAG,
    # not read for serving
    'use_peft': one_of(False),
    'push_to_hub': FLAG,
    'repo_id': optional(TEXT),
    'private': optional(FLAG),
    'tags': optional(list_of(TEXT)),
    'license': optional(TEXT),
    'pretrained_path': optional(TEXT),
    'pretrained_revision': optional(TEXT),
    # of a newer LeRobot: names of the actions
    'action_feature_names': optional(
        FieldRule('a list of names', lambda v: isinstance(v, list) and all(map(is_text, v)))
    ),
}
TRAINING = FieldRule(
    'a number, a text, a flag, or a list of numbers',
    lambda v: (
        v is None
        or any(rule.is_valid(v) for rule in (FLAG, NUMBER, TEXT))
        or list_of(NUMBER).is_valid(v)
    ),
)
# settings with these prefixes are read by training only
TRAINING_PREFIXES = ('optimizer_', 'scheduler_', 'freeze_', 'train_')
COMPILED: Rules = {'compile_model': FLAG, 'compile_mode': COMPILE_MODE}
VISION: Rules = {
    'vision_backbone': BACKBONE,
    # never loaded: the checkpoint holds all weights
    'pretrained_backbone_weights': optional(TEXT),
    'use_group_norm': FLAG,
    'spatial_softmax_num_keypoints': SIZE,
    'crop_shape': PAIR,
    'crop_is_random': FLAG,
}
CHUNK: Rules = {'chunk_size': SIZE, 'n_action_steps': SIZE}
PADDED: Rules = {
    'max_state_dim': SIZE,
    'max_action_dim': SIZE,
    'empty_cameras': integer_range(0, 16),
}
FLOW: Rules = {
    'min_period': number_range(1e-9, 1e3),
    'max_period': number_range(1e-9, 1e3),
    'rtc_config': RTC,
}
PI: Rules = {
    **CHUNK,
    **PADDED,
    **FLOW,
    **COMPILED,
    'paligemma_variant': GEMMA,
    'action_expert_variant': GEMMA,
    'dtype': PRECISION,
    'num_inference_steps': STEPS,
    'time_sampling_beta_alpha': NUMBER,
    'time_sampling_beta_beta': NUMBER,
    'time_sampling_scale': NUMBER,
    'time_sampling_offset': NUMBER,
    'image_resolution': list_of(SIZE, 2),
    'gradient_checkpointing': FLAG,
    'tokenizer_max_length': SIZE,
    'use_relative_actions': FLAG,
    'relative_exclude_joints': NAMES,
}
CONFIG_RULES: dict[str, Rules] = {
    'act': {
        **CHUNK,
        'vision_backbone': BACKBONE,
        'pretrained_backbone_weights': optional(TEXT),
        'replace_final_stride_with_dilation': one_of(False, True, 0, 1),
        'pre_norm': FLAG,
        'dim_model': WIDTH,
        'n_heads': SIZE,
        'dim_feedforward': WIDTH,
        'feedforward_activation': ACTIVATION,
        'n_encoder_layers': LAYERS,
        'n_decoder_layers': LAYERS,
        'use_vae': FLAG,
        'latent_dim': SIZE,
        'n_vae_encoder_layers': LAYERS,
        'temporal_ensemble_coeff': optional(NUMBER),
        'dropout': FRACTION,
        'kl_weight': NUMBER,
    },
    'diffusion': {
        **VISION,
        **COMPILED,
        'horizon': SIZE,
        'n_action_steps': SIZE,
        'drop_n_last_frames': COUNT,
        'resize_shape': PAIR,
        'crop_ratio': FRACTION,
        'use_separate_rgb_encoder_per_camera': FLAG,
        'down_dims': list_of(WIDTH, *range(1, 9)),
        'kernel_size': integer_range(1, 99),
        'n_groups': SIZE,
        'diffusion_step_embed_dim': WIDTH,
        'use_film_scale_modulation': FLAG,
        'noise_scheduler_type': one_of('DDPM', 'DDIM'),
        'num_train_timesteps': SAMPLES,
        'beta_schedule': one_of('linear', 'scaled_linear', 'squaredcos_cap_v2'),
        'beta_start': FRACTION,
        'beta_end': FRACTION,
        'prediction_type': one_of('epsilon', 'sample'),
        'clip_sample': FLAG,
        'clip_sample_range': NUMBER,
        'num_inference_steps': optional(STEPS),
        'do_mask_loss_for_padding': FLAG,
        'gradient_checkpointing': FLAG,
    },
    'vqbet': {
        **VISION,
        'n_action_pred_token': SIZE,
        'action_chunk_size': SIZE,
        'n_vqvae_training_steps': NUMBER,
        'vqvae_n_embed': SIZE,
        'vqvae_embedding_dim': WIDTH,
        'vqvae_enc_hidden_dim': WIDTH,
        'gpt_block_size': SIZE,
        'gpt_input_dim': WIDTH,
        'gpt_output_dim': WIDTH,
        'gpt_n_layer': LAYERS,
        'gpt_n_head': SIZE,
        'gpt_hidden_dim': WIDTH,
        'dropout': FRACTION,
        'offset_loss_weight': NUMBER,
        'primary_code_loss_weight': NUMBER,
        'secondary_code_loss_weight': NUMBER,
        'bet_softmax_temperature': NUMBER,
        'sequentially_select': FLAG,
    },
    'tdmpc': {
        'n_action_repeats': SIZE,
        'horizon': integer_range(1, 256),
        'n_action_steps': SIZE,
        'image_encoder_hidden_dim': WIDTH,
        'state_encoder_hidden_dim': WIDTH,
        'latent_dim': WIDTH,
        'q_ensemble_size': LAYERS,
        'mlp_dim': WIDTH,
        'use_mpc': FLAG,
        'cem_iterations': integer_range(0, 256),
        'n_gaussian_samples': SAMPLES,
        'n_pi_samples': integer_range(0, 1 << 14),
        'n_elites': SAMPLES,
        **dict.fromkeys(
            (
                'discount',
                'max_std',
                'min_std',
                'uncertainty_regularizer_coeff',
                'elite_weighting_temperature',
                'gaussian_mean_momentum',
                'max_random_shift_ratio',
                'reward_coeff',
                'expectile_weight',
                'value_coeff',
                'consistency_coeff',
                'advantage_scaling',
                'pi_coeff',
                'temporal_decay_coeff',
                'target_model_momentum',
            ),
            NUMBER,
        ),
    },
    'smolvla': {
        **CHUNK,
        **PADDED,
        **FLOW,
        **COMPILED,
        'resize_imgs_with_padding': PAIR,
        'adapt_to_pi_aloha': FLAG,
        'use_delta_joint_actions_aloha': one_of(False),
        'tokenizer_max_length': SIZE,
        'num_steps': STEPS,
        'use_cache': FLAG,
        'vlm_model_name': NAME,
        'load_vlm_weights': FLAG,
        'add_image_special_tokens': FLAG,
        'attention_mode': one_of('cross_attn', 'self_attn'),
        'prefix_length': integer_range(-1, 1 << 14),
        'pad_language_to': one_of('longest', 'max_length'),
        'num_expert_layers': integer_range(-1, 128),
        'num_vlm_layers': integer_range(-1, 128),
        'self_attn_every_n_layers': integer_range(-1, 128),
        'expert_width_multiplier': number_range(0.01, 8),
    },
    'pi0': PI,
    'pi05': {
        **PI,
        # the longest prefix that training showed the network, 0 for none
        'rtc_training_max_delay': COUNT,
        # observations carry no past frames for these
        'use_visual_memory': one_of(False),
        'use_proprioceptive_memory': one_of(False),
        'memory_frames': SIZE,
        'memory_stride': SIZE,
        'memory_temporal_attention_every': SIZE,
    },
}


def check_config(policy_type: str, config: dict[str, Any], where: str) -> None:
    """Raise PolicyError unless each setting is allowed and its value is in its range."""
    own = CONFIG_RULES[policy_type]
    _check_named(policy_type, config, where)
    training = {name: TRAINING for name in config if name.startswith(TRAINING_PREFIXES)}
    check_keys(
        config, {**training, **BASE_RULES, **own}, where, f'{with_article(policy_type)} policy'
    )


def _check_named(policy_type: str, config: dict[str, Any], where: str) -> None:
    # LeRobot's default is a repository of the hub, whose contents may change
    if policy_type == 'smolvla' and not config.get('vlm_model_name'):
        raise PolicyError(
            f'{where} has no vlm_model_name, so its language model is unknown; '
            'save the policy again with LeRobot'
        )


def with_article(policy_type: str) -> str:
    return f'{"an" if policy_type[0] in "aeiou" else "a"} {policy_type}'
