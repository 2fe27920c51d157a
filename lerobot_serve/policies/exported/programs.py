# SPDX-License-Identifier: Apache-2.0
"""
Run a program of torch.export or ONNX behind one interface. Owned by the inference worker.

A program takes batches of float32, the inputs of policy.json and then its states, and returns a
chunk and then its new states.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import io
from pathlib import Path
import threading
from typing import Any, Protocol

import torch
from torch.export.passes import move_to_device_pass
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.exported.onnx_session import (
    filled,
    model_input_names,
    OnnxModel,
    open_session,
    run_in_child_process,
    run_options,
    TRIAL_LIMIT_S,
    TrialInput,
)
from lerobot_serve.policies.exported.program_archive import checked_archive
from lerobot_serve.policies.exported.program_operators import use_checked_operators
from lerobot_serve.policies.exported.torch_export_rules import EXPORT_RULES
from lerobot_serve.policies.runtime.loading_beside import at_serving_priority
from lerobot_serve.policies.runtime.trial import try_in_child

TENSOR_LIMIT_BYTES = 1 << 30
# the archive, the tensors read from it and those of a run
ARCHIVE_COPY_COUNT = 6
# of torch's own generator, from the seed of a program to its last draw
SEEDED = threading.Lock()


class Program(Protocol):
    """The program of a policy."""

    def run(self, inputs: list[torch.Tensor], seed: int | None) -> Sequence[Any]:
        """Return the outputs in order; `seed` is None unless the program draws random numbers."""

    def interrupt(self) -> None:
        """Ask a run to end with an error, if the library can; any thread."""

    def buffer_copies(self) -> list[torch.Tensor]:
        """Return copies of the buffers that a run could change."""


class TorchProgram:
    """A program of torch.export."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def run(self, inputs: list[torch.Tensor], seed: int | None) -> Sequence[Any]:
        # a swap tries another program meanwhile, which seeds the same generator
        with contextlib.nullcontext() if seed is None else SEEDED, torch.inference_mode():
            if seed is not None:
                torch.manual_seed(seed)
            outputs = self._module(*inputs)
        return outputs if isinstance(outputs, (tuple, list)) else (outputs,)

    def interrupt(self) -> None:
        """Torch ends no operator; only the end of the process does."""

    def buffer_copies(self) -> list[torch.Tensor]:
        return [buffer.clone() for buffer in self._module.buffers()]


class OnnxProgram:
    """A program of onnxruntime; inputs and outputs pass through host memory."""

    def __init__(self, session: Any, input_names: list[str], device: torch.device) -> None:
        self._session = session
        self._input_names = input_names
        self._device = device
        self._options: Any = None

    def run(self, inputs: list[torch.Tensor], seed: int | None) -> Sequence[Any]:
        values = {
            name: each.cpu().numpy() for name, each in zip(self._input_names, inputs, strict=True)
        }
        # of one run: an interrupted one stays so
        self._options = run_options()
        outputs = self._session.run(None, values, self._options)
        return [torch.from_numpy(each).to(self._device) for each in outputs]

    def interrupt(self) -> None:
        self._options.terminate = True

    def buffer_copies(self) -> list[torch.Tensor]:
        return []


class TensorSizeLimiter(TorchDispatchMode):
    """
    Refuses an operator whose result would exceed TENSOR_LIMIT_BYTES, before it is computed.

    It runs each operator on torch's device meta first, for the shape of its result; an operator
    without meta implementation is allowed.
    """

    def __init__(self) -> None:
        # through the class: torch does not type this function
        TorchDispatchMode.__init__(self)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            planned = func(*_on_meta_device(args), **_on_meta_device(kwargs))
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            planned = ()
        for each in tree_leaves(planned):
            size = each.untyped_storage().nbytes() if isinstance(each, torch.Tensor) else 0
            if size > TENSOR_LIMIT_BYTES:
                raise PolicyError(
                    f'the program makes a tensor of {size >> 20} MB in one step ({func}), at most '
                    f'{TENSOR_LIMIT_BYTES >> 20} MB are allowed; export a smaller one'
                )
        return func(*args, **kwargs)


def _on_meta_device(values: Any) -> Any:
    moved = tree_map_only(torch.Tensor, lambda each: each.to('meta'), values)
    return tree_map_only(torch.device, lambda _: torch.device('meta'), moved)


def load_torch(
    file: Path, runs: Sequence[Sequence[TrialInput]], device: torch.device
) -> TorchProgram:
    """
    Return the program of torch.export in a file, after a trial in a child process. Raises
    PolicyError.

    `runs` are its inputs and states, for each number of requests to try.
    """
    archive = checked_archive(file, EXPORT_RULES).getvalue()
    error = try_in_child(
        __spec__.name,
        run_first.__name__,
        {'runs': runs},
        archive,
        data_bytes=ARCHIVE_COPY_COUNT * len(archive),
        limit_s=TRIAL_LIMIT_S,
    )
    if not error:
        try:
            return TorchProgram(_module(archive, device))
        except Exception as raised:
            # torch raises errors of any type
            error = one_line(raised)
    raise PolicyError(
        f'{file} cannot be loaded and run by torch {torch.__version__}: {error}; export it with '
        'this version, on the CPU'
    )


def run_first(data: bytes, task: dict[str, Any]) -> None:
    """Run a program in the trial process. Raises any error of torch."""
    program = TorchProgram(_module(data, torch.device('cpu')))
    for inputs in task['runs']:
        program.run([torch.from_numpy(each) for each in filled(inputs)], 0)


def _module(archive: bytes, device: torch.device) -> torch.nn.Module:
    """Return the program in a checked archive. Raises any error of torch."""
    program = torch.export.load(io.BytesIO(archive))
    # the guards of a program are source text; the trial run and each request check the shapes
    module = move_to_device_pass(program, device).module(check_guards=False)
    use_checked_operators(module)
    return module


def load_onnx(
    model: OnnxModel, runs: Sequence[Sequence[TrialInput]], device: torch.device, threads: int
) -> OnnxProgram:
    """
    Return the program of an ONNX file, after a trial in a child process. Raises PolicyError.

    `runs` are as for `load_torch`.
    """
    run_in_child_process(model, runs)
    try:
        session = at_serving_priority(lambda: open_session(model, str(device), threads))
        names = model_input_names(session, len(runs[0]))
    except PolicyError:
        raise
    except Exception as error:
        # onnxruntime raises errors of any type
        raise PolicyError(
            f'the program in {model.folder} cannot be loaded by onnxruntime: {one_line(error)}'
        ) from error
    return OnnxProgram(session, names, device)
