# SPDX-License-Identifier: Apache-2.0
"""
Draw all random numbers of a prediction from the seeds of its requests.

One request seeds torch's own generator, which belongs to the whole process. While another thread
loads a policy, and draws from that one too, a request has a generator of its own instead, which
gives the same numbers. In a batch each request gets the same numbers as alone: a draw for the
whole batch is split into one part per request, each from its own generator. Inference thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.runtime.loading_beside import another_thread_loads

# draws with a size, draws like a tensor, and draws from the rows of a tensor
SIZED = {torch.randn, torch.rand}
LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
# draws that take a generator, and one of them for all requests
WHOLE = {
    torch.randint,
    torch.randperm,
    torch.bernoulli,
    torch.poisson,
    torch.Tensor.bernoulli,
    torch.Tensor.bernoulli_,
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.random_,
    torch.Tensor.exponential_,
    torch.Tensor.cauchy_,
    torch.Tensor.geometric_,
    torch.Tensor.log_normal_,
}
INDIVISIBLE = {*WHOLE, torch.randint_like, torch.nn.functional.gumbel_softmax}
# in-place draws that make a tensor like another one
FILLS = {torch.randn_like: torch.Tensor.normal_, torch.rand_like: torch.Tensor.uniform_}
WITH_GENERATOR = {
    *SIZED,
    *WHOLE,
    torch.normal,
    torch.multinomial,
    torch.Tensor.multinomial,
}


def seeded_random(
    seeds: Sequence[int], device: torch.device, *, is_compiled: bool = False
) -> AbstractContextManager[Any]:
    """
    Return a context in which random numbers come from these seeds, one per request.

    Within the context, a draw that cannot be divided among several requests raises PolicyError. A
    single request of an `is_compiled` network always seeds torch's own generator: the network
    would be compiled again for another one.
    """
    if len(seeds) == 1:
        # also for a draw that takes no generator
        torch.manual_seed(seeds[0])
        own = another_thread_loads() and not is_compiled
        return _OwnGenerators(seeds[0]) if own else nullcontext()
    return _PerRequestGenerators([torch.Generator(device).manual_seed(seed) for seed in seeds])


class _OwnGenerators(TorchFunctionMode):
    """Draws what torch's own generators would draw after this seed, from others."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get('generator') is None:
            if func in FILLS:
                drawn = torch.empty_like(*args, **kwargs)
                return FILLS[func](drawn, generator=self._of(drawn.device))
            if func in WITH_GENERATOR:
                kwargs = kwargs | {'generator': self._of(_device_of(args, kwargs))}
        return func(*args, **kwargs)

    def _of(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Return the device of a draw: that of its tensor, the given one, or torch's default."""
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.Tensor):
            return each.device
    given = kwargs.get('device')
    device = torch.get_default_device() if given is None else torch.device(given)
    if device.type == 'cuda' and device.index is None:
        # as the tensors on it have it: one generator for both
        return torch.device('cuda', torch.cuda.current_device())
    return device


class _PerRequestGenerators(TorchFunctionMode):
    """Splits each draw along its first dimension, one part per generator."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        super().__init__()
        self._generators = generators

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get('generator') is not None:
            return func(*args, **kwargs)
        if func in SIZED:
            return self._sized(func, _size(args, kwargs), kwargs)
        if func in LIKE:
            return self._like(LIKE[func], args[0], kwargs)
        if func is torch.normal:
            return self._normal(args, kwargs)
        if func in (torch.multinomial, torch.Tensor.multinomial):
            return self._rows(func, args, kwargs)
        if func in INDIVISIBLE:
            raise self._error(func.__name__)
        return func(*args, **kwargs)

    def _sized(
        self, func: Callable[..., Any], size: list[int], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        part = [self._part(func.__name__, size), *size[1:]]
        rest = {name: value for name, value in kwargs.items() if name not in ('size', 'generator')}
        return torch.cat([func(part, generator=each, **rest) for each in self._generators])

    def _like(
        self, func: Callable[..., Any], like: torch.Tensor, kwargs: dict[str, Any]
    ) -> torch.Tensor:
        options = {'dtype': like.dtype, 'device': like.device} | kwargs
        options.pop('memory_format', None)
        return self._sized(func, list(like.shape), options)

    def _normal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        names = dict(zip(('mean', 'std', 'size'), args, strict=False)) | kwargs
        mean, std, size = names.pop('mean', 0.0), names.pop('std', 1.0), names.pop('size', None)
        if size is None:
            raise self._error('normal')
        drawn = self._sized(torch.randn, list(size), names)
        return drawn if (mean, std) == (0.0, 1.0) else drawn * std + mean

    def _rows(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        names = dict(zip(('input', 'num_samples', 'replacement'), args, strict=False)) | kwargs
        names.pop('generator', None)
        weights = names.pop('input')
        if weights.ndim != 2:
            raise self._error(func.__name__)
        parts = weights.split(self._part(func.__name__, list(weights.shape)))
        return torch.cat(
            [
                torch.multinomial(part, generator=each, **names)
                for part, each in zip(parts, self._generators, strict=True)
            ]
        )

    def _part(self, name: str, size: list[int]) -> int:
        """Return the number of rows of a draw for each request. Raises PolicyError."""
        if not size or not size[0] or size[0] % len(self._generators):
            raise self._error(name)
        return size[0] // len(self._generators)

    def _error(self, name: str) -> PolicyError:
        return PolicyError(
            f'the policy draws random numbers with {name} in a way that cannot be divided among '
            f'{len(self._generators)} requests; send each request alone'
        )


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """Return the size argument of randn or rand, in any of its forms."""
    size = kwargs.get('size', args)
    if len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    return list(size)
