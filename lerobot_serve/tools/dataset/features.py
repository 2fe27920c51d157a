# SPDX-License-Identifier: Apache-2.0
"""The columns of a dataset, and the values of one row. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.tools.dataset.episodes import (
    column_of,
    DatasetError,
    EpisodePlan,
    RecordedRobot,
)

ABOUT = 'complementary_info.'
TEXTS = ('source', 'verdict', 'rung', 'slot', 'fingerprint')
NUMBERS = ('seq', 'chunk_row', 'control_step')
HAS_POLICY_ACTION = f'{ABOUT}has_policy_action'
SUCCESS, DONE, INTERVENTION = 'next.success', 'next.done', 'intervention'
# columns that LeRobot adds
AUTOMATIC = {'timestamp', 'frame_index', 'episode_index', 'index', 'task_index'}
# where the frames of a camera are: in video files, or each in its row
VIDEO, IMAGE = 'video', 'image'
Feature = dict[str, Any]
Features = dict[str, Feature]


@dataclass(frozen=True, slots=True)
class FrameShape:
    """Height, width, channels and number type of the frames of a camera."""

    height: int
    width: int
    channels: int
    dtype: str

    @property
    def is_depth(self) -> bool:
        return self.dtype != 'uint8'

    def __str__(self) -> str:
        return f'{self.width}x{self.height}x{self.channels} {self.dtype}'


def shape_of(frame: NDArray[Any]) -> FrameShape:
    height, width, channels = frame.shape
    return FrameShape(height, width, channels, str(frame.dtype.newbyteorder('=')))


def camera_columns(robot: RecordedRobot, shapes: Mapping[str, FrameShape]) -> dict[str, str]:
    """Return the column of each camera. Raises DatasetError for two of one column."""
    names = zip(robot.description.cameras, robot.description.camera_names, strict=True)
    cameras: dict[str, str] = {}
    for camera, name in names:
        column = column_of(camera.name, name, depth=shapes[camera.name].is_depth)
        if column in cameras:
            raise DatasetError(
                f'cameras {cameras[column]!r} and {camera.name!r} of '
                f'{robot.description.name!r} have the same column {column}; give one another '
                'name in the robot file or its rename_map'
            )
        cameras[column] = camera.name
    return {camera: column for column, camera in cameras.items()}


def features_of(
    robot: RecordedRobot,
    shapes: Mapping[str, FrameShape],
    *,
    is_labelled: bool,
    is_sampled: bool,
    has_videos: bool,
) -> Features:
    """
    Return the features of LeRobot; `is_labelled` adds next.success. Without videos each picture is
    in its row.
    """
    description = robot.description
    actions = list(description.action_names)
    found: Features = {'observation.state': _vector(list(description.state_names))}
    for camera, column in camera_columns(robot, shapes).items():
        found[column] = _camera(shapes[camera], has_videos=has_videos)
    found['action'] = _vector(actions)
    if not is_sampled:
        found[f'{ABOUT}policy_action'] = _vector(actions)
        found |= {f'{ABOUT}{name}': _single('string') for name in TEXTS}
        found |= {f'{ABOUT}{name}': _single('int64') for name in NUMBERS}
        found[f'{ABOUT}age_s'] = _single('float32')
        found[HAS_POLICY_ACTION] = _single('bool')
        found[INTERVENTION] = _single('bool')
    if is_labelled:
        found[SUCCESS] = _single('bool')
    found[DONE] = _single('bool')
    return found


MILLIMETRE_RULE = (
    'metres of float32 as the nearest millimetre; 0: no measurement, or above 65.535 m'
)
MILLIMETRES, HIGHEST = 1000.0, 65535


def to_millimetres(metres: NDArray[np.float32]) -> NDArray[np.uint16]:
    """
    Return depth in millimetres. As in the encoding 16UC1 of ROS, 0 is not a measurement: in
    float32 that is NaN; what is infinite, negative or too far for 16 bits is none either.
    """
    rounded = np.rint(metres.astype(np.float64) * MILLIMETRES)
    is_measured = (rounded >= 0) & (rounded <= HIGHEST)
    return np.where(is_measured, rounded, 0).astype(np.uint16)


def row_values(
    plan: EpisodePlan,
    number: int,
    *,
    state: Float64Array,
    frames: Mapping[str, Any],
    command: Float64Array | None,
    is_labelled: bool,
) -> dict[str, Any]:
    """
    Return one row; `command` is the sampled one, None for an executed row. State and actions get
    the policy's units.
    """
    robot = plan.robot.description
    row: dict[str, Any] = {
        'observation.state': robot.state_units.to_policy(state).astype(np.float32),
        **frames,
        'task': plan.task,
    }
    if command is None:
        row |= _executed_values(plan, plan.rows[number].executed)
    else:
        row['action'] = robot.action_units.to_policy(command).astype(np.float32)
    is_last = number == len(plan.rows) - 1
    row[DONE] = np.array([is_last and plan.is_whole])
    if is_labelled:
        row[SUCCESS] = np.array([is_last and plan.label is True])
    return row


def _executed_values(plan: EpisodePlan, data: bytes) -> dict[str, Any]:
    units = plan.robot.description.action_units
    executed = decode(ExecutedAction, data)
    codes = executed.source, executed.cage_result, executed.rung
    texts = (*(code.word for code in codes), executed.slot, executed.policy)
    numbers = (executed.seq, executed.chunk_row, executed.control_step)
    policy_action = (
        executed.raw if executed.source == ExecutedAction.Source.POLICY else executed.policy_action
    )
    has_policy_action = (
        policy_action.size == executed.commanded.size and np.isfinite(policy_action).all()
    )
    if not has_policy_action:
        # NaN would become null when LeRobot joins datasets, which its loader cannot read
        policy_action = executed.commanded
    return {
        'action': units.to_policy(executed.commanded).astype(np.float32),
        f'{ABOUT}policy_action': units.to_policy(policy_action).astype(np.float32),
        **{f'{ABOUT}{name}': text for name, text in zip(TEXTS, texts, strict=True)},
        **{
            f'{ABOUT}{name}': np.array([number], np.int64)
            for name, number in zip(NUMBERS, numbers, strict=True)
        },
        f'{ABOUT}age_s': np.array([executed.age_s], np.float32),
        HAS_POLICY_ACTION: np.array([bool(has_policy_action)]),
        INTERVENTION: np.array([executed.source == ExecutedAction.Source.PERSON]),
    }


def differences(wanted: Features, there: Features, *, fps: tuple[int, int]) -> list[str]:
    """Return how the features of a dataset differ from those wanted, one line for each."""
    found = []
    if fps[0] != fps[1]:
        found.append(f'fps: {fps[1]} in the dataset, {fps[0]} in the bags')
    for name in sorted({*wanted, *there} - AUTOMATIC):
        if name not in there:
            found.append(f'{name}: not in the dataset')
        elif name not in wanted:
            found.append(f'{name}: not in the bags')
        else:
            found += [
                f'{name}: {key} {_plain(there[name].get(key))} in the dataset, '
                f'{_plain(wanted[name].get(key))} in the bags'
                for key in ('dtype', 'shape', 'names')
                if _plain(there[name].get(key)) != _plain(wanted[name].get(key))
            ]
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _vector(names: list[str]) -> Feature:
    return {'dtype': 'float32', 'shape': (len(names),), 'names': names}


def _single(dtype: str) -> Feature:
    return {'dtype': dtype, 'shape': (1,), 'names': None}


def _camera(shape: FrameShape, *, has_videos: bool) -> Feature:
    if shape.is_depth:
        return _picture(IMAGE, shape, 1)
    return _picture(VIDEO if has_videos else IMAGE, shape, 3)


def _picture(dtype: str, shape: FrameShape, channels: int) -> Feature:
    size = (shape.height, shape.width, channels)
    return {'dtype': dtype, 'shape': size, 'names': ['height', 'width', 'channels']}
