# SPDX-License-Identifier: Apache-2.0
"""Every processor step and every policy type that LeRobot registers is allowed or refused."""

from __future__ import annotations

import ast
from functools import cache
import importlib.util
import json
from pathlib import Path

import pytest

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.config_rules import CONFIG_RULES
from lerobot_serve.policies.lerobot.checkpoint.processor_step_rules import (
    check_step,
    COMMON_STEPS,
    REFUSED_STEPS,
    RELATIVE_STEPS,
    STEP_RULES,
    STEPS_OF_TYPE,
)
from lerobot_serve.policies.lerobot.checkpoint.version_rules import (
    ANY_TYPE,
    installed_version,
    RTC_SETTINGS,
    SETTINGS,
    STEPS,
)
from lerobot_serve.policies.lerobot.policy_types import (
    policy_type_spec,
    POLICY_TYPES,
    REFUSED_TYPES,
)

pytest.importorskip('lerobot', reason='LeRobot is not installed')

LEROBOT = Path(importlib.util.find_spec('lerobot').origin).parent


@cache
def registered(registry: str, method: str) -> frozenset[str]:
    """Return the names that LeRobot's source registers, whatever can be imported here."""
    names = set()
    for file in LEROBOT.rglob('*.py'):
        text = file.read_text(encoding='utf-8')
        if f'{registry}.{method}(' not in text:
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            for decorator in getattr(node, 'decorator_list', []):
                called = isinstance(decorator, ast.Call) and ast.unparse(decorator.func)
                if called == f'{registry}.{method}':
                    values = [*decorator.args, *(each.value for each in decorator.keywords)]
                    names |= values_of(values[0], tree) if values else {node.name}
    return frozenset(names)


def values_of(name: ast.expr, tree: ast.Module) -> set[str]:
    """Return the text of an expression; of a variable, those of the table that a loop reads."""
    if not isinstance(name, ast.Name):
        return {ast.literal_eval(name)}
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    (table,) = {loop.iter.id for loop in loops if ast.unparse(loop.target) == name.id}
    (values,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table
    )
    return set(ast.literal_eval(values))


STEP_NAMES = registered('ProcessorStepRegistry', 'register')
TYPE_NAMES = registered('PreTrainedConfig', 'register_subclass')


# of LeRobot 0.6; it has made reward models a registry of their own
LATER_TYPES = {
    *('eo1', 'evo1', 'fastwam', 'gaussian_actor', 'lingbot_va', 'molmoact2', 'multi_task_dit'),
    'vla_jepa',
}
EARLIER_TYPES = {'sac', 'reward_classifier', 'sarm'}
LATER_STEPS = {
    *RELATIVE_STEPS,
    *('eo1_', 'evo1_', 'fastwam_', 'groot_n1_7_', 'molmoact2_', 'vla_jepa_', 'render_messages_'),
    *('groot_action_unpack_unnormalize_v2', 'robometer_encoder', 'topreward_encoder'),
}
IS_LATER = installed_version() >= (0, 6, 0)


def test_what_is_registered_is_found():
    assert len(STEP_NAMES) > 40
    assert {'act', 'groot', 'wall_x'} <= TYPE_NAMES
    assert {'tokenizer_processor', 'action_tokenizer_processor'} <= STEP_NAMES


def test_each_step_is_decided_and_none_twice():
    assert STEP_NAMES - STEP_RULES.keys() - REFUSED_STEPS.keys() == set()
    assert STEP_RULES.keys() & REFUSED_STEPS.keys() == set()
    # what both releases lack is not kept
    unknown = (STEP_RULES.keys() | REFUSED_STEPS.keys()) - STEP_NAMES
    assert all(not IS_LATER and name.startswith(tuple(LATER_STEPS)) for name in unknown)


def test_each_type_is_decided_and_none_twice():
    gone = EARLIER_TYPES if IS_LATER else LATER_TYPES
    assert POLICY_TYPES.keys() | REFUSED_TYPES.keys() == TYPE_NAMES | gone
    assert POLICY_TYPES.keys() & REFUSED_TYPES.keys() == set()
    assert POLICY_TYPES.keys() == CONFIG_RULES.keys() == STEPS_OF_TYPE.keys()


