# SPDX-License-Identifier: Apache-2.0
"""
The demo policy `builtin.reach`: moves the hand of the simulated arm to the red disc.

Its folder contains policy.json (inputs, outputs and sizes) and model.safetensors (weights and
statistics). Both are plain data, so loading a folder never runs code from it.
"""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path

import cv2
import numpy as np
import torch

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.policies.base import (
    LoadOptions,
    PolicyDescription,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.builtin.network import ReachNetwork
from lerobot_serve.policies.builtin.settings import (
    KIND,
    ReachSettings,
    WEIGHTS_FILE,
)
from lerobot_serve.policies.files.policy_folder import (
    check_folder,
    read_policy_json,
    SETTINGS_FILE,
)
from lerobot_serve.policies.option_checks import check_no_lerobot_options, check_options_match
from lerobot_serve.policies.runtime.device import (
    read_tensors,
    runs_in_any_thread,
    set_cpu_threads,
    stacked,
    tensor_view,
    torch_device,
)
from lerobot_serve.policies.runtime.memory import check_memory
from lerobot_serve.policies.runtime.request_inputs import newest_image, newest_state

# in two threads an inference of this small network takes 44 ms of CPU instead of 3: its many
# short steps leave the second thread to spin, and on a busy machine the first one waits for it
CPU_THREADS = 1


class ReachPolicy:
    """See the module. Stateless; owned by the inference worker."""

    def __init__(self, network: ReachNetwork, description: PolicyDescription) -> None:
        self.network = network
        self._description = description
        self._device = torch.device(description.device)

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction each, from one forward pass. Raises PolicyError for a wrong request.

        Equal batches give equal bits; batches of different sizes may differ by rounding.
        """
        if not requests:
            return []
        front, wrist = (
            self._images(requests, camera.name) for camera in self._description.cameras
        )
        count = len(self._description.state_names)
        states = [newest_state(request, count) for request in requests]
        state = self._on_device(stacked(states))
        with torch.inference_mode():
            model = self.network(front, wrist, state)
            robot = self.network.to_robot(model, state)
        chunks = zip(model.cpu().numpy(), robot.cpu().numpy(), strict=True)
        return [Prediction(*chunk) for chunk in chunks]

    def reset(self, session_id: str) -> None:
        pass

    def _images(self, requests: list[PolicyRequest], name: str) -> torch.Tensor:
        pixels = self.network.sizes.image_pixels
        images = [square_crop(newest_image(request, name), pixels) for request in requests]
        return self._on_device(stacked(images))

    def _on_device(self, values: Float32Array | FrameArray) -> torch.Tensor:
        return tensor_view(values).to(self._device)


def square_crop(image: FrameArray, pixels: int) -> FrameArray:
    """
    Return the square in the middle of an image, scaled to `pixels` x `pixels`. Any thread.

    It is cropped, not stretched: the middle of a wide image holds the relevant part.
    """
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    square = image[top : top + side, left : left + side]
    scaled = cv2.resize(square, (pixels, pixels), interpolation=cv2.INTER_AREA)
    return np.asarray(scaled, image.dtype)


def load(options: LoadOptions) -> ReachPolicy:
    """Return the policy in the folder `options.path`, on its device. Raises PolicyError."""
    path = options.path
    folder = Path(path)
    if not path or not os.path.isdir(path):
        raise PolicyError(
            f'the path of a builtin policy is its folder, with {SETTINGS_FILE} and '
            f'{WEIGHTS_FILE}; {path!r} is not a folder'
        )
    check_folder(folder)
    files = [folder / SETTINGS_FILE, folder / WEIGHTS_FILE]
    for file in files:
        if not os.path.isfile(file):
            raise PolicyError(
                f'{file} is missing, so the policy is incomplete; copy the folder '
                'again, or give another one'
            )
    check_no_lerobot_options(options, KIND)
    settings = read_policy_json(ReachSettings, files[0])
    target = torch_device(options.device)
    identity = settings.fingerprint(files, options.name)
    description = settings.described(KIND, identity, str(target))
    check_options_match(options, description)
    check_memory(options, files[1].stat().st_size)
    set_cpu_threads(options.cpu_threads or CPU_THREADS)
    description = replace(description, any_thread=runs_in_any_thread(target))
    return ReachPolicy(_network(settings, files[1]).to(target).eval(), description)


def _network(settings: ReachSettings, file: Path) -> ReachNetwork:
    weights = read_tensors(file)
    # without storage: wrong sizes in the settings must not allocate memory
    with torch.device('meta'):
        network = ReachNetwork(len(settings.state_names), settings.chunk_size, settings.network)
    expected = network.state_dict()
    if wrong := sorted(expected.keys() ^ weights.keys()):
        raise PolicyError(
            f'{file}: missing or unknown tensors {", ".join(wrong[:4])}; the file is not of '
            f'the network that {SETTINGS_FILE} describes, copy both again'
        )
    for name, weight in weights.items():
        _check(f'{file}: {name}', weight, expected[name])
    network.load_state_dict(weights, assign=True)
    network.requires_grad_(False)
    return network


def _check(where: str, weight: torch.Tensor, expected: torch.Tensor) -> None:
    if weight.shape != expected.shape or weight.dtype != expected.dtype:
        raise PolicyError(
            f'{where} is {tuple(weight.shape)} of {weight.dtype}, but {SETTINGS_FILE} '
            f'requires {tuple(expected.shape)} of {expected.dtype}; copy both again'
        )
    if not weight.isfinite().all():
        raise PolicyError(
            f'{where} has values that are not finite; train or copy the policy again'
        )
    if where.endswith('_std') and not (weight > 0).all():
        raise PolicyError(f'{where} must be above 0; train or copy the policy again')
