# SPDX-License-Identifier: Apache-2.0
"""
The network of the demo policy: it locates the red disc and predicts a chunk of motion.

Each camera has a small convolutional encoder that ends in a spatial softmax (the coordinates at
which each feature is strongest); a perceptron turns these and the joint positions into the chunk.
All weights, statistics included, are in its state_dict.

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
from torch import nn, Tensor

from lerobot_serve.policies.builtin.settings import ReachSizes


class CameraEncoder(nn.Module):
    """Encode one camera: N x 3 x pixels x pixels in [0, 1] to N x features."""

    def __init__(self, channels: tuple[int, int]) -> None:
        super().__init__()
        first, second = channels
        self.features = 3 * second
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, first, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1),
        )
        self.sharpness = nn.Parameter(torch.ones(second))

    def forward(self, images: Tensor) -> Tensor:
        """Return the peak of each channel: column and row in [-1, 1], and its strength."""
        maps = self.convolutions(images)
        along = torch.linspace(-1, 1, maps.shape[-1], device=maps.device)
        weights = (maps * self.sharpness[:, None, None]).flatten(2).softmax(2).view_as(maps)
        column = (weights.sum(2) * along).sum(2)
        row = (weights.sum(3) * along).sum(2)
        # without the disc in view the peak is low, at an arbitrary position
        peak = torch.tanh(maps.flatten(2).amax(2))
        return torch.cat((column, row, peak), 1)


class ReachNetwork(nn.Module):
    """Map both cameras and the state to one normalised chunk, N x rows x joints. Any thread."""

    state_mean: Tensor
    state_std: Tensor
    offset_mean: Tensor
    offset_std: Tensor

    def __init__(self, joints: int, rows: int, sizes: ReachSizes) -> None:
        super().__init__()
        self.joints, self.rows, self.sizes = joints, rows, sizes
        self.front, self.wrist = CameraEncoder(sizes.channels), CameraEncoder(sizes.channels)
        seen = self.front.features + self.wrist.features + joints
        self.perceptron = nn.Sequential(
            nn.Linear(seen, sizes.hidden),
            nn.ReLU(),
            nn.Linear(sizes.hidden, sizes.hidden),
            nn.ReLU(),
            nn.Linear(sizes.hidden, rows * joints),
        )
        for name in ('state_mean', 'state_std', 'offset_mean', 'offset_std'):
            self.register_buffer(name, torch.zeros(joints))

    def forward(self, front: Tensor, wrist: Tensor, state: Tensor) -> Tensor:
        """Return the chunk for images N x pixels x pixels x 3 (uint8, RGB), states N x joints."""
        seen = torch.cat(
            (
                self.front(_scaled(front)),
                self.wrist(_scaled(wrist)),
                (state - self.state_mean) / self.state_std,
            ),
            1,
        )
        chunk: Tensor = self.perceptron(seen)
        return chunk.view(-1, self.rows, self.joints)

    def to_robot(self, chunk: Tensor, state: Tensor) -> Tensor:
        """Return a normalised chunk as absolute joint positions in radians."""
        return state[:, None] + chunk * self.offset_std + self.offset_mean


def _scaled(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


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
