# SPDX-License-Identifier: Apache-2.0
"""Fitting the network of the demo policy: bits that repeat, and rows that do not count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from lerobot_serve.policies.builtin.fitting import (  # noqa: E402
    Examples,
    fit,
    reproducible,
    write_weights,
)
from lerobot_serve.policies.builtin.network import ReachNetwork, ReachSizes  # noqa: E402

ROWS, COUNT, STEPS = 4, 6, 3


def examples(known=None, offset_of_unknown=0.0) -> Examples:
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, COUNT, 8, 8, 3), dtype=torch.uint8, generator=draw)
    offset = torch.rand((COUNT, ROWS, 2), generator=draw)
    if known is not None:
        offset[~known] = offset_of_unknown
    return Examples(images[0], images[1], torch.rand((COUNT, 2), generator=draw), offset, known)


def fitted(given: Examples) -> dict:
    torch.manual_seed(2)
    network = ReachNetwork(ReachSizes(2, ROWS, 8, (2, 3), 5))
    network.state_std[:], network.offset_std[:] = 1.0, 1.0
    losses = []
    batches = torch.tensor([0, 1, 2, 3, 4, 5, 0, 3, 5]).split(COUNT // 2)
    with reproducible(1):
        fit(
            network,
            given,
            batches,
            steps=STEPS,
            learning_rate=0.01,
            on_step=lambda number, loss: losses.append((number, loss)),
        )
    assert [number for number, _ in losses] == [1, 2, 3]
    return {'losses': torch.tensor(losses), **network.state_dict()}


def same(first: dict, second: dict) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_examples_give_the_same_bits():
    assert same(fitted(examples()), fitted(examples()))


def test_what_is_not_known_does_not_count():
    known = torch.ones((COUNT, ROWS), dtype=torch.bool)
    known[::2, 2:] = False
    first, second = (fitted(examples(known, offset)) for offset in (0.0, 100.0))
    assert same(first, second)
    known[1, 3] = False
    assert not same(first, fitted(examples(known)))


def test_all_known_is_as_without_a_mask():
    known = torch.ones((COUNT, ROWS), dtype=torch.bool)
    first, second = fitted(examples()), fitted(examples(known))
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_weights_are_readable_by_others(tmp_path):
    network = ReachNetwork(ReachSizes(2, ROWS, 8, (2, 3), 5))
    write_weights(network, tmp_path / 'model.safetensors')
    assert (tmp_path / 'model.safetensors').stat().st_mode & 0o777 == 0o644
