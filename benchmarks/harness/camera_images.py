# SPDX-License-Identifier: Apache-2.0
"""Camera pictures for measurements: what the simulated arm sees, with the noise of a sensor."""

from __future__ import annotations

import numpy as np

from lerobot_serve.sim.cameras import NAMES, render

POSITIONS = np.array([0.0, 0.4, -0.6], np.float32)
TARGET_XY = (0.15, 0.1)
NOISE = 2.0


def camera_images(height: int, width: int) -> dict[str, np.ndarray]:
    """Return one frame for each camera, RGB; the same in every run. Any thread."""
    generator = np.random.default_rng(1)
    frames = {}
    for name in NAMES:
        seen = render(name, height, width, POSITIONS, TARGET_XY)
        noisy = seen + generator.normal(0, NOISE, seen.shape)
        frames[f'observation.images.{name}'] = np.clip(noisy, 0, 255).astype(np.uint8)
    return frames
