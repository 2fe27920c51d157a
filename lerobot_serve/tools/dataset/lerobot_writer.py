# SPDX-License-Identifier: Apache-2.0
"""
Writes and joins datasets with LeRobot's own classes: 0.4.4, and 0.6 with its encoder settings.

Only this module imports LeRobot, and only when it is used. One thread.
"""

from __future__ import annotations

from collections.abc import Sequence
import inspect
import json
import logging
import os
from pathlib import Path
import shutil
import time
from typing import Any
import warnings

from lerobot_serve.requirements import install_command
from lerobot_serve.tools.dataset.episodes import DatasetError
from lerobot_serve.tools.dataset.features import Feature, Features, VIDEO

# of a video file -> of its encoder
CODEC_NAMES = {'av1': 'libsvtav1'}
# frames that wait for an encoder; LeRobot drops a frame that finds no room for 0.1 s
QUEUE_FRAMES = 32
LEAST_STREAMED = 2
POLL_S = 0.001
# the largest video file to which LeRobot adds another episode [MB]
NEVER_JOINED_MB = 1e-9
# datasets that are joined at once
GROUP_SIZE = 16


def load_lerobot(cache: Path) -> None:
    """Import LeRobot, without the network and with its cache in a folder. Raises DatasetError."""
    os.environ.setdefault('HF_HUB_OFFLINE', '1')
    os.environ.setdefault('TQDM_DISABLE', '1')
    os.environ.setdefault('HF_DATASETS_CACHE', str(cache))
    try:
        from lerobot_serve.policies.lerobot.compat import import_torchvision, suppress_output

        with suppress_output():
            import_torchvision()
            import lerobot.datasets.lerobot_dataset  # noqa: F401
    except ImportError as error:
        raise DatasetError(
            f'LeRobot writes the dataset and cannot be imported here ({error}); install it on '
            f'a desk, not on the robot: {install_command("lerobot")}'
        ) from error
    _silence()


def _silence() -> None:
    """Leave only errors of encoders and of LeRobot; the verb shows progress itself."""
    import av
    from datasets.utils.logging import disable_progress_bar
    from tqdm import tqdm

    disable_progress_bar()
    # no thread that watches its bars
    tqdm.monitor_interval = 0
    av.logging.set_libav_level(av.logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)
    # columns of booleans
    warnings.filterwarnings('ignore', 'Converting input from bool', RuntimeWarning)


class EpisodeWriter:
    """Writes one episode into a dataset of its own. Each method raises OSError, DatasetError."""

    def __init__(
        self, root: Path, features: Features, *, fps: int, robot_type: str, rows: int, vcodec: str
    ) -> None:
        """`root` must not exist; `rows` is how many follow."""
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        has_videos = any(feature['dtype'] == VIDEO for feature in features.values())
        # the encoder of a stream has no statistics for a single frame
        is_streamed = has_videos and rows >= LEAST_STREAMED
        self._dataset = LeRobotDataset.create(
            'local/dataset',
            fps=fps,
            features={name: dict(feature) for name, feature in features.items()},
            root=root,
            robot_type=robot_type,
            streaming_encoding=is_streamed,
            encoder_queue_maxsize=QUEUE_FRAMES,
            **(_encoder(vcodec) if has_videos else {}),
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


def merge(roots: Sequence[Path], out: Path, scratch: Path) -> None:
    """
    Join datasets in order into a new one. Raises DatasetError, OSError.

    LeRobot writes all rows once more for each dataset that it adds. So many are joined in groups,
    and then the groups, in the folder `scratch`, which is removed. The first may be large, and
    joins at the end.
    """
    if scratch.exists():
        shutil.rmtree(scratch)
    joined, level = list(roots), 0
    while len(joined) > GROUP_SIZE:
        first, *rest = joined
        groups = [rest[i : i + GROUP_SIZE] for i in range(0, len(rest), GROUP_SIZE)]
        folder = scratch / str(level)
        joined = [first, *(folder / str(number) for number in range(len(groups)))]
        for group, target in zip(groups, joined[1:], strict=True):
            _merge(group, target)
        if level:
            shutil.rmtree(scratch / str(level - 1))
        level += 1
    _merge(joined, out)
    if level:
        shutil.rmtree(scratch)


def _merge(roots: Sequence[Path], out: Path) -> None:
    """
    Join datasets in order into a new one.

    Each episode keeps its video files: joined files shift or lose frames where the reordering of
    their encoder differs, as behind an episode of one frame.
    """
    from lerobot.datasets.aggregate import aggregate_datasets
    from lerobot.datasets.utils import DEFAULT_VIDEO_FILE_SIZE_IN_MB

    names = [f'local/{number}' for number in range(len(roots))]
    try:
        aggregate_datasets(
            names,
            'local/dataset',
            roots=list(roots),
            aggr_root=out,
            video_files_size_in_mb=NEVER_JOINED_MB,
        )
        file = out / 'meta/info.json'
        info = json.loads(file.read_text())
        info['video_files_size_in_mb'] = DEFAULT_VIDEO_FILE_SIZE_IN_MB
        file.write_text(json.dumps(info, indent=4))
    except Exception as error:
        # `datasets` wraps what happened, also a full disk, in errors of its own
        if cause := os_error_of(error):
            raise cause from error
        raise DatasetError(f'LeRobot cannot join the episodes: {error}') from error


def os_error_of(error: BaseException | None) -> OSError | None:
    """Return the error of the system that an error is or comes from; None for none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


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
