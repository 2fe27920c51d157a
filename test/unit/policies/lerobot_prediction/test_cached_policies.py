# SPDX-License-Identifier: Apache-2.0
"""Policies with a cache of image embeddings predict what they predict without one, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import (  # noqa: E402
    copy_of,
    folder_of,
    loading,
    requests_for,
    set_json,
)
from support.policies.tiny_policies import build  # noqa: E402

from lerobot_serve.policies.base import (  # noqa: E402
    CacheCounts,
    CachingPolicy,
    ClosablePolicy,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.lerobot.compat import suppress_output  # noqa: E402
from lerobot_serve.policies.lerobot.description import NO_CACHE_NOTE  # noqa: E402
from lerobot_serve.policies.lerobot.loader import load  # noqa: E402
from lerobot_serve.policies.lerobot.policy_types import POLICY_TYPES  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.image_embeddings import (  # noqa: E402
    ImageEmbeddingCache,
)
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy  # noqa: E402

pytestmark = pytest.mark.slow

# SmolVLA's input of one camera and its embedding are 50 kB: room for all, and for few
AMPLE_BYTES, SCARCE_BYTES = 16 << 20, 160_000
CAMERAS = ('front', 'wrist')
SCENES, STATES = 3, 2
# two of equal length: tasks of other lengths have other shapes, and are no batch
TASKS = ('pick', 'push', 'place')


def caching(kind: str = 'smolvla', cache_bytes: int = AMPLE_BYTES) -> LeRobotPolicy:
    return load(loading(folder_of(kind), embedding_cache_bytes=cache_bytes))


@cache
def smolvla(cache_bytes: int = 0) -> LeRobotPolicy:
    return caching(cache_bytes=cache_bytes)


def answers(policy: LeRobotPolicy, requests: list[PolicyRequest]) -> list[tuple[bytes, bytes]]:
    return [as_bytes(each) for each in policy.predict(requests)]


def as_bytes(prediction: Prediction) -> tuple[bytes, bytes]:
    return prediction.model.tobytes(), prediction.robot.tobytes()


@cache
def scenes() -> list[PolicyRequest]:
    """Return requests, each with its images and state."""
    return requests_for(smolvla(), SCENES)


@dataclass(frozen=True)
class Draw:
    """One request of a sequence; the numbers are of scenes."""

    front: int
    wrist: int
    state: int
    task: str
    prefix_rows: int
    seed: int

    def request(self, session: int) -> PolicyRequest:
        drawn = zip(CAMERAS, (self.front, self.wrist), strict=True)
        key = 'observation.images.{}'.format
        frames = {key(name): scenes()[number].images[key(name)] for name, number in drawn}
        rows = np.linspace(-1, 1, self.prefix_rows * 6, dtype=np.float32).reshape(-1, 6)
        return PolicyRequest(
            f'session {session}',
            scenes()[self.state].state,
            frames,
            task=self.task,
            episode_start=True,
            seed=self.seed,
            prefix_model=rows,
            prefix_robot=rows,
            inference_delay_steps=min(1, self.prefix_rows),
        )


draws = st.builds(
    Draw,
    front=st.integers(0, SCENES - 1),
    wrist=st.integers(0, SCENES - 1),
    state=st.integers(0, STATES - 1),
    task=st.sampled_from(TASKS),
    prefix_rows=st.sampled_from([0, 0, 4]),
    seed=st.integers(0, 1),
)
sequences = st.lists(st.lists(draws, min_size=1, max_size=4), min_size=2, max_size=5)


@settings(deadline=None, max_examples=15)
@given(sequence=sequences, cache_bytes=st.sampled_from([AMPLE_BYTES, SCARCE_BYTES]))
def test_no_sequence_of_requests_changes_an_answer(sequence, cache_bytes):
    plain, cached = smolvla(), smolvla(cache_bytes)
    for batch in sequence:
        requests = [draw.request(number) for number, draw in enumerate(batch)]
        assert answers(cached, requests) == answers(plain, requests)


@pytest.mark.parametrize('change', ['task', 'state', 'one image', 'prefix', 'seed', 'neighbour'])
def test_a_change_of_any_input_changes_the_answer_as_without_a_cache(change):
    plain, cached = smolvla(), caching()
    base = Draw(0, 0, 0, 'pick', 0, 0)
    changed = {
        'task': replace(base, task='push'),
        'state': replace(base, state=1),
        'one image': replace(base, wrist=1),
        'prefix': replace(base, prefix_rows=4),
        'seed': replace(base, seed=1),
        'neighbour': base,
    }[change]
    neighbour = Draw(1 if change == 'neighbour' else 2, 2, 1, 'push', 0, 1)
    first = [base.request(0), Draw(2, 2, 1, 'push', 0, 1).request(1)]
    second = [changed.request(0), neighbour.request(1)]
    assert answers(cached, first) == answers(plain, first)
    repeated = answers(cached, second)
    assert repeated == answers(plain, second)
    # the input matters to the network at all
    assert repeated != answers(plain, first)


def test_an_unchanged_camera_is_embedded_once():
    policy = caching()
    policy.take_cache_counts()
    still = Draw(0, 0, 0, 'pick', 0, 0)
    policy.predict([still.request(0)])
    assert policy.take_cache_counts() == CacheCounts(hits=0, misses=2)
    # the other camera, state, task and prefix have changed
    policy.predict([replace(still, wrist=1, state=1, task='place', prefix_rows=4).request(0)])
    assert policy.take_cache_counts() == CacheCounts(hits=1, misses=1)
    # a batch is another input, even of images that are known
    policy.predict([still.request(0), still.request(1)])
    assert policy.take_cache_counts() == CacheCounts(hits=0, misses=4)


def test_policies_of_other_weights_share_nothing(tmp_path):
    folder = tmp_path / 'other'
    with suppress_output():
        build('smolvla', folder, seed=1)
    plain = load(loading(folder))
    cached = load(loading(folder, embedding_cache_bytes=AMPLE_BYTES))
    requests = [Draw(0, 1, 0, 'pick', 0, 0).request(0)]
    first = answers(smolvla(AMPLE_BYTES), requests)
    other = answers(cached, requests)
    assert other == answers(plain, requests) != first
    assert answers(smolvla(AMPLE_BYTES), requests) == first
    cached.take_cache_counts()
    cached.predict(requests)
    assert cached.take_cache_counts() == CacheCounts(hits=2, misses=0)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_so_it_is_in_another_precision(dtype):
    given = loading(folder_of('smolvla'), dtype=dtype)
    plain, cached = load(given), load(replace(given, embedding_cache_bytes=AMPLE_BYTES))
    requests = [Draw(0, 1, 0, 'pick', 0, 0).request(0)]
    for _ in range(2):
        assert answers(cached, requests) == answers(plain, requests)
    assert cached.take_cache_counts().hits


def test_an_unloaded_policy_keeps_no_embeddings():
    policy = caching()
    assert isinstance(policy, ClosablePolicy)
    assert isinstance(policy, CachingPolicy)
    policy.predict([Draw(0, 1, 0, 'pick', 0, 0).request(0)])
    kept = policy._image_cache
    assert kept.size_bytes > 0
    policy.close()
    assert (len(kept), kept.size_bytes) == (0, 0)


def test_without_the_parameter_and_without_an_image_encoder_there_is_no_cache():
    for policy in (smolvla(), caching('act')):
        assert policy._image_cache is None
        assert policy.describe().embedding_cache_bytes == 0
        assert policy.take_cache_counts() == CacheCounts()
        policy.close()
    assert smolvla(AMPLE_BYTES).describe().embedding_cache_bytes == AMPLE_BYTES
    assert {name for name, kind in POLICY_TYPES.items() if kind.image_encoder} == {
        'smolvla',
        'pi0',
        'pi05',
    }


def test_a_compiled_network_has_a_note_and_no_cache(tmp_path, monkeypatch):
    folder = copy_of('smolvla', tmp_path)
    set_json(folder / 'config.json', compile_model=True)
    # as if compiled: that takes minutes
    monkeypatch.setattr(torch, 'compile', lambda function, **_: function)
    description = load(loading(folder, embedding_cache_bytes=AMPLE_BYTES)).describe()
    assert description.embedding_cache_bytes == 0
    assert NO_CACHE_NOTE in description.notes
    assert NO_CACHE_NOTE not in load(loading(folder)).describe().notes


# Pi0 and Pi0.5 need LeRobot's own build of transformers: their own code around the encoder runs
# here, with a small encoder in its place


class SmallEncoder(torch.nn.Module):
    """Stands for PaliGemma: a convolution for its vision encoder, and an embedding of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 8, kernel_size=8, stride=8)
        self.tokens = torch.nn.Embedding(10, 8)
        self.calls = 0

    def embed_image(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.patches(image).flatten(2).transpose(1, 2)

    def embed_language_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens)


