# SPDX-License-Identifier: Apache-2.0
"""
The allowed processor steps of a policy folder: names, keys and types of values.

Any other step, also of a later LeRobot, is refused: it may import, download or unpickle. Plain
data, any thread.
"""

from __future__ import annotations

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint.value_rules import (
    check_keys,
    DEVICE,
    FEATURES,
    FLAG,
    is_text,
    NAME,
    NAMES,
    NORMALIZATION,
    number_range,
    object_of,
    one_of,
    optional,
    Rules,
    SIZE,
    TEXT,
)

NORMALIZER: Rules = {
    'eps': number_range(0, 1),
    'features': FEATURES,
    'norm_map': NORMALIZATION,
    'normalize_observation_keys': optional(NAMES),
}
# the keys that each step may have; statistics come from state files, which are checked
STEP_RULES: dict[str, Rules] = {
    'rename_observations_processor': {'rename_map': object_of(is_text, TEXT)},
    'to_batch_processor': {},
    'device_processor': {
        'device': DEVICE,
        'float_dtype': one_of(None, 'float32', 'float', 'bfloat16', 'bf16', 'float16', 'half'),
    },
    'normalizer_processor': NORMALIZER,
    'unnormalizer_processor': NORMALIZER,
    'tokenizer_processor': {
        'tokenizer_name': NAME,
        'max_length': SIZE,
        'task_key': one_of('task'),
        'padding_side': one_of('left', 'right'),
        'padding': one_of('max_length', 'longest', True, False),
        'truncation': one_of(True, False),
    },
    'smolvla_new_line_processor': {},
    'pi0_new_line_processor': {},
    'pi05_prepare_state_tokenizer_processor_step': {
        'max_state_dim': SIZE,
        'task_key': one_of('task'),
    },
    # LeRobot 0.5 and later: subtract and add the state
    'relative_actions_processor': {
        'enabled': FLAG,
        'exclude_joints': NAMES,
        'action_names': optional(NAMES),
    },
    'absolute_actions_processor': {'enabled': FLAG},
}
COMMON_STEPS = (
    'rename_observations_processor',
    'to_batch_processor',
    'device_processor',
    'normalizer_processor',
    'unnormalizer_processor',
)
RELATIVE_STEPS = ('relative_actions_processor', 'absolute_actions_processor')
LANGUAGE_STEPS = (*COMMON_STEPS, 'tokenizer_processor', *RELATIVE_STEPS)
# steps of a policy type beside the common ones
STEPS_OF_TYPE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(('act', 'diffusion', 'vqbet', 'tdmpc'), COMMON_STEPS),
    'smolvla': (*LANGUAGE_STEPS, 'smolvla_new_line_processor'),
    'pi0': (*LANGUAGE_STEPS, 'pi0_new_line_processor'),
    'pi05': (*LANGUAGE_STEPS, 'pi05_prepare_state_tokenizer_processor_step'),
}
# why a step is refused -> the steps
REFUSALS = {
    'it loads a tokenizer or a model that runs Python from its folder': """
        action_tokenizer_processor groot_pack_inputs_v3 groot_eagle_encode_v3
        groot_eagle_collate_v3 groot_action_unpack_unnormalize_v1
        reward_classifier_processor wall_x_task_processor
        pi0_fast_prepare_state_tokenizer_processor_step groot_action_unpack_unnormalize_v2
        groot_n1_7_action_decode_v1 groot_n1_7_pack_inputs_v1 groot_n1_7_vlm_encode_v1
    """,
    'it belongs to teleoperation or training': """
        add_teleop_action_as_complementary_data add_teleop_action_as_info
        gym_hil_adapter_processor gripper_penalty_processor intervention_action_processor
        time_limit_processor image_crop_resize_processor observation_processor
        libero_processor isaaclab_arena_processor torch2numpy_action_processor
        numpy2torch_action_processor joint_velocity_processor current_processor
    """,
    'it converts actions for one robot; use a robot file': """
        map_phone_action_to_robot_action map_tensor_to_delta_action_dict
        map_delta_action_to_robot_action robot_action_to_policy_action_processor
        policy_action_to_robot_action_processor ee_reference_and_delta ee_bounds_and_safety
        inverse_kinematics_ee_to_joints gripper_velocity_to_joint
        forward_kinematics_joints_to_ee_observation forward_kinematics_joints_to_ee_action
        forward_kinematics_joints_to_ee inverse_kinematics_rl_step
    """,
    'it is of xvla policies, which are not served': """
        xvla_image_scale xvla_image_to_float xvla_imagenet_normalize xvla_add_domain_id
        xvla_rotation_6d_to_axis_angle
    """,
    'it is of a policy type that is not served': """
        eo1_conversation_template_processor eo1_qwen_processor evo1_action_processor
        evo1_pad_action_processor evo1_pad_state_processor fastwam_action_toggle_processor
        molmoact2_action_frame_transform molmoact2_clamp_action molmoact2_clamp_normalized
        molmoact2_masked_normalizer molmoact2_masked_unnormalizer molmoact2_pack_inputs
        molmoact2_state_frame_transform vla_jepa_binarize_gripper vla_jepa_clip_actions
        vla_jepa_pre_snap_gripper
    """,
    'it selects messages for training, by a recipe of its own': 'render_messages_processor',
    'it is of a reward model': 'robometer_encoder topreward_encoder',
    'it does a part of to_batch_processor, which LeRobot saves instead': """
        to_batch_processor_action to_batch_processor_observation
        to_batch_processor_complementary_data
    """,
}
REFUSED_STEPS = {name: reason for reason, names in REFUSALS.items() for name in names.split()}


def check_step(policy_type: str, name: str, config: dict[str, object], where: str) -> None:
    """Raise PolicyError unless a policy of this type may have this step with these settings."""
    if name not in STEP_RULES:
        reason = REFUSED_STEPS.get(name, 'it is unknown, and a step may run any code')
        raise PolicyError(
            f'{where}: the processor step {name!r:.80} is refused: {reason}; allowed are '
            f'{", ".join(STEP_RULES)}, and steps of installed packages that trusted_packages names'
        )
    allowed = STEPS_OF_TYPE.get(policy_type, COMMON_STEPS)
    if name not in allowed:
        raise PolicyError(
            f'{where}: the processor step {name!r} is not one of a {policy_type} policy, which '
            f'may have {", ".join(allowed)}'
        )
    check_keys(config, STEP_RULES[name], f'{where} ({name})', f'the step {name}')
