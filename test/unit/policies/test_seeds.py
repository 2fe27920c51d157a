# SPDX-License-Identifier: Apache-2.0
"""Random numbers by seed: a batch draws for each request what it would have drawn alone."""

import contextlib

import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.policies.loading import loading_elsewhere  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.runtime.seeds import seeded_random  # noqa: E402

CPU = torch.device('cpu')
WEIGHTS = torch.tensor([[0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
# each draws for a batch of so many requests, two rows a request
DRAWS = {
    'randn, size in words': lambda count: torch.randn(size=(2 * count, 5, 3)),
    'randn, size in numbers': lambda count: torch.randn(2 * count, 40),
    'randn, size as torch.Size': lambda count: torch.randn(torch.Size([2 * count, 4])),
    'randn of another type': lambda count: torch.randn(2 * count, 4, dtype=torch.float64),
    'rand': lambda count: torch.rand((2 * count, 7)),
    'randn_like': lambda count: torch.randn_like(torch.empty(2 * count, 9)),
    'rand_like': lambda count: torch.rand_like(torch.empty(2 * count, 9, dtype=torch.float64)),
    'normal': lambda count: torch.normal(mean=0.0, std=1.0, size=(2 * count, 6)),
    'multinomial': lambda count: torch.multinomial(WEIGHTS.repeat(count, 1), num_samples=1),
    'multinomial of a tensor': lambda count: WEIGHTS.repeat(count, 1).multinomial(
        20, replacement=True
    ),
}


# what one request may draw besides
SINGLE = {
    'normal of tensors': lambda: torch.normal(torch.zeros(9), torch.ones(9)),
    'randn_like of a transposed tensor': lambda: torch.randn_like(torch.empty(3, 7).T),
    'randint': lambda: torch.randint(99, (20,)),
    'randperm': lambda: torch.randperm(40),
    'in place': lambda: torch.zeros(20).uniform_() + torch.zeros(20).normal_(),
    'bernoulli': lambda: torch.bernoulli(torch.full((40,), 0.5)),
    'a distribution': lambda: torch.distributions.Normal(0.0, 1.0).sample((20,)),
}


def draw(name, seeds, times=2):
    with seeded_random(seeds, CPU):
        return [DRAWS[name](len(seeds)) for _ in range(times)]


@pytest.mark.parametrize('name', DRAWS)
@given(seeds=st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=5))
def test_a_batch_draws_what_each_would_alone(name, seeds):
    together = draw(name, seeds)
    for number, seed in enumerate(seeds):
        for batch, single in zip(together, draw(name, [seed]), strict=True):
            part = batch[2 * number : 2 * number + 2]
            assert part.dtype == single.dtype
            assert torch.equal(part, single)


def test_another_mean_is_the_same_but_for_rounding():
    def values(count):
        return torch.normal(2.0, 3.0, (2 * count, 6))

    with seeded_random([1, 2], CPU):
        together = values(2)
    with seeded_random([2], CPU):
        single = values(1)
    assert torch.allclose(together[2:], single)


@pytest.mark.parametrize('name', [*DRAWS, *SINGLE])
def test_a_load_in_another_thread_changes_no_number_of_a_request(name):
    work = SINGLE.get(name) or (lambda: DRAWS[name](1))

    def drawn(disturb):
        values = []
        with seeded_random([7], CPU):
            for _ in range(3):
                values.append(work())
                disturb()
        return values

    def disturb():
        # what a network does that is built meanwhile
        torch.default_generator.manual_seed(1)
        torch.nn.init.normal_(torch.empty(5), generator=torch.default_generator)

    alone = drawn(lambda: None)
    with loading_elsewhere():
        beside = drawn(disturb)
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_a_compiled_network_keeps_the_generator_that_it_was_compiled_with():
    with loading_elsewhere():
        assert isinstance(seeded_random([7], CPU, is_compiled=True), contextlib.nullcontext)


def test_seeds_hold_for_the_context_only():
    draw('randn, size in numbers', [1, 2])
    torch.manual_seed(5)
    before = torch.randn(4, 3)
    torch.manual_seed(5)
    assert torch.equal(before, torch.randn(4, 3))


def test_a_generator_of_its_own_is_left_alone():
    with seeded_random([1, 2], CPU):
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(7))
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(7)))


@pytest.mark.parametrize(
    'undivided',
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 4),
        lambda: torch.multinomial(WEIGHTS[0], 1),
        lambda: torch.normal(torch.zeros(2), torch.ones(2)),
        lambda: torch.randint(5, (2,)),
        lambda: torch.randperm(4),
        lambda: torch.zeros(2).uniform_(),
        lambda: torch.bernoulli(WEIGHTS),
        lambda: torch.nn.functional.gumbel_softmax(WEIGHTS),
    ],
)
def test_a_draw_that_cannot_be_divided_is_refused(undivided):
    with seeded_random([1, 2], CPU), pytest.raises(PolicyError, match='cannot be divided among 2'):
        undivided()
    with seeded_random([1], CPU):
        undivided()