def pi_policy(kind: str) -> Any:
    """Return the part of a Pi0 or Pi0.5 that embeds a prefix."""
    if kind == 'pi0':
        from lerobot.policies.pi0.modeling_pi0 import PI0Policy as Policy
        from lerobot.policies.pi0.modeling_pi0 import PI0Pytorch as Network
    else:
        from lerobot.policies.pi05.modeling_pi05 import PI05Policy as Policy
        from lerobot.policies.pi05.modeling_pi05 import PI05Pytorch as Network
    policy, network = Policy.__new__(Policy), Network.__new__(Network)
    for module in (policy, network):
        torch.nn.Module.__init__(module)
    network.paligemma_with_expert = SmallEncoder()
    network.gradient_checkpointing_enabled = False
    policy.model = network
    features = [f'observation.images.{name}' for name in (*CAMERAS, 'missing')]
    policy.config = SimpleNamespace(image_features=features, image_resolution=(32, 32))
    return policy.requires_grad_(False)


def prefix_embeddings(policy: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    images, masks = policy._preprocess_images(batch)
    tokens = torch.arange(4).expand(len(masks[0]), -1)
    return policy.model.embed_prefix(images, masks, tokens, torch.ones_like(tokens).bool())[0]


@pytest.mark.parametrize('kind', ['pi0', 'pi05'])
def test_the_hook_fits_pi0_and_pi05(kind):
    policy = pi_policy(kind)
    encoder = policy.get_submodule(POLICY_TYPES[kind].image_encoder)
    kept = ImageEmbeddingCache(encoder, AMPLE_BYTES)
    draw = torch.Generator().manual_seed(0)
    batch = {
        f'observation.images.{name}': torch.rand(2, 3, 24, 32, generator=draw) for name in CAMERAS
    }
    expected = prefix_embeddings(policy, batch)
    for hits, misses in ((0, 6), (6, 0)):
        with kept.installed():
            assert torch.equal(prefix_embeddings(policy, batch), expected)
        assert kept.take_counts() == CacheCounts(hits, misses)
    batch['observation.images.wrist'] = batch['observation.images.wrist'].flip(-1)
    expected, encoder.calls = prefix_embeddings(policy, batch), 0
    with kept.installed():
        assert torch.equal(prefix_embeddings(policy, batch), expected)
    # the image that stands for a missing camera never changes
    assert (encoder.calls, kept.take_counts()) == (1, CacheCounts(hits=4, misses=2))
