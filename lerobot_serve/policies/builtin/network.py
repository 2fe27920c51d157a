# SPDX-License-Identifier: Apache-2.0
"""
The network of the demo policy: it locates the red disc and predicts a chunk of motion.

Each camera has a small convolutional encoder that ends in a spatial softmax (the coordinates at
which each feature is strongest); a perceptron turns these and the joint positions into the chunk.
All weights, statistics included, are in its state_dict.
"""

from __future__ import annotations

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
