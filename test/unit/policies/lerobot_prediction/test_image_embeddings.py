# SPDX-License-Identifier: Apache-2.0
"""The cache of image embeddings: what is a hit, its bound in bytes, and what it may not change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from lerobot_serve.policies.base import CacheCounts  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.image_embeddings import (  # noqa: E402
    ImageEmbeddingCache,
)

SIDE = 4
IMAGE_BYTES, EMBEDDING_BYTES = 3 * SIDE * SIDE * 4, SIDE * 4
ENTRY_BYTES = IMAGE_BYTES + EMBEDDING_BYTES


class Encoder(torch.nn.Module):
    """Embeds images as the sums of their columns, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def embed_image(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        weights = torch.arange(1, SIDE + 1, dtype=image.dtype)[:, None]
        return (image * weights).sum(dim=(1, 2))


def images(seed: int, count: int = 1) -> torch.Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def embed(cache: ImageEmbeddingCache, encoder: Encoder, image: torch.Tensor) -> torch.Tensor:
    with cache.installed():
        return encoder.embed_image(image)


def made(limit_bytes: int = 1 << 20) -> tuple[Encoder, ImageEmbeddingCache]:
    encoder = Encoder()
    return encoder, ImageEmbeddingCache(encoder, limit_bytes)


def test_a_repeated_image_is_embedded_once():
    encoder, cache = made()
    first = embed(cache, encoder, images(1))
    assert torch.equal(embed(cache, encoder, images(1)), first)
    assert (encoder.calls, cache.take_counts()) == (1, CacheCounts(hits=1, misses=1))
    assert cache.take_counts() == CacheCounts()


def test_counts_are_of_images():
    encoder, cache = made()
    for _ in range(3):
        embed(cache, encoder, images(1, count=4))
    assert cache.take_counts() == CacheCounts(hits=8, misses=4)


def test_images_with_the_same_checksum_differ():
    encoder, cache = made()
    swapped = images(1)
    swapped[0, 0, [0, 1]] = swapped[0, 0, [1, 0]]
    expected = encoder.embed_image(swapped)
    assert not torch.equal(embed(cache, encoder, images(1)), expected)
    assert torch.equal(embed(cache, encoder, swapped), expected)
    assert cache.take_counts().hits == 0
    # the later one has taken the place
    assert (len(cache), cache.size_bytes) == (1, ENTRY_BYTES)
    embed(cache, encoder, swapped)
    assert cache.take_counts().hits == 1


def changed(image: torch.Tensor) -> torch.Tensor:
    image[0, 0, 0, 0] += 0.5
    return image


ZEROS = torch.zeros(1, 3, SIDE, SIDE)


@pytest.mark.parametrize(
    ('first', 'other'),
    [
        pytest.param(images(1), changed(images(1)), id='one value'),
        pytest.param(ZEROS, -ZEROS, id='the sign of zero'),
        # of equal bits, so that nothing but the key differs
        pytest.param(ZEROS.repeat(2, 1, 1, 1), ZEROS, id='the size of the batch'),
        pytest.param(
            images(1), images(1).contiguous(memory_format=torch.channels_last), id='the strides'
        ),
        pytest.param(
            images(1).bfloat16(), images(1).bfloat16().view(torch.float16), id='the type'
        ),
        pytest.param(images(1), images(1).reshape(1, 3, SIDE * 2, SIDE // 2), id='the shape'),
    ],
)
def test_what_differs_in_any_way_is_no_hit(first, other):
    class AnyShape(Encoder):
        def embed_image(self, image: torch.Tensor) -> torch.Tensor:
            return image.flatten(1).sum(1)

    encoder = AnyShape()
    cache = ImageEmbeddingCache(encoder, 1 << 20)
    for expected in (CacheCounts(0, len(first) + len(other)), None):
        for image in (first, other):
            found = embed(cache, encoder, image)
            assert torch.equal(found, encoder.embed_image(image))
            assert found.dtype == image.dtype
        if expected:
            assert cache.take_counts() == expected


@pytest.mark.parametrize('count', [1, 2, 3])
def test_images_of_any_size_and_place_in_memory_are_found(count):
    class AnyShape(Encoder):
        def embed_image(self, image: torch.Tensor) -> torch.Tensor:
            return image.flatten(1).sum(1)

    encoder = AnyShape()
    cache = ImageEmbeddingCache(encoder, 1 << 20)
    # an odd number of values, and a view that begins in the middle of a word
    for image in (torch.rand(count, 3, 5, 5), torch.rand(1 + count * 48)[1:].view(count, 3, 4, 4)):
        for _ in range(2):
            assert torch.equal(embed(cache, encoder, image), encoder.embed_image(image))
        different = image.clone()
        different.view(-1)[-1] += 1
        assert torch.equal(embed(cache, encoder, different), encoder.embed_image(different))
    assert cache.take_counts() == CacheCounts(hits=2 * count, misses=4 * count)


def test_nan_equals_itself():
    encoder, cache = made()
    image = images(1)
    image[0, 0, 0, 0] = torch.nan
    embed(cache, encoder, image)
    embed(cache, encoder, image.clone())
    assert cache.take_counts() == CacheCounts(hits=1, misses=1)


def test_changes_of_inputs_and_results_do_not_reach_the_cache():
    encoder, cache = made()
    expected, image = encoder.embed_image(images(1)), images(1)
    for _ in range(2):
        # a network may compute in place, on a miss and on a hit
        embed(cache, encoder, image).zero_()
        image.zero_()
        image = images(1)
    assert torch.equal(embed(cache, encoder, images(1)), expected)
    assert cache.take_counts() == CacheCounts(hits=2, misses=1)


def test_the_encoder_is_as_before_after_a_pass_and_after_an_error():
    encoder, cache = made()
    embed(cache, encoder, images(1))
    assert 'embed_image' not in vars(encoder)
    with pytest.raises(RuntimeError, match='of the network'), cache.installed():
        raise RuntimeError('of the network')
    assert 'embed_image' not in vars(encoder)
    embed(cache, encoder, images(1))
    assert cache.take_counts().hits == 1


def test_an_error_of_the_encoder_keeps_nothing():
    encoder, cache = made()
    with pytest.raises(RuntimeError):
        embed(cache, encoder, torch.rand(1, 3, SIDE + 1, SIDE))
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_an_entry_over_the_limit_removes_no_other():
    encoder, cache = made(ENTRY_BYTES)
    embed(cache, encoder, images(1))
    embed(cache, encoder, images(2, count=2))
    embed(cache, encoder, images(1))
    assert cache.take_counts() == CacheCounts(hits=1, misses=3)


def test_the_least_recently_used_goes_first():
    encoder, cache = made(2 * ENTRY_BYTES)
    for seed in (1, 2, 1, 3, 1):
        embed(cache, encoder, images(seed))
    # 2 went when 3 came, since 1 was used after it
    assert cache.take_counts() == CacheCounts(hits=2, misses=3)


def test_clear_removes_all():
    encoder, cache = made()
    embed(cache, encoder, images(1))
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)
    embed(cache, encoder, images(1))
    assert cache.take_counts().hits == 0


calls = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30)


@settings(deadline=None)
@given(calls=calls, limit_bytes=st.integers(0, 8 * ENTRY_BYTES))
def test_no_sequence_exceeds_the_limit_or_changes_an_answer(calls, limit_bytes):
    encoder, cache = made(limit_bytes)
    for seed, count in calls:
        batch = images(seed, count)
        assert torch.equal(embed(cache, encoder, batch), encoder.embed_image(batch))
        entries = cache._entries.values()
        assert cache.size_bytes == sum(entry.size_bytes for entry in entries) <= limit_bytes
        # no entry holds the memory of a larger tensor
        for tensor in (t for e in entries for t in (e.image_bits, e.embedding)):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    counts = cache.take_counts()
    assert counts.hits + counts.misses == sum(count for _, count in calls)
