"""
The policy kind `exported`: a program that torch wrote, and beside it what the program means.

Its folder holds policy.json (exported_sidecar), program.pt2 (torch.export) or program.pt
(TorchScript), and statistics.safetensors. The program takes the inputs that policy.json names, in
that order: the state as N x values, each camera as N x 3 x height x width, all float32; it gives
N x rows x actions. Before torch sees the program, exported_check takes away or refuses what could
run as Python or reach files. What is left still is a program: it may compute for ever or take all
memory, so serve only those whose origin is known.
"""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from lerobot_serve.policies.agreement import agree
from lerobot_serve.policies.base import (
    Camera,
    Description,
    Loading,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.device import torch_device, use_threads
from lerobot_serve.policies.exported.archive import checked, unpacked_bytes
from lerobot_serve.policies.exported.check import EXPORT_RULES, SCRIPT_RULES
from lerobot_serve.policies.exported.normalization import read_scales, Scale
from lerobot_serve.policies.exported.sidecar import ACTION, KIND, read_sidecar, Sidecar, STATE
from lerobot_serve.policies.failure import in_one_line
from lerobot_serve.policies.fingerprint import fingerprint
from lerobot_serve.policies.frames import newest_image, newest_state
from lerobot_serve.policies.memory import check_room
from lerobot_serve.policies.settings import SETTINGS_FILE

EXPORT_FILE, SCRIPT_FILE = 'program.pt2', 'program.pt'
STATISTICS_FILE = 'statistics.safetensors'
# the archive that was checked, and the tensors read from it
HOST_COPIES = 2


class ExportedPolicy:
    """See the module. Remembers nothing between requests; belongs to the inference worker."""

    def __init__(
        self,
        program: torch.nn.Module,
        sidecar: Sidecar,
        scales: dict[str, Scale],
        description: Description,
    ) -> None:
        self._program = program
        self._sidecar = sidecar
        self._scales = scales
        self._description = description
        self._together = description.batch_limit != 1
        self._device = torch.device(description.device)
        self._cameras = {camera.name: camera for camera in sidecar.cameras}

    def describe(self) -> Description:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """Return one prediction each. Raises PolicyError for a wrong request."""
        if self._together:
            return self._predict(requests) if requests else []
        return [answer for request in requests for answer in self._predict([request])]

    def reset(self, session_id: str) -> None:
        pass

    def probe(self) -> None:
        """Run the program on zeros. Raises PolicyError for what it gives, forgets or remembers."""
        for count in (1, 2) if self._together else (1,):
            before = [buffer.clone() for buffer in self._program.buffers()]
            try:
                first, second = (self._run(self._zeros(count), seed=0) for _ in range(2))
            except Exception as error:
                # torch raises all kinds, and so does the code of a program
                raise PolicyError(
                    f'the program fails on {count} x {", ".join(self._sidecar.inputs)} of the '
                    f'shapes in {SETTINGS_FILE}: {in_one_line(error)}'
                ) from error
            self._check_shape(first, count)
            same = torch.allclose(first, second, rtol=1e-3, atol=1e-3, equal_nan=True)
            if not same or not all(map(torch.equal, before, self._program.buffers())):
                raise PolicyError(
                    'the program answers the same input differently, or changes its own buffers; '
                    f'if it draws random numbers, set stochastic in {SETTINGS_FILE}, otherwise '
                    'export it in evaluation mode and without memory'
                )

    def _check_shape(self, chunk: object, count: int) -> None:
        wanted = (count, self._sidecar.chunk_size, len(self._sidecar.action_names))
        tensor = isinstance(chunk, torch.Tensor)
        if not tensor or chunk.shape != wanted or chunk.dtype != torch.float32:
            got = f'{tuple(chunk.shape)} of {chunk.dtype}' if tensor else type(chunk).__name__
            raise PolicyError(
                f'the program gives {got}, but {SETTINGS_FILE} asks for {wanted} of torch.float32 '
                '(requests x chunk_size x actions); export it anew, or correct the sizes'
            )

    def _run(self, inputs: dict[str, np.ndarray], seed: int) -> torch.Tensor:
        """Return the program's chunks for the raw inputs of a batch."""
        values = [self._prepared(name, inputs[name]) for name in self._sidecar.inputs]
        if self._sidecar.stochastic:
            torch.manual_seed(seed)
        with torch.inference_mode():
            return self._program(*values)

    def _predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        inputs = {
            name: np.stack([self._shown(name, request) for request in requests])
            for name in self._sidecar.inputs
        }
        model = self._run(inputs, requests[0].seed)
        robot = self._scales[ACTION].original(model) if ACTION in self._scales else model
        chunks = zip(model.cpu().numpy(), robot.cpu().numpy(), strict=True)
        return [Prediction(*chunk) for chunk in chunks]

    def _shown(self, name: str, request: PolicyRequest) -> np.ndarray:
        if name == STATE:
            return newest_state(request, len(self._sidecar.state_names))
        return fitted(newest_image(request, name), self._cameras[name])

    def _prepared(self, name: str, batch: np.ndarray) -> torch.Tensor:
        values = torch.from_numpy(batch).to(self._device)
        if name != STATE:
            values = values.permute(0, 3, 1, 2).contiguous() / (255 / self._sidecar.white)
        scale = self._scales.get(name)
        return scale.normalized(values) if scale else values

    def _zeros(self, count: int) -> dict[str, np.ndarray]:
        shapes = {
            camera.name: (camera.height, camera.width, 3) for camera in self._sidecar.cameras
        }
        zeros = {name: np.zeros((count, *shape), np.uint8) for name, shape in shapes.items()}
        return {STATE: np.zeros((count, len(self._sidecar.state_names)), np.float32), **zeros}


def fitted(image: np.ndarray, camera: Camera) -> np.ndarray:
    """Return an image in the size of the camera; each pixel is the mean of what it covers."""
    if image.shape[:2] == (camera.height, camera.width):
        return image
    return cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_AREA)


