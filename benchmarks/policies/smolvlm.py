# SPDX-License-Identifier: Apache-2.0
"""
What a SmolVLA needs of a language model: configuration and processor, of any size, no weights.

Its tokens are characters. Imports LeRobot's packages: `lerobot()` of the room policies goes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    LlamaConfig,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

PADDING, UNKNOWN, IMAGE = '<pad>', '<unk>', '<image>'
SPECIAL = {
    'image_token': IMAGE,
    'fake_image_token': '<fake_token_around_image>',
    'global_image_token': '<global-img>',
    'end_of_utterance_token': '<end_of_utterance>',
}
# one token a character: any task is told from any other
CHARACTERS = [chr(code) for code in (10, *range(32, 127))]
TOKENS = [PADDING, UNKNOWN, *SPECIAL.values(), *CHARACTERS]
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model; the defaults are as small as they may be."""

    image_pixels: int = 64
    patch_pixels: int = 16
    pooled_patches: int = 2
    vocabulary: int = len(VOCABULARY)
    hidden: int = 32
    intermediate: int = 64
    layers: int = 2
    heads: int = 2
    key_value_heads: int = 1
    head: int = 16
    vision_hidden: int = 16
    vision_intermediate: int = 32
    vision_layers: int = 1
    vision_heads: int = 2


TINY = Sizes()
# those of SmolVLM2-500M, on which SmolVLA stands
SMOLVLM_500M = Sizes(
    image_pixels=512,
    patch_pixels=16,
    pooled_patches=4,
    vocabulary=49280,
    hidden=960,
    intermediate=2560,
    layers=32,
    heads=15,
    key_value_heads=5,
    head=64,
    vision_hidden=768,
    vision_intermediate=3072,
    vision_layers=12,
    vision_heads=12,
)


def build_vlm(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write what AutoConfig and AutoProcessor read into a folder and return that."""
    configuration(sizes).save_pretrained(folder)
    size = {'longest_edge': sizes.image_pixels}
    SmolVLMProcessor(
        SmolVLMImageProcessor(size=size, max_image_size=size),
        tokenizer(),
        SmolVLMVideoProcessor(size=size, max_image_size=size),
        image_seq_len=(sizes.image_pixels // sizes.patch_pixels // sizes.pooled_patches) ** 2,
    ).save_pretrained(folder)
    return folder


def configuration(sizes: Sizes) -> SmolVLMConfig:
    text = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_value_heads,
        head_dim=sizes.head,
        pad_token_id=VOCABULARY[PADDING],
    )
    vision = {
        'hidden_size': sizes.vision_hidden,
        'intermediate_size': sizes.vision_intermediate,
        'num_hidden_layers': sizes.vision_layers,
        'num_attention_heads': sizes.vision_heads,
        'image_size': sizes.image_pixels,
        'patch_size': sizes.patch_pixels,
    }
    return SmolVLMConfig(
        text_config=text,
        vision_config=vision,
        scale_factor=sizes.pooled_patches,
        image_token_id=VOCABULARY[IMAGE],
        pad_token_id=VOCABULARY[PADDING],
    )


def tokenizer() -> PreTrainedTokenizerFast:
    model = Tokenizer(WordLevel(VOCABULARY, unk_token=UNKNOWN))
    model.pre_tokenizer = Split('', 'isolated')
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        extra_special_tokens=SPECIAL,
    )
