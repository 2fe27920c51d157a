# SPDX-License-Identifier: Apache-2.0
"""
Fit the network of the demo policy to examples, and write its weights. Thread: the one that trains.

Equal networks, examples and batches give equal bits for an equal number of threads, on one kind of
processor: nothing here draws, and nothing depends on time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
import torch

from lerobot_serve.policies.builtin.network import ReachNetwork

WEIGHT_DECAY, LOSS_BETA = 1e-4, 0.1
WEIGHTS_MODE = 0o644


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """
    What the network sees and shall answer: images N x pixels x pixels x 3 (uint8), states N x
    joints, and chunks relative to the state, N x rows x joints. `is_known` marks the rows of the
    chunks that count, N x rows; None for all of them.
    """

    front: torch.Tensor
    wrist: torch.Tensor
    state: torch.Tensor
    offset: torch.Tensor
    is_known: torch.Tensor | None = None


def fit(
    network: ReachNetwork,
    examples: Examples,
    batches: Iterable[torch.Tensor],
    *,
    steps: int,
    learning_rate: float,
    on_step: Callable[[int, float], None],
) -> None:
    """
    Train on `steps` batches of indices. After each step `on_step` gets its number, from 1, and its
    loss; what it raises ends the training.
    """
    targets = (examples.offset - network.offset_mean) / network.offset_std
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for number, chosen in enumerate(batches, 1):
        chunk = network(*(values[chosen] for values in _inputs(examples)))
        loss = _loss(chunk, targets[chosen], examples.is_known, chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        on_step(number, loss.item())


def _inputs(examples: Examples) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return examples.front, examples.wrist, examples.state


def _loss(
    chunk: torch.Tensor,
    target: torch.Tensor,
    is_known: torch.Tensor | None,
    chosen: torch.Tensor,
) -> torch.Tensor:
    if is_known is None:
        return torch.nn.functional.smooth_l1_loss(chunk, target, beta=LOSS_BETA)
    each = torch.nn.functional.smooth_l1_loss(chunk, target, beta=LOSS_BETA, reduction='none')
    counted = is_known[chosen].unsqueeze(2).expand_as(each)
    # each example has its first row at least
    return (each * counted).sum() / counted.sum()


@contextlib.contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Compute with deterministic kernels in a fixed number of threads; process-wide."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def write_weights(network: ReachNetwork, file: Path) -> None:
    """Write the weights, statistics included. Raises OSError."""
    save_file(network.state_dict(), file)
    # save_file makes the file readable by its owner only
    file.chmod(WEIGHTS_MODE)