@pytest.mark.parametrize('name', sorted(STEP_NAMES | {'of_a_later_lerobot', 'os.system', ''}))
@pytest.mark.parametrize('policy_type', sorted(POLICY_TYPES))
def test_a_type_has_its_steps_and_no_others(policy_type, name):
    if name in STEPS_OF_TYPE[policy_type]:
        check_step(policy_type, name, {}, 'a file')
        for key in ('trust_remote_code', 'class', 'stats', '__class__', 'of_a_later_lerobot'):
            with pytest.raises(PolicyError, match=f'{key!r} is not a setting that the step'):
                check_step(policy_type, name, {key: True}, 'a file')
        return
    with pytest.raises(PolicyError, match=r'is refused|is not one of'):
        check_step(policy_type, name, {}, 'a file')


@pytest.mark.parametrize('policy_type', sorted(TYPE_NAMES | {'of_a_later_lerobot'}))
def test_a_type_is_served_or_says_why_not(policy_type):
    if policy_type in POLICY_TYPES:
        assert policy_type_spec(policy_type) is POLICY_TYPES[policy_type]
        return
    with pytest.raises(PolicyError, match=r'cannot be served: |is not supported: '):
        policy_type_spec(policy_type)


@pytest.mark.parametrize('step', sorted(STEP_RULES))
def test_each_setting_of_a_step_has_a_type(step):
    policy_type = next(
        name for name, steps in STEPS_OF_TYPE.items() if step in (*steps, *COMMON_STEPS)
    )
    for key in STEP_RULES[step]:
        for wrong in (object(), {'$ref': 1}, [[[]]], 'x' * 10_000, float('nan'), 1 << 70, b''):
            with pytest.raises(PolicyError, match=f'{key} must be'):
                check_step(policy_type, step, {key: wrong}, 'a file')


@pytest.mark.parametrize('policy_type', sorted(CONFIG_RULES))
def test_each_setting_of_a_type_is_lerobots_own_and_its_default_fits(policy_type):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    import dataclasses

    from lerobot_serve.policies.lerobot.checkpoint.config_rules import BASE_RULES, check_config
    from lerobot_serve.policies.lerobot.compat import lerobot

    chosen = lerobot().config_class.get_choice_class(policy_type)
    own = {field.name for field in dataclasses.fields(chosen)}
    known = {*ANY_TYPE, *SETTINGS.get(policy_type, {})}
    assert CONFIG_RULES[policy_type].keys() - own <= known
    assert BASE_RULES.keys() - own - known <= {'type', 'action_feature_names'}
    # a setting has its version, or each release has it
    for name, version in (ANY_TYPE | SETTINGS.get(policy_type, {})).items():
        assert (name in own) == (installed_version() >= version), name
    import draccus

    config = draccus.encode(chosen(device='cpu'))
    assert config.keys() - {'type'} <= own
    check_config(policy_type, json.loads(json.dumps(config)), 'a file')


def test_the_versions_of_rtc_settings_and_steps_are_lerobots():
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    import dataclasses

    from lerobot_serve.policies.lerobot.compat import lerobot

    own = {field.name for field in dataclasses.fields(lerobot().rtc_config)}
    for name, version in RTC_SETTINGS.items():
        assert (name in own) == (installed_version() >= version), name
    for name, version in STEPS.items():
        assert (name in STEP_NAMES) == (installed_version() >= version), name


HUGE = {
    'act': {'chunk_size': 10**8, 'dim_model': 10**6, 'n_encoder_layers': 10**9},
    'diffusion': {'horizon': 10**8, 'down_dims': [10**9], 'num_inference_steps': 10**9},
    'vqbet': {'gpt_block_size': 10**6, 'gpt_n_layer': 10**9},
    'tdmpc': {'n_gaussian_samples': 10**9, 'cem_iterations': 10**9, 'q_ensemble_size': 10**9},
    'smolvla': {'num_steps': 10**9, 'resize_imgs_with_padding': [10**6, 10**6]},
    'pi0': {'image_resolution': [10**6, 10**6], 'tokenizer_max_length': 10**9},
    'pi05': {'num_inference_steps': 10**9, 'max_state_dim': 10**9},
}


@pytest.mark.parametrize(
    ('policy_type', 'name', 'value'),
    [(kind, name, value) for kind, each in HUGE.items() for name, value in each.items()],
)
def test_sizes_without_bound_are_refused_by_name(tmp_path, policy_type, name, value):
    config = {'type': policy_type, 'vlm_model_name': '/x', name: value}
    if policy_type != 'smolvla':
        del config['vlm_model_name']
    (tmp_path / 'config.json').write_text(json.dumps(config))
    (tmp_path / 'model.safetensors').write_bytes(b'')
    with pytest.raises(PolicyError, match=f'{name} must be'):
        read_checkpoint(str(tmp_path))
