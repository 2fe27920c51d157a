# SPDX-License-Identifier: Apache-2.0
"""
Rules for tokenizer.json, which decides what a tokenizer does with the text of each caller.

The parts of a tokenizer are chosen by the file. Those that the tokenizers of LeRobot's policies
have (SmolVLM2, PaliGemma, BART, and words of a list) are allowed, without regular expressions,
which a text can keep busy without end, and with nothing that multiplies a text: a replacement is
no longer than what it replaces, a template takes each text once, and a sequence has one part of a
type, since even those of Unicode make some texts longer. A child process then encodes some texts,
since the library ends its thread for files that it did not expect. No torch, any thread.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import math
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.assets import Asset
from lerobot_serve.policies.files.file_headers import read_json
from lerobot_serve.policies.lerobot.checkpoint.value_rules import (
    FLAG,
    integer_range,
    one_of,
    optional,
)
from lerobot_serve.policies.runtime.trial import try_in_child

TOKENIZER_FILE = 'tokenizer.json'
FILE_LIMIT_BYTES = 64 << 20
TOKEN_LIMIT, NUMBER_LIMIT, PARTS_LIMIT = 1 << 22, 1 << 16, 8
# of a text that replaces another one, and of a token
REPLACEMENT_LIMIT, TEXT_LIMIT = 4, 256
TRIAL_LIMIT_S, COPY_COUNT = 60.0, 8
TRIAL_TEXTS = (
    '',
    'pick up the red cube\n',
    ' '.join(map(chr, range(1, 0x250))),
    'é漢字\U0001f600\u200d\u0301',
    'a' * 4096,
    ' ' * 4096,
    '9' * 512,
)
# of a part, in the JSON of a file
PATTERN = re.compile(rb'"String":\s*"((?:[^"\\]|\\.)*)"')
Check = Callable[[Any], bool]
_is_flag, _is_nothing = FLAG.is_valid, one_of(None, False).is_valid
_is_number = integer_range(0, NUMBER_LIMIT).is_valid
_is_token = integer_range(0, TOKEN_LIMIT - 1).is_valid
_is_size = optional(integer_range(1, NUMBER_LIMIT)).is_valid


def _text_of(limit: float) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= limit


_is_text, _is_replacement = _text_of(TEXT_LIMIT), _text_of(REPLACEMENT_LIMIT)
_is_string = _text_of(math.inf)


def _is_text_or_nothing(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_pattern(value: Any) -> bool:
    """Return whether this is a text that is looked for as it is."""
    return isinstance(value, dict) and value.keys() == {'String'} and _is_text(value['String'])


def _is_longer(part: dict[str, Any]) -> bool:
    """Return whether a part replaces a text by a longer one; an empty one is found everywhere."""
    return 'pattern' in part and len(part.get('content', '')) > len(part['pattern']['String'])


def _is_vocabulary(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_token, value.values()))


def _is_merges(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_string(each)
        or (isinstance(each, list) and len(each) == 2 and all(map(_is_string, each)))
        for each in value
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_text(value[0])


def _template_of(texts: int) -> Check:
    """Return whether the pieces of a template are few, and no more than these are texts."""

    def check(value: Any) -> bool:
        pieces = str(value)[: 1 << 16]
        return (
            isinstance(value, list | dict)
            and len(pieces) < 1 << 14
            and pieces.count("'Sequence'") <= texts
        )

    return check


def _any_of(*choices: str) -> Check:
    return one_of(*choices).is_valid


def _list_of(rules: dict[str, Check]) -> Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) <= NUMBER_LIMIT
        and all(isinstance(each, dict) and _fits(each, rules) for each in value)
    )


def _fits(values: dict[str, Any], rules: dict[str, Check]) -> bool:
    return all(name in rules and rules[name](value) for name, value in values.items())


DIRECTION = _any_of('Left', 'Right')
SPACING: dict[str, Check] = {'add_prefix_space': _is_flag, 'trim_offsets': _is_flag}
METASPACE: dict[str, Check] = {
    'replacement': _is_replacement,
    'add_prefix_space': _is_flag,
    'prepend_scheme': _any_of('always', 'never', 'first'),
    'split': _is_flag,
}
BYTE_LEVEL: dict[str, Check] = {**SPACING, 'use_regex': _is_flag}
REPLACE: dict[str, Check] = {'pattern': _is_pattern, 'content': _is_replacement}
STRIP: dict[str, Check] = {'content': _is_text, 'start': _is_number, 'stop': _is_number}
# part -> type -> its fields; a Sequence holds parts of the other types
PARTS: dict[str, dict[str, dict[str, Check]]] = {
    'normalizer': {
        'Replace': REPLACE,
        'Prepend': {'prepend': _is_replacement},
        **{name: {} for name in ('NFC', 'NFKC', 'Lowercase')},
        'Strip': {'strip_left': _is_flag, 'strip_right': _is_flag},
    },
    'pre_tokenizer': {
        'ByteLevel': BYTE_LEVEL,
        'Digits': {'individual_digits': _is_flag},
        'Metaspace': METASPACE,
        'Split': {
            'pattern': _is_pattern,
            'behavior': _any_of(
                *('Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous')
            ),
            'invert': _is_flag,
        },
    },
    'post_processor': {
        'ByteLevel': BYTE_LEVEL,
        'RobertaProcessing': {**SPACING, 'sep': _is_pair, 'cls': _is_pair},
        'TemplateProcessing': {
            'single': _template_of(1),
            'pair': _template_of(2),
            'special_tokens': _template_of(0),
        },
    },
    'decoder': {
        'ByteLevel': BYTE_LEVEL,
        'ByteFallback': {},
        'Fuse': {},
        'Metaspace': METASPACE,
        'Replace': REPLACE,
        'Strip': STRIP,
    },
    'model': {
        'BPE': {
            'dropout': _is_nothing,
            **dict.fromkeys(
                ('unk_token', 'continuing_subword_prefix', 'end_of_word_suffix'),
                _is_text_or_nothing,
            ),
            **dict.fromkeys(('fuse_unk', 'byte_fallback', 'ignore_merges'), _is_flag),
            'vocab': _is_vocabulary,
            'merges': _is_merges,
        },
        'WordLevel': {'vocab': _is_vocabulary, 'unk_token': _is_text_or_nothing},
    },
}
SEQUENCES = {
    'normalizer': 'normalizers',
    'pre_tokenizer': 'pretokenizers',
    'post_processor': 'processors',
    'decoder': 'decoders',
}
ADDED_TOKEN: dict[str, Check] = {
    'id': _is_token,
    'content': lambda value: _is_text(value) and bool(value),
    **dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), _is_flag),
}
TRUNCATION: dict[str, Check] = {
    'direction': DIRECTION,
    'max_length': _is_size,
    'strategy': _any_of('LongestFirst', 'OnlyFirst', 'OnlySecond'),
    'stride': lambda value: value == 0,
}
PADDING: dict[str, Check] = {
    'strategy': lambda value: value == 'BatchLongest'
    or (isinstance(value, dict) and value.keys() == {'Fixed'} and _is_number(value['Fixed'])),
    'direction': DIRECTION,
    'pad_to_multiple_of': _is_size,
    'pad_id': _is_number,
    'pad_type_id': _is_number,
    'pad_token': _is_text,
}
OTHERS: dict[str, Check] = {
    'version': _any_of('1.0'),
    'added_tokens': _list_of(ADDED_TOKEN),
    'truncation': lambda value: value is None
    or (isinstance(value, dict) and _fits(value, TRUNCATION)),
    'padding': lambda value: value is None or (isinstance(value, dict) and _fits(value, PADDING)),
}


def check_tokenizer(file: Path) -> None:
    """Raise PolicyError for a tokenizer.json with other parts than policies need."""
    values = read_json(file, FILE_LIMIT_BYTES)
    if not isinstance(values, dict):
        raise PolicyError(f'{file} is not a tokenizer; copy it again')
    for name, value in values.items():
        if name in PARTS:
            _check_part(file, name, value)
        elif name not in OTHERS or not OTHERS[name](value):
            raise _refusal(file, name, value)
    if not isinstance(values.get('model'), dict):
        raise _refusal(file, 'model', None)


def _check_part(file: Path, name: str, value: Any) -> None:
    if value is None:
        return
    parts: Any = [value]
    if isinstance(value, dict) and value.get('type') == 'Sequence' and name in SEQUENCES:
        parts = value.get(SEQUENCES[name])
        if not isinstance(parts, list) or len(parts) > PARTS_LIMIT or len(value) > 2:
            raise _refusal(file, name, value)
    for part in parts:
        # early files name no type of a model
        kind = part.get('type', 'BPE' if name == 'model' else '') if isinstance(part, dict) else ''
        rules = PARTS[name].get(kind) if isinstance(kind, str) else None
        if rules is None or not _fits(part, {'type': _is_text, **rules}) or _is_longer(part):
            raise _refusal(file, name, part)
    # two ByteLevel double a text, as do two Metaspace; a Replace between two NFKC does far more
    if len(parts) > len({part.get('type') for part in parts}):
        raise _refusal(file, name, value)


def _refusal(file: Path, name: str, value: Any) -> PolicyError:
    shown = {k: v for k, v in value.items() if k != 'vocab'} if isinstance(value, dict) else value
    return PolicyError(
        f'{file} has the {name} {shown!r:.120}, which no tokenizer of a supported policy has: '
        f'allowed are {", ".join(PARTS.get(name, OTHERS))}, without regular expressions and with '
        'replacements that are not longer; use the tokenizer that the policy was trained with'
    )


def try_tokenizers(assets: tuple[Asset, ...]) -> None:
    """Encode some texts with each tokenizer in a child process. Raises PolicyError."""
    for asset in assets:
        file = asset.folder / TOKENIZER_FILE
        if not file.is_file():
            continue
        data = file.read_bytes()
        error = try_in_child(
            __spec__.name,
            encode_texts.__name__,
            {},
            data,
            data_bytes=COPY_COUNT * len(data),
            limit_s=TRIAL_LIMIT_S,
        )
        if error:
            raise PolicyError(f'{file} cannot encode texts: {error}; use another tokenizer')


def encode_texts(data: bytes, _: dict[str, Any]) -> None:
    """Encode TRIAL_TEXTS in the trial process. Raises any error of the library."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(data)
    replaced = ' '.join(json.loads(f'"{pattern.decode()}"') for pattern in PATTERN.findall(data))
    for text in (*TRIAL_TEXTS, replaced, replaced * 512):
        tokenizer.encode(text)
