# SPDX-License-Identifier: Apache-2.0
"""
Writes and joins datasets with LeRobot's own classes: 0.4.4, and 0.6 with its encoder settings.

Only this module imports LeRobot, and only when it is used. One thread.
"""

from __future__ import annotations

from collections.abc import Sequence
import inspect
import os
from pathlib import Path
import time
from typing import Any

from lerobot_serve.tools.dataset.episodes import DatasetError
from lerobot_serve.tools.dataset.features import Feature, Features

INSTALL = (
    'LeRobot is needed to write a dataset and is not installed: pip install "lerobot==0.4.4" '
    '(Python 3.10, 3.11) or "lerobot>=0.6,<0.7" (3.12), on a desk, not on the robot'
)
VCODECS = ('h264', 'hevc', 'libsvtav1')
# of a video file -> of its encoder
CODEC_NAMES = {'av1': 'libsvtav1'}
# frames that wait for an encoder; LeRobot drops a frame that finds no room for 0.1 s
QUEUE_FRAMES = 32
LEAST_STREAMED = 2
POLL_S = 0.001


def load_lerobot(cache: Path) -> None:
    """Import LeRobot, without the network and with its cache in a folder. Raises DatasetError."""
    os.environ.setdefault('HF_HUB_OFFLINE', '1')
    os.environ.setdefault('HF_DATASETS_CACHE', str(cache))
    try:
        import lerobot.datasets.lerobot_dataset  # noqa: F401
    except ImportError as error:
        raise DatasetError(f'{INSTALL} ({error})') from error
    import datasets

    datasets.disable_progress_bars()


class EpisodeWriter:
    """Writes one episode into a dataset of its own. Each method raises OSError, DatasetError."""

    def __init__(
        self, root: Path, features: Features, *, fps: int, robot_type: str, rows: int, vcodec: str
    ) -> None:
        """`root` must not exist; `rows` is how many follow."""
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        # the encoder of a stream has no statistics for a single frame
        is_streamed = rows >= LEAST_STREAMED
        self._dataset = LeRobotDataset.create(
            'local/dataset',
            fps=fps,
            features={name: dict(feature) for name, feature in features.items()},
            root=root,
            robot_type=robot_type,
            streaming_encoding=is_streamed,
            encoder_queue_maxsize=QUEUE_FRAMES,
            **_encoder(vcodec),
        )
        self._encoder = _streaming_encoder(self._dataset) if is_streamed else None

    def add(self, row: dict[str, Any]) -> None:
        """Add a row once the encoders have room for its frames."""
        if self._encoder is not None:
            self._wait_for_room()
        try:
            self._dataset.add_frame(row)
        except (RuntimeError, ValueError) as error:
            raise DatasetError(f'LeRobot refuses a row: {error}') from error

    def _wait_for_room(self) -> None:
        queues = getattr(self._encoder, '_frame_queues', {})
        threads = getattr(self._encoder, '_threads', {})
        while any(
            queue.full() and (name not in threads or threads[name].is_alive())
            for name, queue in queues.items()
        ):
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Save the episode and close all files."""
        try:
            self._dataset.save_episode()
            self._dataset.finalize()
        except (RuntimeError, ValueError) as error:
            raise DatasetError(f'LeRobot cannot save an episode: {error}') from error

    def abort(self) -> None:
        """Stop the encoders; the folder is of no use."""
        if self._encoder is not None:
            self._encoder.close()


def merge(roots: Sequence[Path], out: Path) -> None:
    """Join datasets in order into a new one. Raises DatasetError, OSError."""
    from lerobot.datasets.aggregate import aggregate_datasets

    names = [f'local/{number}' for number in range(len(roots))]
    try:
        aggregate_datasets(names, 'local/dataset', roots=list(roots), aggr_root=out)
    except (RuntimeError, ValueError, KeyError) as error:
        raise DatasetError(f'LeRobot cannot join the episodes: {error}') from error


def video_codec(feature: Feature) -> str:
    """Return the encoder of a video feature of an existing dataset; empty for unknown."""
    codec = str((feature.get('info') or {}).get('video.codec', ''))
    return CODEC_NAMES.get(codec, codec)


def _encoder(vcodec: str) -> dict[str, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if 'vcodec' in inspect.signature(LeRobotDataset.create).parameters:
        return {'vcodec': vcodec}
    from lerobot.configs.video import RGBEncoderConfig

    return {'rgb_encoder': RGBEncoderConfig(vcodec=vcodec)}


def _streaming_encoder(dataset: Any) -> Any:
    holder = dataset if hasattr(dataset, '_streaming_encoder') else dataset.writer
    return holder._streaming_encoder
