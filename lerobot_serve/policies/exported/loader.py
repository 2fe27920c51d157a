# SPDX-License-Identifier: Apache-2.0
"""
The policy kind `exported`: a program of torch.export or ONNX, with its policy.json.

Its folder contains policy.json (`sidecar`), program.pt2 (torch.export) or program.onnx (ONNX), and
statistics.safetensors. The program takes the inputs of policy.json in that order: the state as N x
values, each camera as N x 3 x height x width, then its hidden states if it has any, as N x their
shape, all float32. It returns N x rows x actions, then the new hidden states. Before a library
reads the program, `torch_export_rules` or `onnx_file` refuses parts that could run code or reach
files, and lets pass only operators that exports of policies need. A child process tries the
program first, and each request has a time limit (`time_limit`). A program remains code: with other
inputs it may use all memory and end its server, so serve only programs of known origin.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
import torch

from lerobot_serve.contract.image_size import resized
from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import (
    LoadOptions,
    PolicyDescription,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.exported.normalization import FeatureScale, read_scales
from lerobot_serve.policies.exported.onnx_session import OnnxModel, read_model, TrialInput
from lerobot_serve.policies.exported.programs import (
    load_onnx,
    load_torch,
    Program,
    TensorSizeLimiter,
)
from lerobot_serve.policies.exported.sidecar import (
    ACTION,
    EXPORT_FILE,
    KIND,
    ONNX_FILE,
    policy_files,
    policy_fingerprint,
    Sidecar,
    STATE,
    STATISTICS_FILE,
)
from lerobot_serve.policies.files.file_headers import unpacked_bytes
from lerobot_serve.policies.files.policy_folder import read_policy_json, SETTINGS_FILE
from lerobot_serve.policies.option_checks import check_no_lerobot_options, check_options_match
from lerobot_serve.policies.runtime.device import (
    runs_in_any_thread,
    set_cpu_threads,
    stacked,
    tensor_view,
    torch_device,
    use_one_thread_beside,
)
from lerobot_serve.policies.runtime.memory import check_memory
from lerobot_serve.policies.runtime.request_inputs import newest_image, newest_state, SessionStates
from lerobot_serve.policies.runtime.time_limit import longest_run_s, TimeLimit

# the archive that was checked, and the tensors read from it
HOST_COPY_COUNT = 2
Hidden = list[torch.Tensor]
# a state, or the image of a camera
InputArray = NDArray[np.float32 | np.uint8 | np.uint16]


class ExportedPolicy:
    """See the module. Keeps the hidden states of sessions; owned by the inference worker."""

    def __init__(
        self,
        program: Program,
        sidecar: Sidecar,
        scales: dict[str, FeatureScale],
        description: PolicyDescription,
        state_limit: int = 64,
    ) -> None:
        self._program = program
        self._sidecar = sidecar
        self._scales = scales
        self._description = description
        self._is_batched = description.batch_limit != 1
        self._device = torch.device(description.device)
        self._cameras = {camera.name: camera for camera in sidecar.cameras}
        self._states: SessionStates[Hidden] = SessionStates(state_limit)
        self._limit: TimeLimit | None = None

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction each. Raises PolicyError for a wrong request and changes nothing.
        """
        groups = [requests] if self._is_batched else [[request] for request in requests]
        answers = [answer for group in groups if group for answer in self._predict(group)]
        if self._sidecar.states:
            for request, (_, hidden) in zip(requests, answers, strict=True):
                self._states.keep(request.session_id, request.episode, hidden)
        return [prediction for prediction, _ in answers]

    def reset(self, session_id: str) -> None:
        self._states.discard(session_id)

    def verify(self) -> None:
        """Run the program on zeros. Raises PolicyError for wrong outputs or hidden memory."""
        for count in (1, 2) if self._is_batched else (1,):
            before = self._program.buffer_copies()
            hidden = [self._initial_states() for _ in range(count)]
            try:
                with TensorSizeLimiter():
                    first, second = (self._run(self._zeros(count), hidden, 0) for _ in range(2))
            except PolicyError:
                raise
            except Exception as error:
                # torch and the code of a program raise errors of any type
                raise PolicyError(
                    f'the program fails on {count} x {", ".join(self._sidecar.inputs)} of the '
                    f'shapes in {SETTINGS_FILE}: {one_line(error)}'
                ) from error
            self._check_shapes(first, count)
            same = all(
                torch.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)
                for one, other in zip(first, second, strict=True)
            )
            if not same or not all(map(torch.equal, before, self._program.buffer_copies())):
                raise PolicyError(
                    'the program returns different outputs for equal inputs, or changes its own '
                    f'buffers; if it draws random numbers, set stochastic in {SETTINGS_FILE}; if '
                    'it has a hidden state, make the state an input and an output; otherwise '
                    'export it in evaluation mode and without memory'
                )

    def limit_time(self) -> None:
        """Limit the time of each request by what the program takes on zeros."""
        hidden = [self._initial_states()]
        longest_s = longest_run_s(lambda: self._run(self._zeros(1), hidden, 0))
        self._limit = TimeLimit(longest_s, self._program.interrupt)

    def _check_shapes(self, outputs: list[torch.Tensor], count: int) -> None:
        sidecar = self._sidecar
        chunk = (count, sidecar.chunk_size, len(sidecar.action_names))
        wanted = [chunk, *((count, *shape) for shape in sidecar.states)]
        got = [_tensor_summary(each) for each in outputs]
        if got != [f'{shape} of torch.float32' for shape in wanted]:
            raise PolicyError(
                f'the program returns {", ".join(got)}, but {SETTINGS_FILE} requires '
                f'{", ".join(map(str, wanted))} of torch.float32 (requests x chunk_size x '
                'actions, then the states); export it again, or correct the sizes'
            )

    def _run(
        self, inputs: dict[str, InputArray], hidden: list[Hidden], seed: int
    ) -> list[torch.Tensor]:
        """Return the program's chunks and new states for the raw inputs of a batch."""
        values = [self._prepared(name, inputs[name]) for name in self._sidecar.inputs]
        states = [torch.stack(each) for each in zip(*hidden, strict=True)]
        seeded = seed if self._sidecar.stochastic else None
        with self._limit.run(len(hidden)) if self._limit else contextlib.nullcontext():
            return list(self._program.run(values + states, seeded))

    def _predict(self, requests: list[PolicyRequest]) -> list[tuple[Prediction, Hidden]]:
        inputs = {
            name: stacked([self._input(name, request) for request in requests])
            for name in self._sidecar.inputs
        }
        taken = [
            self._states.take(each.session_id, each.episode, each.episode_start)
            for each in requests
        ]
        hidden = [self._initial_states() if state is None else state for state, _ in taken]
        model, *states = self._run(inputs, hidden, requests[0].seed)
        robot = self._scales[ACTION].denormalized(model) if ACTION in self._scales else model
        recurrent = bool(self._sidecar.states)
        return [
            (
                Prediction(
                    model[row].cpu().numpy(),
                    robot[row].cpu().numpy(),
                    state_lost=recurrent and lost,
                    state_found=state is not None,
                ),
                # copied, because a row would keep the whole batch in memory
                [each[row].clone() for each in states],
            )
            for row, (state, lost) in enumerate(taken)
        ]

    def _initial_states(self) -> Hidden:
        return [torch.zeros(shape, device=self._device) for shape in self._sidecar.states]

    def _input(self, name: str, request: PolicyRequest) -> InputArray:
        if name == STATE:
            return newest_state(request, len(self._sidecar.state_names))
        camera = self._cameras[name]
        return resized(newest_image(request, name), camera.height, camera.width)

    def _prepared(self, name: str, batch: InputArray) -> torch.Tensor:
        values = tensor_view(batch).to(self._device)
        if name != STATE:
            values = values.permute(0, 3, 1, 2).contiguous() / (255 / self._sidecar.white)
        scale = self._scales.get(name)
        return scale.normalized(values) if scale else values

    def _zeros(self, count: int) -> dict[str, InputArray]:
        shapes = {
            camera.name: (camera.height, camera.width, 3) for camera in self._sidecar.cameras
        }
        zeros: dict[str, InputArray] = {
            name: np.zeros((count, *shape), np.uint8) for name, shape in shapes.items()
        }
        zeros[STATE] = np.zeros((count, len(self._sidecar.state_names)), np.float32)
        return zeros


