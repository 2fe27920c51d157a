# SPDX-License-Identifier: Apache-2.0
"""
Run an ONNX file with onnxruntime, from bytes that were checked. No torch.

Executed as a script, this file is the trial process: it loads the model and runs it once within
bounded memory and time, so that a crash of onnxruntime ends only the child. It reads one line of
JSON and the model's bytes, and writes one line of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
import json
from pathlib import Path
import resource
import subprocess
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.exported.onnx_file import check_model, external_bytes, ExternalTensor
from lerobot_serve.policies.exported.program_archive import UnsafeProgram

TRIAL_TIMEOUT_S, TRIAL_SPARE_BYTES, MODEL_COPY_COUNT = 120.0, 4 << 30, 6
BFLOAT16 = 16
DTYPES: dict[int, type[np.generic]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    BFLOAT16: np.uint16,
}
FLOAT_INPUT = 'tensor(float)'


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An ONNX file that was read and checked."""

    folder: Path
    data: bytes
    external: tuple[ExternalTensor, ...]
    size_bytes: int


def read_model(file: Path) -> OnnxModel:
    """Return the checked model of a file. Raises PolicyError."""
    try:
        data = file.read_bytes()
        external = check_model(memoryview(data)).external
        size_bytes = len(data) + external_bytes(file.parent, external)
    except UnsafeProgram as error:
        raise PolicyError(
            f'{file} is refused: it {error}; a program must not contain anything that can run '
            'code or reach other files; export it again'
        ) from error
    except OSError as error:
        raise PolicyError(f'{file} cannot be read ({error}); copy it again') from error
    return OnnxModel(file.parent, data, tuple(external), size_bytes)


def open_session(model: OnnxModel, device: str = 'cpu', threads: int = 0) -> Any:
    """Return a session of onnxruntime. Raises PolicyError, and any error of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    if model.external:
        values = [_read_external(onnxruntime, model.folder, each) for each in model.external]
        options.add_external_initializers([each.name for each in model.external], values)
    return onnxruntime.InferenceSession(
        model.data, options, providers=[_provider(onnxruntime, device)]
    )


def _provider(onnxruntime: Any, device: str) -> Any:
    if device == 'cpu':
        return 'CPUExecutionProvider'
    name = 'CUDAExecutionProvider'
    kind, _, number = device.partition(':')
    if kind != 'cuda' or name not in onnxruntime.get_available_providers():
        raise PolicyError(
            f'the device {device!r} cannot run an ONNX program here; use cpu, or install '
            'onnxruntime-gpu instead of onnxruntime on a machine with CUDA'
        )
    return name, {'device_id': int(number or 0)}


def _read_external(onnxruntime: Any, folder: Path, each: ExternalTensor) -> Any:
    """Return a copy of the values of a tensor in another file."""
    with open(folder / each.location, 'rb') as handle:
        handle.seek(each.offset)
        data = handle.read(each.size_bytes)
    values: NDArray[Any] = np.frombuffer(data, DTYPES[each.element_type]).reshape(each.dims)
    if each.element_type == BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(values, BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(values)


def model_input_names(session: Any, count: int) -> list[str]:
    """Return the names of the inputs in order. Raises PolicyError for unexpected inputs."""
    inputs = session.get_inputs()
    types = [each.type for each in inputs]
    if len(inputs) != count or any(each != FLOAT_INPUT for each in types):
        raise PolicyError(
            f'the program takes {len(inputs)} inputs ({", ".join(types)[:120]}), but policy.json '
            f'names {count} of float32: the inputs, then the states'
        )
    return [each.name for each in inputs]


def run_in_child_process(model: OnnxModel, shapes: Sequence[tuple[int, ...]]) -> None:
    """
    Load a model and run it once on zeros, in a child process. Raises PolicyError.

    The child has a memory and a time limit, and ends when this process ends.
    """
    limit_bytes = TRIAL_SPARE_BYTES + MODEL_COPY_COUNT * model.size_bytes
    task = {
        'folder': str(model.folder),
        'external': [asdict(each) for each in model.external],
        'size_bytes': model.size_bytes,
        'shapes': [list(shape) for shape in shapes],
        'limit_bytes': limit_bytes,
    }
    try:
        done = subprocess.run(
            [sys.executable, '-m', __spec__.name],
            input=json.dumps(task).encode() + b'\n' + model.data,
            capture_output=True,
            timeout=TRIAL_TIMEOUT_S,
        )
        result = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    except subprocess.TimeoutExpired as error:
        raise PolicyError(
            f'the program in {model.folder} did not finish within {TRIAL_TIMEOUT_S:g} s; it is '
            'too slow to serve a robot'
        ) from error
    except ValueError:
        result = {}
    if result.get('error') != '':
        reason = result.get('error') or f'the trial ended with status {done.returncode}'
        raise PolicyError(
            f'the program in {model.folder} cannot be run within {limit_bytes >> 20} MB by '
            f'onnxruntime: {reason}; export it again'
        )


def child_main() -> None:
    """Run the task that `run_in_child_process` writes on stdin; write the result on stdout."""
    task = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (task['limit_bytes'],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(TRIAL_TIMEOUT_S),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    external = tuple(
        ExternalTensor(**{**each, 'dims': tuple(each['dims'])}) for each in task['external']
    )
    data = sys.stdin.buffer.read()
    model = OnnxModel(Path(task['folder']), data, external, task['size_bytes'])
    try:
        session = open_session(model, threads=1)
        names = model_input_names(session, len(task['shapes']))
        zeros = [np.zeros(shape, np.float32) for shape in task['shapes']]
        session.run(None, dict(zip(names, zeros, strict=True)))
        error = ''
    except Exception as raised:
        # onnxruntime raises errors of any type
        error = one_line(raised)
    print(json.dumps({'error': error}), flush=True)


if __name__ == '__main__':
    child_main()
