# SPDX-License-Identifier: Apache-2.0
"""
Run an ONNX file with onnxruntime, from bytes that were written from the checked fields. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.exported.onnx_file import (
    checked_model,
    external_bytes,
    ExternalTensor,
    FILE_LIMIT_BYTES,
)
from lerobot_serve.policies.exported.program_archive import UnsafeProgram
from lerobot_serve.policies.runtime.trial import try_in_child

# onnxruntime holds a model, its optimized form and its parsed one
TRIAL_LIMIT_S, MODEL_COPY_COUNT = 120.0, 6
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
# the shape of an input, and the numbers that are repeated in it
TrialInput = tuple[tuple[int, ...], Any]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An ONNX file that was read and checked; `data` is written from its checked fields."""

    folder: Path
    data: bytes
    external: tuple[ExternalTensor, ...]
    size_bytes: int


def read_model(file: Path) -> OnnxModel:
    """Return the checked model of a file. Raises PolicyError."""
    try:
        with open(file, 'rb') as handle:
            data = handle.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            raise UnsafeProgram(f'has more than {FILE_LIMIT_BYTES} bytes')
        contents = checked_model(memoryview(data))
        size_bytes = len(contents.data) + external_bytes(file.parent, contents.external)
    except UnsafeProgram as error:
        raise PolicyError(
            f'{file} is refused: it {error}; a program must not contain anything that can run '
            'code or reach other files; export it again'
        ) from error
    except OSError as error:
        raise PolicyError(f'{file} cannot be read ({error}); copy it again') from error
    return OnnxModel(file.parent, contents.data, tuple(contents.external), size_bytes)


def open_session(model: OnnxModel, device: str = 'cpu', threads: int = 0) -> Any:
    """Return a session of onnxruntime. Raises PolicyError, and any error of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    # otherwise the bytes decide, and those of its own format are read unchecked
    options.add_session_config_entry('session.load_model_format', 'ONNX')
    if model.external:
        values = [_read_external(onnxruntime, model.folder, each) for each in model.external]
        options.add_external_initializers([each.name for each in model.external], values)
    return onnxruntime.InferenceSession(
        model.data, options, providers=[_provider(onnxruntime, device)]
    )


def run_options() -> Any:
    """Return the options of one run; `terminate` ends it."""
    import onnxruntime

    return onnxruntime.RunOptions()


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


def filled(inputs: Sequence[TrialInput]) -> list[NDArray[np.float32]]:
    """Return the arrays of the inputs of one run."""
    return [np.full(shape, numbers, np.float32) for shape, numbers in inputs]


def run_in_child_process(model: OnnxModel, runs: Sequence[Sequence[TrialInput]]) -> None:
    """Load a model and run it on these inputs, in a child process. Raises PolicyError."""
    task = {
        'folder': str(model.folder.absolute()),
        'external': [asdict(each) for each in model.external],
        'runs': runs,
    }
    error = try_in_child(
        __spec__.name,
        run_first.__name__,
        task,
        model.data,
        data_bytes=MODEL_COPY_COUNT * model.size_bytes,
        limit_s=TRIAL_LIMIT_S,
    )
    if error:
        raise PolicyError(
            f'the program in {model.folder} cannot be run by onnxruntime: {error}; export it again'
        )


def run_first(data: bytes, task: dict[str, Any]) -> None:
    """Run a model in the trial process. Raises PolicyError, and any error of onnxruntime."""
    external = tuple(
        ExternalTensor(**{**each, 'dims': tuple(each['dims'])}) for each in task['external']
    )
    session = open_session(OnnxModel(Path(task['folder']), data, external, len(data)), threads=1)
    names = model_input_names(session, len(task['runs'][0]))
    for inputs in task['runs']:
        session.run(None, dict(zip(names, filled(inputs), strict=True)))
