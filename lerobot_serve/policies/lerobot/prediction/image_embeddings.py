# SPDX-License-Identifier: Apache-2.0
"""
Reuse the embeddings of camera images that a network has embedded before. Inference thread.

The vision encoder of SmolVLA, Pi0 and Pi0.5 is a function of its images alone: task, state, prefix
and noise come in after it. A repeated input has the embedding that the network computed for it,
and is compared bit by bit, so that an answer never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lerobot_serve.policies.base import CacheCounts

Embed = Callable[[torch.Tensor], torch.Tensor]
WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class InputKey:
    """
    Key of an input: whatever may choose another kernel, and a checksum of the values.

    A batch is one input. Kernels depend on the size of a batch, so that an image alone may differ
    in the last bit from the same image in a batch.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    checksum: int


@dataclass(frozen=True, slots=True, eq=False)
class CachedEmbedding:
    """An embedding, and the bits of the images that it is of."""

    image_bits: torch.Tensor
    embedding: torch.Tensor

    @property
    def size_bytes(self) -> int:
        return self.image_bits.nbytes + self.embedding.nbytes


class ImageEmbeddingCache:
    """
    The embeddings of one encoder, at most `limit_bytes`; the least recently used one is removed.

    `encoder` is the module whose `embed_image` the network calls once for each camera.
    """

    def __init__(self, encoder: Any, limit_bytes: int) -> None:
        self._encoder = encoder
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[InputKey, CachedEmbedding] = OrderedDict()
        self._hits = self._misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """
        Let the network use the cache. Only for the time of a forward pass: an encoder that refers
        to its cache for good would be a cycle, which keeps the memory of an unloaded policy.
        """
        self._encoder.embed_image = partial(self._embed, self._encoder.embed_image)
        try:
            yield
        finally:
            del self._encoder.embed_image

    def take_counts(self) -> CacheCounts:
        """Return the images found and not found since the last call."""
        counts = CacheCounts(self._hits, self._misses)
        self._hits = self._misses = 0
        return counts

    def clear(self) -> None:
        """Remove all embeddings."""
        self._entries.clear()
        self.size_bytes = 0

    def _embed(self, embed: Embed, images: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of a batch of images of one camera."""
        bits = image_bits(images)
        key = InputKey(images.shape, images.stride(), images.dtype, int(bits.sum()))
        found = self._entries.get(key)
        # images of equal checksum may differ; the later one takes the place
        if found and torch.equal(found.image_bits, bits):
            self._hits += len(images)
            self._entries.move_to_end(key)
            # a copy: the network may change what it gets
            return found.embedding.clone()
        self._misses += len(images)
        embedding = embed(images)
        self._keep(key, CachedEmbedding(bits.clone(), embedding.clone()))
        return embedding

    def _keep(self, key: InputKey, entry: CachedEmbedding) -> None:
        """Keep an entry unless it exceeds the limit alone."""
        self._remove(key)
        if entry.size_bytes > self.limit_bytes:
            return
        while self.size_bytes + entry.size_bytes > self.limit_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[key] = entry
        self.size_bytes += entry.size_bytes

    def _remove(self, key: InputKey) -> None:
        if removed := self._entries.pop(key, None):
            self.size_bytes -= removed.size_bytes


def image_bits(images: torch.Tensor) -> torch.Tensor:
    """
    Return the values as integers, so that -0.0 and 0.0 differ and NaN equals itself. Whole words,
    where they fit, are summed up and compared several times as fast as bytes.
    """
    values = images.contiguous().flatten()
    start_bytes = values.storage_offset() * values.element_size()
    in_words = values.nbytes % WORD_BYTES == start_bytes % WORD_BYTES == 0
    return values.view(torch.int64 if in_words else torch.uint8)
