# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that mean harm: a text of a caller must neither hold a server up nor end it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip('tokenizers', reason='tokenizers is not installed')

from tokenizers import (  # noqa: E402
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    Regex,
    Tokenizer,
)

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.files.assets import Asset  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint import tokenizer_rules  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.asset_rules import check_asset  # noqa: E402
from lerobot_serve.policies.lerobot.checkpoint.tokenizer_rules import (  # noqa: E402
    check_tokenizer,
    encode_texts,
    try_tokenizers,
)

SPACE, MARK = ' ', '\u2581'
VOCABULARY = {'<unk>': 0, 'a': 1, 'b': 2, 'ab': 3, '<s>': 4, '</s>': 5, '<0x41>': 6}


def pairs() -> models.BPE:
    return models.BPE(VOCABULARY, [('a', 'b')], unk_token='<unk>')


def smolvlm() -> Tokenizer:
    made = Tokenizer(pairs())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(['<|im_start|>'])
    return made


def gemma() -> Tokenizer:
    made = Tokenizer(models.BPE(VOCABULARY, [('a', 'b')], fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(SPACE, MARK)
    made.pre_tokenizer = pre_tokenizers.Split(SPACE, 'merged_with_previous')
    made.post_processor = processors.TemplateProcessing('<s> $A', '<s> $A $B', [('<s>', 4)])
    made.decoder = decoders.Sequence(
        [decoders.Replace(MARK, SPACE), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.enable_padding(pad_id=0, length=8)
    made.enable_truncation(8)
    return made


def llama() -> Tokenizer:
    made = Tokenizer(pairs())
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(SPACE, MARK), normalizers.NFKC()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(MARK)
    made.decoder = decoders.Strip(' ', 1, 0)
    return made


def bart() -> Tokenizer:
    made = Tokenizer(pairs())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.post_processor = processors.RobertaProcessing(('</s>', 5), ('<s>', 4))
    return made


def words() -> Tokenizer:
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token='<unk>'))
    made.pre_tokenizer = pre_tokenizers.Split('', 'isolated')
    return made


def written(folder: Path, tokenizer: Tokenizer, **changes: Any) -> Path:
    file = folder / 'tokenizer.json'
    file.write_text(json.dumps({**json.loads(tokenizer.to_str()), **changes}))
    return file


@pytest.mark.parametrize('build', [smolvlm, gemma, llama, bart, words])
def test_the_tokenizers_of_policies_pass(tmp_path, build):
    file = written(tmp_path, build())
    check_tokenizer(file)
    encode_texts(file.read_bytes(), {})


def with_part(name: str, part: Any) -> Tokenizer:
    made = words()
    setattr(made, name, part)
    return made


def replace(pattern: Any, content: str = 'b') -> dict[str, Any]:
    return {'type': 'Replace', 'pattern': pattern, 'content': content}


def sequence(parts: list[Any]) -> dict[str, Any]:
    return {'type': 'Sequence', 'normalizers': parts}


TEXT = {'String': 'a'}
NORMALIZERS = {
    'a regular expression': replace({'Regex': '(a+)+$'}),
    'a sequence without end': sequence([replace(TEXT)] * 50),
    'a text that grows': sequence([replace({'String': 'q'}, 'qq')]),
    'a character of many': sequence([replace(TEXT), {'type': 'NFKC'}, replace(TEXT)]),
    'a sequence of sequences': sequence([sequence([replace(TEXT)])] * 8),
    'a long replacement': replace(TEXT, 'a' * 64),
    'a replacement between all characters': replace({'String': ''}),
    'two patterns': replace({'String': 'a', 'Regex': '(a+)+$'}),
    'a long prefix': {'type': 'Prepend', 'prepend': 'a' * 64},
    'compiled characters': {'type': 'Precompiled', 'precompiled_charsmap': 'AAAA'},
    'another field': {**replace(TEXT), 'also': 1},
    'a type that is none': {'type': ['Replace']},
    'a text': 'NFC',
}


@pytest.mark.parametrize('part', NORMALIZERS.values(), ids=NORMALIZERS)
def test_a_normalizer_that_a_text_could_keep_busy_is_refused(tmp_path, part):
    with pytest.raises(PolicyError, match='has the normalizer') as refused:
        check_tokenizer(written(tmp_path, words(), normalizer=part))
    assert '\n' not in str(refused.value)


MODEL = json.loads(words().to_str())['model']
OTHERS = {
    'a split by a regular expression': (
        'pre_tokenizer',
        {'type': 'Split', 'pattern': {'Regex': '(a+)+'}, 'behavior': 'Isolated', 'invert': False},
    ),
    'a model of chance': ('model', {'type': 'Unigram', 'unk_id': 0, 'vocab': []}),
    'random merges': ('model', {'type': 'BPE', 'dropout': 0.5, 'vocab': {}, 'merges': []}),
    'a token number': ('model', {**MODEL, 'vocab': {'a': 1 << 40}}),
    'no model': ('model', None),
    'padding to a multiple of nothing': (
        'padding',
        {'strategy': 'BatchLongest', 'direction': 'Right', 'pad_to_multiple_of': 0},
    ),
    'padding without bound': ('padding', {'strategy': {'Fixed': 1 << 40}}),
    'a truncation that overlaps': ('truncation', {'max_length': 2, 'stride': 2}),
    'an empty token': ('added_tokens', [{'id': 1, 'content': ''}]),
    'a template without end': (
        'post_processor',
        {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A', 'type_id': 0}}] * 9999},
    ),
    'a template of a text many times': (
        'post_processor',
        {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A', 'type_id': 0}}] * 2},
    ),
    'characters of bytes of characters': (
        'pre_tokenizer',
        {'type': 'Sequence', 'pretokenizers': [{'type': 'ByteLevel', 'use_regex': False}] * 2},
    ),
    'another part': ('harm', {}),
}


@pytest.mark.parametrize(('name', 'value'), OTHERS.values(), ids=OTHERS)
def test_other_parts_are_refused(tmp_path, name, value):
    with pytest.raises(PolicyError, match=f'has the {name}'):
        check_tokenizer(written(tmp_path, words(), **{name: value}))


@pytest.mark.parametrize(
    ('name', 'value'), [('fast_tokenizer_files', ['tokenizer.1.0.0.json']), ('from_slow', True)]
)
def test_a_configuration_that_chooses_another_file_is_refused(tmp_path, name, value):
    written(tmp_path, words())
    check_asset(Asset('a', tmp_path))
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({name: value}))
    with pytest.raises(PolicyError, match=r'built from another file than tokenizer\.json'):
        check_asset(Asset('a', tmp_path))


def test_a_tokenizer_of_another_file_alone_is_refused(tmp_path):
    (tmp_path / 'tokenizer.model').write_bytes(b'sentences')
    with pytest.raises(PolicyError, match=r'but no tokenizer\.json'):
        check_asset(Asset('a', tmp_path))


def test_a_tokenizer_is_tried_in_a_child_process(tmp_path, monkeypatch):
    """Its rules are left out here: what they do not know must not end a server either."""
    written(tmp_path, words())
    try_tokenizers((Asset('a', tmp_path),))
    regular = with_part('normalizer', normalizers.Replace(Regex(r'(?:a|a)+?(?<=b{0,99})c'), 'b'))
    (tmp_path / 'tokenizer.json').write_text(regular.to_str().replace('Replace', 'Precompiled'))
    with pytest.raises(PolicyError, match=r'tokenizer\.json cannot encode texts'):
        try_tokenizers((Asset('a', tmp_path),))
    monkeypatch.setattr(tokenizer_rules, 'TRIAL_LIMIT_S', 2.0)
    # of a text that is in the file alone
    growing = normalizers.Sequence([normalizers.Replace('"q', '"q' * 9)] * 50)
    written(tmp_path, with_part('normalizer', growing))
    with pytest.raises(PolicyError, match=r'did not finish within 2 s|ended with status'):
        try_tokenizers((Asset('a', tmp_path),))
