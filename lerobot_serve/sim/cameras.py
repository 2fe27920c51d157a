# SPDX-License-Identifier: Apache-2.0
"""
What the two cameras of the simulated robot see, RGB throughout.

`front` looks down on the whole table and never moves; `wrist` looks down on the hand from nearer
and turns with the forearm. Neither stretches: a wide image shows more at its sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import math

import cv2
import numpy as np

from lerobot_serve.sim.arm import elbow_xy, forearm_heading_rad, hand_xy

NAMES = ('front', 'wrist')
FRONT_CENTRE_XY = (0.08, 0.0)
SPAN_M = {'front': 0.80, 'wrist': 0.24}

TARGET_RGB, BASE_RGB = (255, 0, 0), (60, 64, 70)
UPPER_RGB, FORE_RGB, HAND_RGB = (112, 118, 128), (60, 100, 170), (30, 50, 90)
TARGET_RADIUS_M, HAND_RADIUS_M, JOINT_RADIUS_M, BASE_RADIUS_M = 0.018, 0.014, 0.014, 0.03
LINK_WIDTH_M = 0.024

FLOOR_RGB = (204, 200, 190)
FLOOR_PIXELS, FLOOR_PIXELS_PER_M, FLOOR_TILE_M = 512, 400, 0.1
# OpenCV takes coordinates in 1/16 of a pixel
SHIFT = 4


@dataclass(frozen=True, slots=True)
class CameraView:
    """From metres to pixels: what lies in the middle, which direction is up, and the scale."""

    x_m: float
    y_m: float
    up_rad: float
    pixels_per_m: float
    height: int
    width: int

    def matrix(self) -> np.ndarray:
        """Return the 2 x 3 matrix from (x, y, 1) to (column, row)."""
        ahead = self.pixels_per_m * math.cos(self.up_rad)
        aside = self.pixels_per_m * math.sin(self.up_rad)
        return np.array(
            (
                (aside, -ahead, (self.width - 1) / 2 - aside * self.x_m + ahead * self.y_m),
                (-ahead, -aside, (self.height - 1) / 2 + ahead * self.x_m + aside * self.y_m),
            )
        )

    def pixel(self, place_xy: tuple[float, float]) -> tuple[float, float]:
        """Return the column and row of a place."""
        column, row = self.matrix() @ (*place_xy, 1.0)
        return float(column), float(row)


def view(name: str, height: int, width: int, positions: np.ndarray) -> CameraView:
    """Return how a camera looks with the arm at `positions`. Any thread. Raises ValueError."""
    if name not in NAMES:
        raise ValueError(f'there is no camera {name!r}; there are {", ".join(NAMES)}')
    if height < 1 or width < 1:
        raise ValueError(f'height and width must be at least 1, got {height} x {width}')
    scale = min(height, width) / SPAN_M[name]
    if name == 'front':
        return CameraView(*FRONT_CENTRE_XY, 0.0, scale, height, width)
    return CameraView(*hand_xy(positions), forearm_heading_rad(positions), scale, height, width)


def render(
    name: str, height: int, width: int, positions: np.ndarray, target_xy: tuple[float, float]
) -> np.ndarray:
    """Return what a camera sees, height x width x 3. Any thread. Raises ValueError."""
    looks = view(name, height, width, positions)
    image = _front_floor(looks).copy() if name == 'front' else _floor(looks)
    elbow, hand = elbow_xy(positions), hand_xy(positions)
    _line(image, looks, (0.0, 0.0), elbow, UPPER_RGB)
    _disc(image, looks, (0.0, 0.0), BASE_RADIUS_M, BASE_RGB)
    _line(image, looks, elbow, hand, FORE_RGB)
    _disc(image, looks, elbow, JOINT_RADIUS_M, BASE_RGB)
    _disc(image, looks, hand, HAND_RADIUS_M, HAND_RGB)
    # above the arm, like a spot of light: the hand must not hide what it is to reach
    _disc(image, looks, target_xy, TARGET_RADIUS_M, TARGET_RGB)
    return image


def _line(
    image: np.ndarray,
    looks: CameraView,
    start_xy: tuple[float, float],
    end_xy: tuple[float, float],
    colour: tuple[int, int, int],
) -> None:
    width = max(1, round(LINK_WIDTH_M * looks.pixels_per_m))
    start, end = _fixed(looks.pixel(start_xy)), _fixed(looks.pixel(end_xy))
    cv2.line(image, start, end, colour, width, cv2.LINE_AA, SHIFT)


def _disc(
    image: np.ndarray,
    looks: CameraView,
    centre_xy: tuple[float, float],
    radius_m: float,
    colour: tuple[int, int, int],
) -> None:
    radius = max(1, round(radius_m * looks.pixels_per_m * (1 << SHIFT)))
    cv2.circle(image, _fixed(looks.pixel(centre_xy)), radius, colour, -1, cv2.LINE_AA, SHIFT)


def _fixed(pixel: tuple[float, float]) -> tuple[int, int]:
    return round(pixel[0] * (1 << SHIFT)), round(pixel[1] * (1 << SHIFT))


@lru_cache(maxsize=8)
def _front_floor(looks: CameraView) -> np.ndarray:
    return _floor(looks)


def _floor(looks: CameraView) -> np.ndarray:
    matrix = looks.matrix()
    scale, middle_m = 1 / FLOOR_PIXELS_PER_M, FLOOR_PIXELS / FLOOR_PIXELS_PER_M / 2
    # from the texture's pixels to metres (its middle is the base), then to the image
    to_metres = np.array(((scale, 0, -middle_m), (0, scale, -middle_m), (0, 0, 1)))
    return cv2.warpAffine(
        _texture(),
        matrix @ to_metres,
        (looks.width, looks.height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )


@lru_cache(maxsize=1)
def _texture() -> np.ndarray:
    """A plain table with soft stains, fine grain and faint tiles; the same in every process."""
    generator = np.random.default_rng(7)
    coarse = cv2.resize(generator.normal(0, 4, (24, 24)), (FLOOR_PIXELS, FLOOR_PIXELS))
    grain = generator.normal(0, 2, (FLOOR_PIXELS, FLOOR_PIXELS))
    tile = np.arange(FLOOR_PIXELS) % round(FLOOR_TILE_M * FLOOR_PIXELS_PER_M) < 2
    shade = coarse + grain - 10 * (tile[:, None] | tile)
    return np.clip(shade[:, :, None] + FLOOR_RGB, 0, 255).astype(np.uint8)
