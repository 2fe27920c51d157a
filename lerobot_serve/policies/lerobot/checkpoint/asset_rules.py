# SPDX-License-Identifier: Apache-2.0
"""
Check the folder of a tokenizer or language model before transformers reads it.

transformers chooses classes, and weights in formats that unpickle, by the contents of the folder.
These rules allow only the classes that LeRobot's policies use, and weights in safetensors. Any
thread.
"""

from __future__ import annotations

from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.assets import Asset, asset_files, WEIGHTS_SUFFIX
from lerobot_serve.policies.files.file_headers import read_json, tensor_headers
from lerobot_serve.policies.files.policy_folder import check_folder
from lerobot_serve.policies.lerobot.checkpoint.tokenizer_rules import (
    check_tokenizer,
    TOKENIZER_FILE,
)
from lerobot_serve.policies.lerobot.checkpoint.version_rules import check_known

VOCABULARY_LIMIT_BYTES, NUMBER_LIMIT, LAYER_LIMIT, DEPTH_LIMIT = 64 << 20, 1 << 20, 128, 8
VOCABULARIES = ('vocab.json', 'added_tokens.json')
CONFIG_FILE = 'config.json'
WEIGHTS_FILES = ('model.safetensors', 'model.safetensors.index.json')
# with this file transformers reads another model, that of its base_model_name_or_path
ADAPTER_FILE = 'adapter_config.json'
SHARD = re.compile(r'[\w.-]+\.safetensors', re.ASCII)
FORBIDDEN_KEYS = {'auto_map', 'custom_pipelines', 'quantization_config', 'custom_generate'}
# keys that make transformers read other files than those of this folder
OUTSIDE_KEYS = re.compile(r'\w+_file|init_inputs|audio_tokenizer\w*', re.ASCII)
# keys that make transformers build a tokenizer from another file than tokenizer.json
OTHER_TOKENIZER_KEYS = {'fast_tokenizer_files', 'from_slow'}
MODELS = {'smolvlm', 'smolvlm_vision', 'idefics3', 'idefics3_vision', 'llama'}
TOKENIZER_MODELS = MODELS | {'paligemma', 'gemma', 'bart', 'siglip_vision_model'}
# the name that transformers 5 gives PreTrainedTokenizerFast
LATER_TOKENIZERS = {'TokenizersBackend': (0, 6, 0)}
ALLOWED_VALUES = {
    'model_type': TOKENIZER_MODELS,
    'tokenizer_class': {
        f'{name}{fast}'
        for name in ('GPT2Tokenizer', 'GemmaTokenizer', 'BartTokenizer')
        for fast in ('', 'Fast')
    }
    | {'PreTrainedTokenizerFast', *LATER_TOKENIZERS},
    'processor_class': {'SmolVLMProcessor', 'Idefics3Processor', 'PaliGemmaProcessor'},
    'image_processor_type': {
        f'{name}ImageProcessor{fast}'
        for name in ('SmolVLM', 'Idefics3', 'Siglip')
        for fast in ('', 'Fast')
    },
    'video_processor_type': {'SmolVLMVideoProcessor'},
    'feature_extractor_type': set(),
    'attn_implementation': {'eager', 'sdpa'},
    '_attn_implementation': {'eager', 'sdpa'},
    '_attn_implementation_internal': {'eager', 'sdpa'},
}


def check_asset(asset: Asset) -> None:
    """Raise PolicyError for files that make transformers run code or read another model."""
    check_folder(asset.folder)
    files = asset_files(asset.folder)
    names = {file.name for file in files}
    if ADAPTER_FILE in names:
        raise PolicyError(
            f'{asset.folder} holds {ADAPTER_FILE}, which names another model to load; use a '
            'complete tokenizer or model'
        )
    if TOKENIZER_FILE not in names and any(file.suffix == '.model' for file in files):
        raise PolicyError(
            f'{asset.folder} has a tokenizer, but no {TOKENIZER_FILE}, the only form that is '
            'read; write it with save_pretrained of a fast tokenizer'
        )
    for file in files:
        if file.suffix == '.json':
            _check_json(file)
    if asset.is_model:
        _check_model(asset.folder / CONFIG_FILE)
    weights = [file for file in files if file.suffix == WEIGHTS_SUFFIX]
    if asset.with_weights and not (weights and names.intersection(WEIGHTS_FILES)):
        raise PolicyError(
            f'{asset.folder} has no weights in {" or ".join(WEIGHTS_FILES)}; other formats are '
            'not read; download the model again'
        )
    for file in weights if asset.with_weights else []:
        tensor_headers(file)


def _check_json(file: Path) -> None:
    if file.name == TOKENIZER_FILE:
        check_tokenizer(file)
        return
    if file.name in VOCABULARIES:
        read_json(file, VOCABULARY_LIMIT_BYTES)
        return
    value = read_json(file)
    if file.name.endswith('.index.json'):
        shards = value.get('weight_map', {}) if isinstance(value, dict) else None
        if not isinstance(shards, dict) or not all(
            isinstance(shard, str) and SHARD.fullmatch(shard) for shard in shards.values()
        ):
            raise PolicyError(f'{file} must name only .safetensors files of its folder')
    _check_value(file, '', value, 0)


def _check_value(file: Path, key: str, value: Any, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise PolicyError(f'{file} is nested deeper than {DEPTH_LIMIT}; not a tokenizer file')
    if key in FORBIDDEN_KEYS and value:
        raise PolicyError(
            f'{file} has {key!r}, which makes transformers run code of the folder or of another '
            'package; code from policy folders is not loaded: use a tokenizer or model without it'
        )
    if key in OTHER_TOKENIZER_KEYS and value:
        raise PolicyError(
            f'{file} has {key!r}, by which a tokenizer is built from another file than '
            f'{TOKENIZER_FILE}; remove the key'
        )
    if OUTSIDE_KEYS.fullmatch(key) and value:
        raise PolicyError(
            f'{file} has {key!r:.80}, which names files outside of its folder; remove the key: '
            'the files of the folder are found without it'
        )
    if (
        key in ALLOWED_VALUES
        and value is not None
        and value not in _TextChoices(ALLOWED_VALUES[key])
    ):
        raise PolicyError(
            f'{file}: {key} must be {" or ".join(sorted(ALLOWED_VALUES[key])) or "null"}, '
            f'got {value!r:.80}'
        )
    if key == 'tokenizer_class' and value in LATER_TOKENIZERS:
        check_known(str(file), value, LATER_TOKENIZERS[value])
    if isinstance(value, dict):
        for name, each in value.items():
            _check_value(file, name, each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _check_value(file, key, each, depth + 1)


class _TextChoices(frozenset[str]):
    """A set whose `in` returns False for an unhashable value instead of raising."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and super().__contains__(value)


def _check_model(file: Path) -> None:
    """Raise PolicyError unless the sizes of the network are within their limits."""
    config = read_json(file)
    if not isinstance(config, dict) or config.get('model_type') != 'smolvlm':
        raise PolicyError(f'{file} must describe a model of the type smolvlm')
    for part in (config, config.get('text_config', {}), config.get('vision_config', {})):
        if not isinstance(part, dict) or part.get('model_type', 'smolvlm') not in MODELS:
            raise PolicyError(
                f'{file}: its parts must be of the types {", ".join(sorted(MODELS))}'
            )
        for name, value in part.items():
            limit = LAYER_LIMIT if 'layers' in name else NUMBER_LIMIT
            if type(value) in (int, float) and not -NUMBER_LIMIT <= value <= limit:
                raise PolicyError(f'{file}: {name} must be at most {limit}, got {value!r:.40}')
