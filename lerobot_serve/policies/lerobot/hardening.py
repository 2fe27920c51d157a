# SPDX-License-Identifier: Apache-2.0
"""
Disable code from folders and the network in the libraries that LeRobot uses.

transformers runs Python from the folder of a tokenizer with trust_remote_code, which LeRobot sets
in some places. So this module replaces the functions that import such code, for every caller, and
sets the Hugging Face hub offline for the whole process. `compat` calls this once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from lerobot_serve.policies.base import PolicyError

OFFLINE_VARIABLES = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE')
# all imports of Python from a folder in transformers use these functions
CODE_LOADERS = ('get_class_in_module', 'get_cached_module_file', 'get_class_from_dynamic_module')
TRUST_PROMPT = 'resolve_trust_remote_code'
# the variables as the operator set them, once they are replaced
_before: dict[str, str | None] = {}


def disable_network() -> None:
    """Restrict the hub's libraries to local files, whether or not they are imported already."""
    for name in OFFLINE_VARIABLES:
        _before.setdefault(name, os.environ.get(name))
        os.environ[name] = '1'
    constants: Any = sys.modules.get('huggingface_hub.constants')
    if constants:
        constants.HF_HUB_OFFLINE = True
        _close_connections(sys.modules['huggingface_hub.utils'])
    hub: Any = sys.modules.get('transformers.utils.hub')
    if hub and hasattr(hub, '_is_offline_mode'):
        hub._is_offline_mode = True  # later versions ask huggingface_hub


def environment_before() -> dict[str, str]:
    """Return the environment with the network as the operator set it, for another process."""
    environment = dict(os.environ) | {name: value or '' for name, value in _before.items()}
    return {name: value for name, value in environment.items() if value or name not in _before}


def _close_connections(hub_utils: Any) -> None:
    """Close the existing connections of huggingface_hub: the function is named by its version."""
    names = ('close_session', 'reset_sessions')
    next(getattr(hub_utils, name) for name in names if hasattr(hub_utils, name))()


def refuse_code() -> None:
    """
    Replace the functions that import Python from a folder, in each module that refers to them.
    """
    if importlib.util.find_spec('transformers') is None:
        return  # policies without language do not need transformers
    from transformers import dynamic_module_utils

    replaced = {
        getattr(dynamic_module_utils, name): replacement
        for name, replacement in (
            *((name, _refuse_code) for name in CODE_LOADERS),
            (TRUST_PROMPT, _refuse_trust),
        )
        if getattr(dynamic_module_utils, name) is not replacement
    }
    for module in [module for name, module in sys.modules.items() if _is_transformers(name)]:
        for name in (*CODE_LOADERS, TRUST_PROMPT):
            value = vars(module).get(name)
            if value in replaced:
                setattr(module, name, replaced[value])


def _is_transformers(name: str) -> bool:
    return name.partition('.')[0] == 'transformers'


def _refuse_code(*args: Any, **kwargs: Any) -> Any:
    raise PolicyError(
        'the policy requests Python code beside a tokenizer or model '
        f'({str(args[0])[:120] if args else "unnamed"}); code from policy folders is not '
        'loaded: use a tokenizer or model that transformers itself supports'
    )


def _refuse_trust(
    trust_remote_code: object,
    model_name: object,
    has_local_code: bool,
    has_remote_code: bool,
    error_message: object = None,
    upstream_repo: object = None,
) -> bool:
    """Refuse to run the code of a folder, instead of the prompt of transformers."""
    if has_remote_code and not has_local_code:
        _refuse_code(model_name)
    return False
