# SPDX-License-Identifier: Apache-2.0
"""The columns that all episodes of a dataset share, old and new. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lerobot_serve.tools.dataset import lerobot_writer
from lerobot_serve.tools.dataset.features import (
    differences,
    Feature,
    Features,
    features_of,
    FrameShape,
    IMAGE,
    SUCCESS,
    VIDEO,
)
from lerobot_serve.tools.dataset.plans.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.plans.robot_names import RecordedRobot
from lerobot_serve.tools.dataset.records import Existing
from lerobot_serve.tools.dataset.settings import DatasetOptions, PICTURES

COLOR_CHANNELS = 3


def agreed_features(
    plans: Sequence[EpisodePlan],
    shapes: Mapping[str, Mapping[str, FrameShape]],
    there: Existing | None,
    out: Path,
    options: DatasetOptions,
    note: Callable[[str], None],
) -> Features:
    """
    Return the features of all episodes; `shapes` by the digests of robot files. Raises
    DatasetError where episodes, or the dataset that is there, differ.
    """
    is_labelled = _is_labelled(plans, there, note)

    def of(robot: RecordedRobot) -> Features:
        return features_of(
            robot,
            shapes[robot.digest],
            is_labelled=is_labelled,
            is_sampled=options.robot_file is not None,
            has_videos=options.has_videos,
        )

    first = plans[0]
    features = of(first.robot)
    for plan in plans:
        found = differences(features, of(plan.robot), fps=(first.fps, plan.fps))
        if first.robot.description.name != plan.robot.description.name:
            found.append(f'robot: {plan.robot.description.name!r}')
        if found:
            raise DatasetError(
                f'{plan.title} differs from {first.title}; convert one robot at a time with '
                '--robot-name:\n' + '\n'.join(f'  {line}' for line in found)
            )
    if there:
        _check_existing(features, first, there, out, options)
    return features


def _is_labelled(
    plans: Sequence[EpisodePlan], there: Existing | None, note: Callable[[str], None]
) -> bool:
    unlabelled = [plan for plan in plans if plan.label is None]
    if unlabelled and len(unlabelled) < len(plans):
        note(
            f'no column {SUCCESS}: {len(unlabelled)} of {len(plans)} episodes have no outcome '
            '(--filter success failure keeps those that have one)'
        )
    return not unlabelled and (there is None or SUCCESS in there.features)


def _check_existing(
    features: Features, first: EpisodePlan, there: Existing, out: Path, options: DatasetOptions
) -> None:
    """Raise DatasetError with how the existing dataset differs."""
    found = differences(features, there.features, fps=(first.fps, there.fps))
    name = first.robot.description.name
    if there.robot_type != name:
        found.append(f'robot: {there.robot_type!r} in the dataset, {name!r} in the bags')
    for column, feature in there.features.items():
        codec = _encoder(feature)
        if codec not in ('', options.vcodec):
            found.append(f'{column}: --vcodec {codec} in the dataset')
    if found:
        lines = '\n'.join(f'  {line}' for line in found)
        raise DatasetError(f'{out} has other features:\n{lines}')


def _encoder(feature: Feature) -> str:
    """Return the --vcodec of a camera of an existing dataset; empty for unknown or not needed."""
    if feature['dtype'] == VIDEO:
        return lerobot_writer.video_codec(feature)
    # depth is never a video
    is_color = feature['dtype'] == IMAGE and feature['shape'][-1] == COLOR_CHANNELS
    return PICTURES if is_color else ''
