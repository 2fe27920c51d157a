# SPDX-License-Identifier: Apache-2.0
"""
Read names and rate, which LeRobot's policy files lack, from the training data set.

`train_config.json` beside the weights names the data set; its `meta/info.json` contains the names
of states and actions and the rate. It is read if it is on this machine, or from a copy in the
policy directory (`meta/info.json`). JSON of bounded size; nothing is downloaded. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import json
import os
from pathlib import Path
import re
from typing import Any

TRAIN_FILE, INFO_FILE = 'train_config.json', Path('meta', 'info.json')
HOME_VARIABLES = ('HF_LEROBOT_HOME', 'HF_HOME')
REPOSITORY = re.compile(r'[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*')
BYTES_LIMIT, NAMES_LIMIT, NAME_BYTES_LIMIT, RATE_LIMIT_HZ = 4 << 20, 4096, 128, 1000
STATE, ACTION = 'observation.state', 'action'
CHECKPOINTS = 'checkpoints'


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Names and rate of the data set, empty or 0 if unknown; `file` is their source."""

    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    trained_fps: float = 0.0
    file: str = ''


def read_dataset_info(folder: Path) -> DatasetInfo:
    """Return the data set information of the policy in a folder. Never raises."""
    for file in _candidates(folder):
        content = _read(file)
        if content:
            features = content.get('features')
            features = features if isinstance(features, dict) else {}
            return DatasetInfo(
                _names(features.get(STATE)),
                _names(features.get(ACTION)),
                _rate(content.get('fps')),
                str(file),
            )
    return DatasetInfo()


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the files that may describe the data set, nearest first."""
    yield folder / INFO_FILE
    training = _read(folder / TRAIN_FILE)
    config = training.get('dataset')
    if not isinstance(config, dict):
        return
    root, repository = config.get('root'), config.get('repo_id')
    if isinstance(root, str) and os.path.isabs(root):
        yield Path(root) / INFO_FILE
    elif isinstance(root, str) and (trained_in := _training_folder(folder, training)):
        yield trained_in / root / INFO_FILE
    if isinstance(repository, str) and REPOSITORY.fullmatch(repository):
        yield _home() / repository / INFO_FILE


def _training_folder(folder: Path, training: dict[str, Any]) -> Path | None:
    """
    Return the folder in which the training ran: relative paths of its configuration begin there.
    None where the checkpoint is not where the training wrote it, OUTPUT_DIR/checkpoints/STEP/NAME:
    a relative path could lead to another data set.
    """
    output = training.get('output_dir')
    if not isinstance(output, str) or not output or os.path.isabs(output):
        return None
    wanted = (*Path(output).parts, CHECKPOINTS)
    # the newest step is a link; the two below are the step and the folder of the weights
    parts = Path(os.path.realpath(folder)).parts[:-2]
    return Path(*parts[: -len(wanted)]) if parts[-len(wanted) :] == wanted else None


def _home() -> Path:
    """Return the folder in which LeRobot keeps data sets."""
    own, all_of_them = (os.environ.get(name) for name in HOME_VARIABLES)
    if own:
        return Path(own)
    cache = Path(all_of_them) if all_of_them else Path.home() / '.cache' / 'huggingface'
    return cache / 'lerobot'


def _read(file: Path) -> dict[str, Any]:
    """Return the JSON object of a regular file of bounded size, otherwise an empty one."""
    try:
        if not file.is_file() or file.stat().st_size > BYTES_LIMIT:
            return {}
        content = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _names(feature: Any) -> tuple[str, ...]:
    """Return the names of a feature: a list, or lists in a group such as `motors`."""
    names = feature.get('names') if isinstance(feature, dict) else None
    if isinstance(names, dict):
        lists = list(names.values())
        names = [name for each in lists if isinstance(each, list) for name in each]
    if not isinstance(names, list) or not 0 < len(names) <= NAMES_LIMIT:
        return ()
    fit = all(isinstance(n, str) and 0 < len(n.encode()) <= NAME_BYTES_LIMIT for n in names)
    return tuple(names) if fit and len(set(names)) == len(names) else ()


def _rate(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value <= RATE_LIMIT_HZ else 0.0
