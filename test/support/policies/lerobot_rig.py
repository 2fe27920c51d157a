# SPDX-License-Identifier: Apache-2.0
"""
Tiny LeRobot policies, what a robot would send them, and LeRobot's own answers to compare with.

Importing this needs LeRobot: a test module says so first, with pytest.importorskip.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
import json
from pathlib import Path
import shutil
import tempfile
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest
from lerobot_serve.policies.lerobot.compat import lerobot, skip_help_texts, suppress_output
from lerobot_serve.policies.lerobot.loader import load
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy

LEROBOT = lerobot()

from lerobot.policies.utils import prepare_observation_for_inference  # noqa: E402

from support.policies.tiny_policies import build, CAMERAS  # noqa: E402

KINDS = tuple(CAMERAS)
ROOT = Path(tempfile.mkdtemp(prefix='lerobot_serve_tests_'))
atexit.register(shutil.rmtree, ROOT)
# sums come out alike only with the same number of threads
torch.set_num_threads(1)
NAMES = tuple(f'joint_{number}.pos' for number in range(6))


def folder_of(kind: str, **config: object) -> Path:
    """Return the folder of a policy, made on first use and kept until the tests end."""
    folder = ROOT / '-'.join([kind, *map(str, config.values())]) / kind
    if not folder.exists():
        with suppress_output():
            build(kind, folder, **config)
    return folder


def copy_of(kind: str, into: Path) -> Path:
    """Return a copy of the folder of a policy that a test may change, below a folder."""
    return Path(shutil.copytree(folder_of(kind), into / kind))


def loading(folder: Path, **others: object) -> LoadOptions:
    """Return what an operator would say of a policy in a folder."""
    said = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0, 'cpu_threads': 1}
    return LoadOptions(path=str(folder), **(said | others))


def trusting(folder: Path, test: str, **others: object) -> LoadOptions:
    """Return what an operator says who trusts the package of a test, which is `test`."""
    return loading(folder, trusted_packages=(test.partition('.')[0],), **others)


def add_step(file: Path, name: str, place: int | None = None) -> None:
    """Put a step without settings into a processor, at the end or at a place."""
    step = {'registry_name': name, 'config': {}}
    change_json(
        file,
        lambda held: held['steps'].insert(len(held['steps']) if place is None else place, step),
    )


def loaded(kind: str, **config: object) -> LeRobotPolicy:
    return load(loading(folder_of(kind, **config)))


def change_json(file: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def set_json(file: Path, **values: object) -> None:
    """Set fields of an object in a file."""
    change_json(file, lambda held: held.update(values))


def change_tensors(file: Path, change: Callable[[Any], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def refused(folder: Path, **said: object) -> str:
    """Return why a folder is not loaded, which takes one line."""
    with pytest.raises(PolicyError) as refusal:
        load(loading(folder, **said))
    text = str(refusal.value)
    assert '\n' not in text
    return text


def requests_for(
    policy: LeRobotPolicy, count: int, seed: int = 0, **others: object
) -> list[PolicyRequest]:
    """Return requests of as many sessions, each of another state, scene and seed."""
    described = policy.describe()
    draw = np.random.default_rng(seed)
    steps = described.observation_steps
    made = []
    for number in range(count):
        state = draw.uniform(-1, 1, (steps, len(described.state_names))).astype(np.float32)
        images = {
            camera.name: tuple(
                draw.integers(0, 256, (camera.height, camera.width, 3), np.uint8)
                for _ in range(steps)
            )
            for camera in described.cameras
        }
        said = {'task': 'pick', 'episode_start': True, 'seed': 1000 + number} | others
        made.append(PolicyRequest(f'session {number}', state, images, **said))
    return made


class Oracle:
    """LeRobot itself, as its own scripts use it: one robot, one observation a control step."""

    def __init__(self, folder: Path) -> None:
        with suppress_output(), skip_help_texts():
            self.config = LEROBOT.config_class.from_pretrained(str(folder))
            kind = LEROBOT.get_policy_class(self.config.type)
            self.policy = kind.from_pretrained(str(folder), config=self.config)
            self.pre, self.post = LEROBOT.make_processors(
                self.config,
                pretrained_path=str(folder),
                preprocessor_overrides={'device_processor': {'device': 'cpu'}},
            )

    def batches(self, request: PolicyRequest) -> list[dict]:
        """Return what the policy would be given at each control step, oldest first."""
        return [self._batch(request, step) for step in range(len(request.state))]

    def _batch(self, request: PolicyRequest, step: int) -> dict:
        observation = {name: frames[step] for name, frames in request.images.items()}
        observation['observation.state'] = request.state[step]
        return self.pre(
            prepare_observation_for_inference(
                observation, torch.device('cpu'), request.task, request.robot_type
            )
        )

    def row_by_row(self, model: torch.Tensor) -> np.ndarray:
        """Return rows x actions in the robot's units, each row processed alone."""
        return torch.cat([self.post(row.unsqueeze(0)) for row in model]).numpy()
