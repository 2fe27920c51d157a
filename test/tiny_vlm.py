"""What a tiny SmolVLA needs of a language model: configuration and processor, no weights."""

from __future__ import annotations

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

IMAGE_PIXELS, PATCH_PIXELS, POOLED_PATCHES = 64, 16, 2
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


def build_vlm(folder: Path) -> Path:
    """Write what AutoConfig and AutoProcessor read into a folder and return that."""
    configuration().save_pretrained(folder)
    size = {'longest_edge': IMAGE_PIXELS}
    SmolVLMProcessor(
        SmolVLMImageProcessor(size=size, max_image_size=size),
        tokenizer(),
        SmolVLMVideoProcessor(size=size, max_image_size=size),
        image_seq_len=(IMAGE_PIXELS // PATCH_PIXELS // POOLED_PATCHES) ** 2,
    ).save_pretrained(folder)
    return folder


def configuration() -> SmolVLMConfig:
    text = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        pad_token_id=VOCABULARY[PADDING],
    )
    vision = {
        'hidden_size': 16,
        'intermediate_size': 32,
        'num_hidden_layers': 1,
        'num_attention_heads': 2,
        'image_size': IMAGE_PIXELS,
        'patch_size': PATCH_PIXELS,
    }
    return SmolVLMConfig(
        text_config=text,
        vision_config=vision,
        scale_factor=POOLED_PATCHES,
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
