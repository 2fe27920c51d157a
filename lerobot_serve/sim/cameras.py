# SPDX-License-Identifier: Apache-2.0
"""
Render the two cameras of the simulated robot as RGB images.

The fixed camera `front` faces down on the whole table; the camera `wrist` faces down on the hand
and turns with the forearm. Pixels are square: a wide image shows more at its sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import math

import cv2
import numpy as np

from lerobot_serve.arrays import Float64Array, Uint8Array
from lerobot_serve.sim.arm import elbow_xy, forearm_heading_rad, hand_xy, JointPositions

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
    """The mapping from metres to pixels: center of the image, its up direction and the scale."""

    x_m: float
    y_m: float
    up_rad: float
    pixels_per_m: float
    height: int
    width: int

    def matrix(self) -> Float64Array:
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
        """Return the column and row of a position."""
        # without the matrix: an image takes ten of these
        x_m, y_m = place_xy[0] - self.x_m, place_xy[1] - self.y_m
        ahead = self.pixels_per_m * math.cos(self.up_rad)
        aside = self.pixels_per_m * math.sin(self.up_rad)
        return (
            aside * x_m - ahead * y_m + (self.width - 1) / 2,
            -ahead * x_m - aside * y_m + (self.height - 1) / 2,
        )


def view(
    name: str, height: int, width: int, positions: JointPositions, wrist_shift_m: float = 0.0
) -> CameraView:
    """
    Return the view of a camera with the arm at `positions`; the wrist camera is `wrist_shift_m`
    beyond the hand, along the forearm. Any thread. Raises ValueError.
    """
    if name not in NAMES:
        raise ValueError(f'camera must be one of {", ".join(NAMES)}, got {name!r}')
    if height < 1 or width < 1:
        raise ValueError(f'height and width must be at least 1, got {height} x {width}')
    scale = min(height, width) / SPAN_M[name]
    if name == 'front':
        return CameraView(*FRONT_CENTRE_XY, 0.0, scale, height, width)
    heading_rad, (x_m, y_m) = forearm_heading_rad(positions), hand_xy(positions)
    x_m += wrist_shift_m * math.cos(heading_rad)
    y_m += wrist_shift_m * math.sin(heading_rad)
    return CameraView(x_m, y_m, heading_rad, scale, height, width)


def render(
    name: str,
    height: int,
    width: int,
    positions: JointPositions,
    target_xy: tuple[float, float],
    *,
    wrist_shift_m: float = 0.0,
) -> Uint8Array:
    """
    Return the image of a camera, height x width x 3; for `wrist_shift_m` see `view`. Any thread.
    Raises ValueError.
    """
    camera = view(name, height, width, positions, wrist_shift_m)
    image = _front_floor(camera).copy() if name == 'front' else _floor(camera)
    elbow, hand = elbow_xy(positions), hand_xy(positions)
    _line(image, camera, (0.0, 0.0), elbow, UPPER_RGB)
    _disc(image, camera, (0.0, 0.0), BASE_RADIUS_M, BASE_RGB)
    _line(image, camera, elbow, hand, FORE_RGB)
    _disc(image, camera, elbow, JOINT_RADIUS_M, BASE_RGB)
    _disc(image, camera, hand, HAND_RADIUS_M, HAND_RGB)
    # drawn last: the arm must not hide the target
    _disc(image, camera, target_xy, TARGET_RADIUS_M, TARGET_RGB)
    return image


def _line(
    image: Uint8Array,
    camera: CameraView,
    start_xy: tuple[float, float],
    end_xy: tuple[float, float],
    colour: tuple[int, int, int],
) -> None:
    width = max(1, round(LINK_WIDTH_M * camera.pixels_per_m))
    start, end = _fixed(camera.pixel(start_xy)), _fixed(camera.pixel(end_xy))
    cv2.line(image, start, end, colour, width, lineType=cv2.LINE_AA, shift=SHIFT)


def _disc(
    image: Uint8Array,
    camera: CameraView,
    centre_xy: tuple[float, float],
    radius_m: float,
    colour: tuple[int, int, int],
) -> None:
    radius = max(1, round(radius_m * camera.pixels_per_m * (1 << SHIFT)))
    centre = _fixed(camera.pixel(centre_xy))
    cv2.circle(image, centre, radius, colour, -1, lineType=cv2.LINE_AA, shift=SHIFT)


def _fixed(pixel: tuple[float, float]) -> tuple[int, int]:
    return round(pixel[0] * (1 << SHIFT)), round(pixel[1] * (1 << SHIFT))


@lru_cache(maxsize=8)
def _front_floor(camera: CameraView) -> Uint8Array:
    return _floor(camera)


def _floor(camera: CameraView) -> Uint8Array:
    matrix = camera.matrix()
    scale, middle_m = 1 / FLOOR_PIXELS_PER_M, FLOOR_PIXELS / FLOOR_PIXELS_PER_M / 2
    # from pixels of the texture to metres (its center is the base), then to the image
    to_metres = np.array(((scale, 0, -middle_m), (0, scale, -middle_m), (0, 0, 1)))
    image = cv2.warpAffine(
        _texture(),
        matrix @ to_metres,
        (camera.width, camera.height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )
    return image.astype(np.uint8, copy=False)


@lru_cache(maxsize=1)
def _texture() -> Uint8Array:
    """Return the texture of the table: stains, grain and tiles; equal in every process."""
    generator = np.random.default_rng(7)
    coarse = cv2.resize(generator.normal(0, 4, (24, 24)), (FLOOR_PIXELS, FLOOR_PIXELS))
    grain = generator.normal(0, 2, (FLOOR_PIXELS, FLOOR_PIXELS))
    tile = np.arange(FLOOR_PIXELS) % round(FLOOR_TILE_M * FLOOR_PIXELS_PER_M) < 2
    shade = coarse + grain - 10 * (tile[:, None] | tile)
    return np.clip(shade[:, :, None] + FLOOR_RGB, 0, 255).astype(np.uint8)