def load(loading: Loading) -> ExportedPolicy:
    """Return the policy in the folder `loading.path`, on its device. Raises PolicyError."""
    folder = Path(loading.path)
    settings, program = _files(loading.path)
    statistics = folder / STATISTICS_FILE
    sidecar = read_sidecar(settings)
    device = torch_device(loading.device)
    scales, without = read_scales(
        statistics, sidecar, device, missing_allowed=loading.allow_missing_statistics
    )
    files = [settings, program, *([statistics] if os.path.isfile(statistics) else [])]
    description = _description(loading, sidecar, files, without)
    if ACTION in scales:
        description = replace(description, action_range=scales[ACTION].range())
    agree(loading, description)
    check_room(loading, unpacked_bytes(program), HOST_COPIES)
    use_threads(loading.cpu_threads)
    policy = ExportedPolicy(_program(program, device), sidecar, scales, description)
    policy.probe()
    return policy


def _files(path: str) -> tuple[Path, Path]:
    """Return policy.json and the program. Raises PolicyError."""
    folder = Path(path)
    if not path or not os.path.isdir(path):
        raise PolicyError(
            f'the path of an exported policy is its folder, with {SETTINGS_FILE} and '
            f'{EXPORT_FILE} or {SCRIPT_FILE} in it; {path!r} is not a folder'
        )
    if not os.path.isfile(folder / SETTINGS_FILE):
        raise PolicyError(f'{folder / SETTINGS_FILE} is missing; copy the whole folder')
    programs = [folder / name for name in (EXPORT_FILE, SCRIPT_FILE)]
    there = [program for program in programs if os.path.isfile(program)]
    if len(there) != 1:
        raise PolicyError(
            f'{folder} must hold either {EXPORT_FILE} or {SCRIPT_FILE}, got '
            f'{"both" if there else "neither"}'
        )
    return folder / SETTINGS_FILE, there[0]


def _description(
    loading: Loading, sidecar: Sidecar, files: list[Path], without: list[str]
) -> Description:
    try:
        identity = fingerprint(loading.name or sidecar.id, files)
    except OSError as error:
        raise PolicyError(f'cannot read the policy: {error}') from error
    note = f'no statistics for {", ".join(without)}: served without normalising them'
    return Description(
        KIND,
        identity,
        sidecar.state_names,
        sidecar.action_names,
        sidecar.cameras,
        sidecar.chunk_size,
        sidecar.trained_fps,
        device=loading.device,
        stochastic=sidecar.stochastic,
        # a seed belongs to one request
        batch_limit=0 if sidecar.batched and not sidecar.stochastic else 1,
        notes=(note,) if without else (),
    )


def _program(file: Path, device: torch.device) -> torch.nn.Module:
    archive = checked(file, EXPORT_RULES if file.name == EXPORT_FILE else SCRIPT_RULES)
    try:
        if file.name == SCRIPT_FILE:
            return torch.jit.load(archive, map_location=device).eval()
        program = torch.export.load(archive)
        # its guards are source text; the shapes are checked by the probe and at each request
        return move_to_device_pass(program, device).module(check_guards=False)
    except Exception as error:
        # torch raises all kinds
        raise PolicyError(
            f'{file} cannot be loaded by torch {torch.__version__}: {in_one_line(error)}; export '
            'it with this version, on the CPU'
        ) from error
