"""
The demo policy `builtin.reach`: brings the hand of the simulated arm to the red disc it sees.

Its folder holds policy.json (what it expects and gives, and its sizes) and model.safetensors
(weights and statistics). Both are plain data, so loading a folder never runs code from it.
"""

from __future__ import annotations

import os
from pathlib import Path
import re

import cv2
import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
import torch

from lerobot_serve.policies.base import (
    Description,
    Loading,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.fingerprint import fingerprint
from lerobot_serve.policies.reach_network import ReachNetwork, Sizes
from lerobot_serve.policies.reach_settings import KIND, read_settings, Settings

SETTINGS_FILE, WEIGHTS_FILE = 'policy.json', 'model.safetensors'
DEVICE = re.compile(r'cpu|mps|cuda(:\d+)?')


class ReachPolicy:
    """See the module. Remembers nothing between requests; belongs to the inference worker."""

    def __init__(self, network: ReachNetwork, description: Description) -> None:
        self.network = network
        self._description = description
        self._device = torch.device(description.device)

    def describe(self) -> Description:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction each, from one forward pass. Raises PolicyError for a wrong request.

        The same requests give the same bits; another number of requests may differ by rounding.
        """
        if not requests:
            return []
        front, wrist = (
            self._images(requests, camera.name) for camera in self._description.cameras
        )
        state = self._on_device(np.stack([self._state(request) for request in requests]))
        with torch.inference_mode():
            model = self.network(front, wrist, state)
            robot = self.network.to_robot(model, state)
        chunks = zip(model.cpu().numpy(), robot.cpu().numpy(), strict=True)
        return [Prediction(*chunk) for chunk in chunks]

    def reset(self, session_id: str) -> None:
        pass

    def _state(self, request: PolicyRequest) -> np.ndarray:
        count = len(self._description.state_names)
        if request.state.ndim != 2 or request.state.shape[1] != count or not len(request.state):
            raise PolicyError(f'state must be steps x {count}, got {request.state.shape}')
        return request.state[-1].astype(np.float32)

    def _images(self, requests: list[PolicyRequest], name: str) -> torch.Tensor:
        pixels = self.network.sizes.image_pixels
        images = [small(newest(request, name), name, pixels) for request in requests]
        return self._on_device(np.stack(images))

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def newest(request: PolicyRequest, name: str) -> np.ndarray | None:
    """Return the present frame of a camera, None when there is none."""
    frames = request.images.get(name)
    return frames[-1] if frames else None


def small(image: np.ndarray | None, name: str, pixels: int) -> np.ndarray:
    """
    Return the square in the middle of an image, scaled to `pixels` x `pixels`. Any thread.

    Cropped, not stretched: a wide camera shows what matters in its middle. Raises PolicyError.
    """
    if image is None:
        raise PolicyError(f'the image {name!r} is missing; send it with every observation')
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise PolicyError(
            f'the image {name!r} must be height x width x 3 of uint8, '
            f'got {image.shape} of {image.dtype}'
        )
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    square = image[top : top + side, left : left + side]
    return cv2.resize(square, (pixels, pixels), interpolation=cv2.INTER_AREA)


def load(loading: Loading) -> ReachPolicy:
    """Return the policy in the folder `loading.path`, on its device. Raises PolicyError."""
    path = loading.path
    folder = Path(path)
    if not path or not os.path.isdir(path):
        raise PolicyError(
            f'the path of a builtin policy is its folder, with {SETTINGS_FILE} and '
            f'{WEIGHTS_FILE} in it; {path!r} is not a folder'
        )
    files = [folder / SETTINGS_FILE, folder / WEIGHTS_FILE]
    for file in files:
        if not os.path.isfile(file):
            raise PolicyError(
                f'{file} is missing; copy the whole folder, or train the policy anew: '
                f'python3 -m lerobot_serve.bench.train_reach {folder}'
            )
    settings = read_settings(files[0])
    target = _device(loading.device)
    network = _network(settings, files[1]).to(target).eval()
    return ReachPolicy(network, _description(settings, files, str(target)))


def _description(settings: Settings, files: list[Path], device: str) -> Description:
    try:
        identity = fingerprint(settings.id, files)
    except OSError as error:
        raise PolicyError(f'cannot read the policy: {error}') from error
    return Description(
        KIND,
        identity,
        settings.state_names,
        settings.action_names,
        settings.cameras,
        settings.chunk_size,
        settings.trained_fps,
        device=device,
    )


def _device(text: str) -> torch.device:
    if not DEVICE.fullmatch(text):
        raise PolicyError(f"device must be 'cpu' or 'cuda:N', got {text!r}")
    try:
        device = torch.device(text)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolicyError(
            f"the device {text!r} cannot be used here ({reason}); use 'cpu', or a "
            'machine and a build of torch that have it'
        ) from error
    return device


def _network(settings: Settings, file: Path) -> ReachNetwork:
    weights = _weights(file)
    # without storage: sizes that the file does not bear out must not cost memory
    with torch.device('meta'):
        network = ReachNetwork(
            Sizes(
                len(settings.state_names),
                settings.chunk_size,
                settings.image_pixels,
                settings.channels,
                settings.hidden,
            )
        )
    expected = network.state_dict()
    if wrong := sorted(expected.keys() ^ weights.keys()):
        raise PolicyError(
            f'{file}: missing or unknown are {", ".join(wrong[:4])}; the file is not of '
            f'the network that {SETTINGS_FILE} describes, copy both again'
        )
    for name, weight in weights.items():
        _check(f'{file}: {name}', weight, expected[name])
    network.load_state_dict(weights, assign=True)
    return network.requires_grad_(False)


def _weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        # copied, so that the file may be replaced while the policy runs
        return {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f'{file} is not a readable safetensors file ({error}); copy it again, in '
            'binary, and with git lfs if it is only a pointer'
        ) from error


def _check(where: str, weight: torch.Tensor, expected: torch.Tensor) -> None:
    if weight.shape != expected.shape or weight.dtype != expected.dtype:
        raise PolicyError(
            f'{where} is {tuple(weight.shape)} of {weight.dtype}, but {SETTINGS_FILE} '
            f'asks for {tuple(expected.shape)} of {expected.dtype}; copy both again'
        )
    if not weight.isfinite().all():
        raise PolicyError(f'{where} has values that are not finite; train or copy the policy anew')
    if where.endswith('_std') and not (weight > 0).all():
        raise PolicyError(f'{where} must be above 0; train or copy the policy anew')
