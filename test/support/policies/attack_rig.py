# SPDX-License-Identifier: Apache-2.0
"""
Policy folders that attack whoever loads them, and the marker file that an attack leaves.

Each folder is one of LeRobot's with something added. Importing this needs LeRobot.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from support.policies.lerobot_rig import change_json, copy_of, set_json

CODE = """
from pathlib import Path
Path({marker!r}).write_text('ran')
from transformers import LlamaConfig, PreTrainedTokenizerFast, ProcessorMixin
class Config(LlamaConfig):
    model_type = 'evil'
class Tokenizer(PreTrainedTokenizerFast):
    pass
class Processor(ProcessorMixin):
    attributes = []
    def __init__(self, **kwargs):
        pass
    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        return cls()
"""
AUTO_MAP = {
    'AutoConfig': 'evil.Config',
    'AutoTokenizer': ['evil.Tokenizer', 'evil.Tokenizer'],
    'AutoProcessor': 'evil.Processor',
}


def evil_asset(folder: Path, marker: Path) -> Path:
    """Write a tokenizer's folder whose Python writes the marker when it is imported."""
    folder.mkdir(parents=True)
    (folder / 'evil.py').write_text(CODE.format(marker=str(marker)))
    for name, own in (
        ('config.json', {'model_type': 'evil'}),
        ('tokenizer_config.json', {'tokenizer_class': 'Tokenizer'}),
        ('processor_config.json', {'processor_class': 'Processor'}),
        ('preprocessor_config.json', {'processor_class': 'Processor'}),
    ):
        (folder / name).write_text(json.dumps({**own, 'auto_map': AUTO_MAP}))
    return folder


def with_step(name: str, *, kind: str = 'act', **config: Any) -> Callable[[Path, Path], Path]:
    """Return what makes a policy with one more processor step; ASSET stands for its folder."""

    def make(root: Path, asset: Path) -> Path:
        folder = copy_of(kind, root)
        filled = {key: str(asset) if value == 'ASSET' else value for key, value in config.items()}
        change_json(
            folder / 'policy_preprocessor.json',
            lambda held: held['steps'].append({'registry_name': name, 'config': filled}),
        )
        return folder

    return make


def with_config(kind: str, **config: Any) -> Callable[[Path, Path], Path]:
    """Return what makes a policy with other settings; ASSET stands for its folder."""

    def make(root: Path, asset: Path) -> Path:
        folder = copy_of(kind, root)
        filled = {key: str(asset) if value == 'ASSET' else value for key, value in config.items()}
        set_json(folder / 'config.json', **filled)
        return folder

    return make


def retokenized(root: Path, asset: Path) -> Path:
    """Make a SmolVLA whose tokenizer is the asset."""
    folder = copy_of('smolvla', root)

    def change(held: dict[str, Any]) -> None:
        for step in held['steps']:
            if 'tokenizer_name' in step.get('config', {}):
                step['config']['tokenizer_name'] = str(asset)

    change_json(folder / 'policy_preprocessor.json', change)
    return folder


ATTACKS: dict[str, Callable[[Path, Path], Path]] = {
    'action tokenizer': with_step(
        'action_tokenizer_processor',
        action_tokenizer_name='ASSET',
        paligemma_tokenizer_name='ASSET',
        trust_remote_code=True,
    ),
    'action tokenizer by default': with_step(
        'action_tokenizer_processor',
        action_tokenizer_name='ASSET',
        paligemma_tokenizer_name='ASSET',
    ),
    'reward classifier': with_step('reward_classifier_processor', pretrained_path='ASSET'),
    'groot step': with_step('groot_eagle_encode_v3', tokenizer_assets_repo='ASSET'),
    'tokenizer': retokenized,
    'tokenizer in a policy without language': with_step(
        'tokenizer_processor', tokenizer_name='ASSET'
    ),
    'trusting tokenizer': with_step(
        'tokenizer_processor', kind='smolvla', tokenizer_name='ASSET', trust_remote_code=True
    ),
    'language model': with_config('smolvla', vlm_model_name='ASSET'),
    'language model with weights': with_config(
        'smolvla', vlm_model_name='ASSET', load_vlm_weights=True
    ),
    'pi0_fast': with_config('act', type='pi0_fast', action_tokenizer_name='ASSET'),
    'wall_x': with_config('act', type='wall_x', action_tokenizer_path='ASSET'),
    'groot': with_config('act', type='groot', base_model_path='ASSET'),
    'sac': with_config('act', type='sac', vision_encoder_name='ASSET'),
    'reward classifier policy': with_config('act', type='reward_classifier', model_name='ASSET'),
}
