# SPDX-License-Identifier: Apache-2.0
"""
Disable code from folders and the network in the libraries that LeRobot uses.

transformers runs Python from the folder of a tokenizer if asked to trust it, and LeRobot asks in
places. So the functions that import such code are replaced, for every caller, and the Hugging Face
hub is offline for the whole process. `compat` calls this once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from lerobot_serve.policies.base import PolicyError

OFFLINE_VARIABLES = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE')
# everything in transformers that imports Python from a folder goes through these
CODE_LOADERS = ('get_class_in_module', 'get_cached_module_file', 'get_class_from_dynamic_module')
TRUST_PROMPT = 'resolve_trust_remote_code'


def go_offline() -> None:
    """Make the hub's libraries use local files alone; before or after they are imported."""
    for name in OFFLINE_VARIABLES:
        os.environ[name] = '1'
    if constants := sys.modules.get('huggingface_hub.constants'):
        constants.HF_HUB_OFFLINE = True
        # connections that exist may have been made to reach the network
        sys.modules['huggingface_hub.utils'].reset_sessions()
    if hub := sys.modules.get('transformers.utils.hub'):
        hub._is_offline_mode = True


def refuse_code() -> None:
    """Replace what imports Python from a folder, in each module that knows it by name."""
    if importlib.util.find_spec('transformers') is None:
        return  # the policies without language do not need it
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
        'loaded: use a tokenizer or model that transformers itself has'
    )


def _refuse_trust(
    trust_remote_code: object,
    model_name: object,
    has_local_code: bool,
    has_remote_code: bool,
    error_message: object = None,
    upstream_repo: object = None,
) -> bool:
    """Answer transformers' question whether to run a folder's code, without a prompt: no."""
    if has_remote_code and not has_local_code:
        _refuse_code(model_name)
    return False