def _tensor_summary(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f'{tuple(value.shape)} of {value.dtype}'
    return type(value).__name__


def load(options: LoadOptions) -> ExportedPolicy:
    """Return the policy in the folder `options.path`, on its device. Raises PolicyError."""
    settings, program = policy_files(options.path)
    check_no_lerobot_options(options, KIND)
    statistics = settings.with_name(STATISTICS_FILE)
    sidecar = read_policy_json(Sidecar, settings)
    device = torch_device(options.device)
    scales, without = read_scales(
        statistics, sidecar, device, missing_allowed=options.allow_missing_statistics
    )
    model = _read_onnx(program, sidecar)
    identity = policy_fingerprint(program, sidecar, model, options.name)
    description = _description(options, sidecar, identity, without)
    if ACTION in scales:
        description = replace(description, action_range=scales[ACTION].range())
    check_options_match(options, description)
    check_memory(options, model.size_bytes if model else unpacked_bytes(program), HOST_COPY_COUNT)
    set_cpu_threads(options.cpu_threads)
    description = replace(description, any_thread=runs_in_any_thread(device))
    counts = (1, 2) if description.batch_limit != 1 else (1,)
    runs = [_first_inputs(sidecar, scales, count) for count in counts]
    if model:
        loaded: Program = load_onnx(model, runs, device, options.cpu_threads)
    else:
        use_one_thread_beside(device)
        loaded = load_torch(program, runs, device)
    policy = ExportedPolicy(loaded, sidecar, scales, description, options.state_limit)
    policy.verify()
    policy.limit_time()
    return policy


def _read_onnx(program: Path, sidecar: Sidecar) -> OnnxModel | None:
    """Read an ONNX program; return None for a torch program. Raises PolicyError."""
    if program.name != ONNX_FILE:
        return None
    if sidecar.stochastic:
        raise PolicyError(
            f'{program} cannot be stochastic: onnxruntime cannot be seeded per request; '
            f'export it as {EXPORT_FILE}'
        )
    return read_model(program)


def _first_inputs(
    sidecar: Sidecar, scales: dict[str, FeatureScale], count: int
) -> list[TrialInput]:
    """
    Return the inputs and states that `verify` gives to a program, so that what this process runs
    first has run in the trial: zeros as the statistics of the folder normalise them.
    """
    cameras = {camera.name: (count, 3, camera.height, camera.width) for camera in sidecar.cameras}
    known = {STATE: (count, len(sidecar.state_names)), **cameras}
    zero = {
        name: scales[name].normalized(torch.zeros((), device=scales[name].start.device)).tolist()
        for name in sidecar.inputs
        if name in scales
    }
    states = [((count, *each), 0.0) for each in sidecar.states]
    return [*((known[name], zero.get(name, 0.0)) for name in sidecar.inputs), *states]


def _description(
    options: LoadOptions, sidecar: Sidecar, identity: str, without: list[str]
) -> PolicyDescription:
    note = f'no statistics for {", ".join(without)}: served without normalising them'
    return replace(
        sidecar.described(KIND, identity, options.device),
        state_class=StateClass.RECURRENT if sidecar.states else StateClass.CHUNK_STATELESS,
        stochastic=sidecar.stochastic,
        # a seed belongs to one request
        batch_limit=0 if sidecar.batch == 'dynamic' and not sidecar.stochastic else 1,
        notes=(note,) if without else (),
    )
