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
    each,
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
RTC = optional(
    FieldRule(
        'an object of RTC settings',
        lambda value: (
            isinstance(value, dict)
            and all(name in RTC_RULES and RTC_RULES[name].is_valid(value[name]) for name in value)
        ),
    )
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
    'private': optional(FLAG),
    'tags': optional(list_of(TEXT)),
    **each('repo_id license pretrained_path pretrained_revision', optional(TEXT)),
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
BACKBONES: Rules = {
    'vision_backbone': BACKBONE,
    # never loaded: the checkpoint holds all weights
    'pretrained_backbone_weights': optional(TEXT),
}
VISION: Rules = {
    **BACKBONES,
    **each('use_group_norm crop_is_random', FLAG),
    'spatial_softmax_num_keypoints': SIZE,
    'crop_shape': PAIR,
}
CHUNK: Rules = each('chunk_size n_action_steps', SIZE)
VLA: Rules = {
    **CHUNK,
    **COMPILED,
    **each('max_state_dim max_action_dim tokenizer_max_length', SIZE),
    'empty_cameras': integer_range(0, 16),
    **each('min_period max_period', number_range(1e-9, 1e3)),
    'rtc_config': RTC,
}
PI: Rules = {
    **VLA,
    **each('paligemma_variant action_expert_variant', GEMMA),
    'dtype': PRECISION,
    'num_inference_steps': STEPS,
    **each('time_sampling_beta_alpha time_sampling_beta_beta', NUMBER),
    **each('time_sampling_scale time_sampling_offset', NUMBER),
    'image_resolution': list_of(SIZE, 2),
    **each('gradient_checkpointing use_relative_actions', FLAG),
    'relative_exclude_joints': NAMES,
}
CONFIG_RULES: dict[str, Rules] = {
    'act': {
        **CHUNK,
        **BACKBONES,
        'replace_final_stride_with_dilation': one_of(False, True, 0, 1),
        **each('pre_norm use_vae', FLAG),
        **each('dim_model dim_feedforward', WIDTH),
        **each('n_heads latent_dim', SIZE),
        'feedforward_activation': ACTIVATION,
        **each('n_encoder_layers n_decoder_layers n_vae_encoder_layers', LAYERS),
        'temporal_ensemble_coeff': optional(NUMBER),
        'dropout': FRACTION,
        'kl_weight': NUMBER,
    },
    'diffusion': {
        **VISION,
        **COMPILED,
        **each('horizon n_action_steps n_groups', SIZE),
        'drop_n_last_frames': COUNT,
        'resize_shape': PAIR,
        **each('crop_ratio beta_start beta_end', FRACTION),
        **each('use_separate_rgb_encoder_per_camera use_film_scale_modulation', FLAG),
        **each('clip_sample do_mask_loss_for_padding gradient_checkpointing', FLAG),
        'down_dims': list_of(WIDTH, *range(1, 9)),
        'kernel_size': integer_range(1, 99),
        'diffusion_step_embed_dim': WIDTH,
        'noise_scheduler_type': one_of('DDPM', 'DDIM'),
        'num_train_timesteps': SAMPLES,
        'beta_schedule': one_of('linear', 'scaled_linear', 'squaredcos_cap_v2'),
        'prediction_type': one_of('epsilon', 'sample'),
        'clip_sample_range': NUMBER,
        'num_inference_steps': optional(STEPS),
    },
    'vqbet': {
        **VISION,
        **each('n_action_pred_token action_chunk_size vqvae_n_embed', SIZE),
        **each('gpt_block_size gpt_n_head', SIZE),
        **each('vqvae_embedding_dim vqvae_enc_hidden_dim', WIDTH),
        **each('gpt_input_dim gpt_output_dim gpt_hidden_dim', WIDTH),
        'gpt_n_layer': LAYERS,
        'dropout': FRACTION,
        **each('n_vqvae_training_steps offset_loss_weight primary_code_loss_weight', NUMBER),
        **each('secondary_code_loss_weight bet_softmax_temperature', NUMBER),
        'sequentially_select': FLAG,
    },
    'tdmpc': {
        **each('n_action_repeats n_action_steps', SIZE),
        'horizon': integer_range(1, 256),
        **each('image_encoder_hidden_dim state_encoder_hidden_dim latent_dim mlp_dim', WIDTH),
        'q_ensemble_size': LAYERS,
        'use_mpc': FLAG,
        'cem_iterations': integer_range(0, 256),
        **each('n_gaussian_samples n_elites', SAMPLES),
        'n_pi_samples': integer_range(0, 1 << 14),
        **each('discount max_std min_std uncertainty_regularizer_coeff', NUMBER),
        **each('elite_weighting_temperature gaussian_mean_momentum', NUMBER),
        **each('max_random_shift_ratio reward_coeff expectile_weight value_coeff', NUMBER),
        **each('consistency_coeff advantage_scaling pi_coeff', NUMBER),
        **each('temporal_decay_coeff target_model_momentum', NUMBER),
    },
    'smolvla': {
        **VLA,
        'resize_imgs_with_padding': PAIR,
        'use_delta_joint_actions_aloha': one_of(False),
        'num_steps': STEPS,
        **each('adapt_to_pi_aloha use_cache load_vlm_weights add_image_special_tokens', FLAG),
        'vlm_model_name': NAME,
        'attention_mode': one_of('cross_attn', 'self_attn'),
        'prefix_length': integer_range(-1, 1 << 14),
        'pad_language_to': one_of('longest', 'max_length'),
        **each(
            'num_expert_layers num_vlm_layers self_attn_every_n_layers', integer_range(-1, 128)
        ),
        'expert_width_multiplier': number_range(0.01, 8),
    },
    'pi0': PI,
    'pi05': {
        **PI,
        # the longest prefix that training showed the network, 0 for none
        'rtc_training_max_delay': COUNT,
        # observations carry no past frames for these
        **each('use_visual_memory use_proprioceptive_memory', one_of(False)),
        **each('memory_frames memory_stride memory_temporal_attention_every', SIZE),
    },
}


def check_config(policy_type: str, config: dict[str, Any], where: str) -> None:
    """Raise PolicyError unless each setting is allowed and its value is in its range."""
    own = CONFIG_RULES[policy_type]
    # LeRobot's default is a repository of the hub, whose contents may change
    if policy_type == 'smolvla' and not config.get('vlm_model_name'):
        raise PolicyError(
            f'{where} has no vlm_model_name, so its language model is unknown; '
            'save the policy again with LeRobot'
        )
    training = {name: TRAINING for name in config if name.startswith(TRAINING_PREFIXES)}
    article = 'an' if policy_type[0] in 'aeiou' else 'a'
    check_keys(config, {**training, **BASE_RULES, **own}, where, f'{article} {policy_type} policy')
