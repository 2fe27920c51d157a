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
# steps of a policy type beside the common ones
STEPS_OF_TYPE: dict[str, tuple[str, ...]] = {
    'act': COMMON_STEPS,
    'diffusion': COMMON_STEPS,
    'vqbet': COMMON_STEPS,
    'tdmpc': COMMON_STEPS,
    'smolvla': (
        *COMMON_STEPS,
        'smolvla_new_line_processor',
        'tokenizer_processor',
        *RELATIVE_STEPS,
    ),
    'pi0': (*COMMON_STEPS, 'pi0_new_line_processor', 'tokenizer_processor', *RELATIVE_STEPS),
    'pi05': (
        *COMMON_STEPS,
        'pi05_prepare_state_tokenizer_processor_step',
        'tokenizer_processor',
        *RELATIVE_STEPS,
    ),
}
REMOTE_CODE = 'it loads a tokenizer or a model that runs Python from its folder'
TELEOPERATION = 'it belongs to teleoperation or training'
OTHER_ACTIONS = 'it converts actions for one robot; use a robot file'
XVLA = 'it is of xvla policies, which are not served'
OTHER_TYPE = 'it is of a policy type that is not served'
RENDERED = 'it selects messages for training, by a recipe of its own'
REWARD = 'it is of a reward model'
PART_OF_BATCH_STEP = 'it does a part of to_batch_processor, which LeRobot saves instead'
REFUSED_STEPS = {
    'xvla_image_scale': XVLA,
    'xvla_image_to_float': XVLA,
    'xvla_imagenet_normalize': XVLA,
    'xvla_add_domain_id': XVLA,
    'xvla_rotation_6d_to_axis_angle': XVLA,
    'action_tokenizer_processor': REMOTE_CODE,
    'groot_pack_inputs_v3': REMOTE_CODE,
    'groot_eagle_encode_v3': REMOTE_CODE,
    'groot_eagle_collate_v3': REMOTE_CODE,
    'groot_action_unpack_unnormalize_v1': REMOTE_CODE,
    'reward_classifier_processor': REMOTE_CODE,
    'wall_x_task_processor': REMOTE_CODE,
    'pi0_fast_prepare_state_tokenizer_processor_step': REMOTE_CODE,
    'add_teleop_action_as_complementary_data': TELEOPERATION,
    'add_teleop_action_as_info': TELEOPERATION,
    'gym_hil_adapter_processor': TELEOPERATION,
    'gripper_penalty_processor': TELEOPERATION,
    'intervention_action_processor': TELEOPERATION,
    'time_limit_processor': TELEOPERATION,
    'image_crop_resize_processor': TELEOPERATION,
    'observation_processor': TELEOPERATION,
    'libero_processor': TELEOPERATION,
    'isaaclab_arena_processor': TELEOPERATION,
    'torch2numpy_action_processor': TELEOPERATION,
    'numpy2torch_action_processor': TELEOPERATION,
    'joint_velocity_processor': TELEOPERATION,
    'current_processor': TELEOPERATION,
    'map_phone_action_to_robot_action': OTHER_ACTIONS,
    'map_tensor_to_delta_action_dict': OTHER_ACTIONS,
    'map_delta_action_to_robot_action': OTHER_ACTIONS,
    'robot_action_to_policy_action_processor': OTHER_ACTIONS,
    'policy_action_to_robot_action_processor': OTHER_ACTIONS,
    'ee_reference_and_delta': OTHER_ACTIONS,
    'ee_bounds_and_safety': OTHER_ACTIONS,
    'inverse_kinematics_ee_to_joints': OTHER_ACTIONS,
    'gripper_velocity_to_joint': OTHER_ACTIONS,
    'forward_kinematics_joints_to_ee_observation': OTHER_ACTIONS,
    'forward_kinematics_joints_to_ee_action': OTHER_ACTIONS,
    'forward_kinematics_joints_to_ee': OTHER_ACTIONS,
    'inverse_kinematics_rl_step': OTHER_ACTIONS,
    'to_batch_processor_action': PART_OF_BATCH_STEP,
    'to_batch_processor_observation': PART_OF_BATCH_STEP,
    'to_batch_processor_complementary_data': PART_OF_BATCH_STEP,
    # LeRobot 0.6 and later
    'eo1_conversation_template_processor': OTHER_TYPE,
    'eo1_qwen_processor': OTHER_TYPE,
    'evo1_action_processor': OTHER_TYPE,
    'evo1_pad_action_processor': OTHER_TYPE,
    'evo1_pad_state_processor': OTHER_TYPE,
    'fastwam_action_toggle_processor': OTHER_TYPE,
    'molmoact2_action_frame_transform': OTHER_TYPE,
    'molmoact2_clamp_action': OTHER_TYPE,
    'molmoact2_clamp_normalized': OTHER_TYPE,
    'molmoact2_masked_normalizer': OTHER_TYPE,
    'molmoact2_masked_unnormalizer': OTHER_TYPE,
    'molmoact2_pack_inputs': OTHER_TYPE,
    'molmoact2_state_frame_transform': OTHER_TYPE,
    'vla_jepa_binarize_gripper': OTHER_TYPE,
    'vla_jepa_clip_actions': OTHER_TYPE,
    'vla_jepa_pre_snap_gripper': OTHER_TYPE,
    'groot_action_unpack_unnormalize_v2': REMOTE_CODE,
    'groot_n1_7_action_decode_v1': REMOTE_CODE,
    'groot_n1_7_pack_inputs_v1': REMOTE_CODE,
    'groot_n1_7_vlm_encode_v1': REMOTE_CODE,
    'render_messages_processor': RENDERED,
    'robometer_encoder': REWARD,
    'topreward_encoder': REWARD,
}


def check_step(policy_type: str, name: str, config: dict[str, object], where: str) -> None:
    """Raise PolicyError unless a policy of this type may have this step with these settings."""
    if name not in STEP_RULES:
        reason = REFUSED_STEPS.get(name, 'it is unknown, and a step may run any code')
        raise PolicyError(
            f'{where}: the processor step {name!r:.80} is refused: {reason}; allowed are '
            f'{", ".join(STEP_RULES)}, and steps of installed packages that trusted_packages names'
        )
    if name not in STEPS_OF_TYPE.get(policy_type, COMMON_STEPS):
        raise PolicyError(
            f'{where}: the processor step {name!r} is not one of a {policy_type} policy, which '
            f'may have {", ".join(STEPS_OF_TYPE.get(policy_type, COMMON_STEPS))}'
        )
    check_keys(config, STEP_RULES[name], f'{where} ({name})', f'the step {name}')
