# SPDX-License-Identifier: Apache-2.0
"""
Write the folder of an exported policy, called from a training script.

    program = torch.export.export(network, (state, image), dynamic_shapes=...)
    write(Path('folder'), program, sidecar, statistics)              # program.pt2
    write(Path('folder'), program, sidecar, statistics, onnx=True)   # program.onnx

`sidecar` are the fields of policy.json as `sidecar` reads them. ONNX needs the packages onnx and
onnxscript.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.exported.sidecar import EXPORT_FILE, ONNX_FILE, STATISTICS_FILE
from lerobot_serve.policies.files.policy_folder import make_empty_folder, SETTINGS_FILE


def write(
    folder: Path,
    program: torch.export.ExportedProgram,
    sidecar: dict[str, Any],
    statistics: dict[str, torch.Tensor],
    *,
    onnx: bool = False,
) -> None:
    """
    Write policy.json, the program and its statistics into a new or empty folder.

    Raises PolicyError for a folder that is not empty, OSError.
    """
    make_empty_folder(folder)
    (folder / SETTINGS_FILE).write_text(json.dumps(sidecar, indent=2) + '\n', encoding='utf-8')
    if onnx:
        write_onnx(program, folder / ONNX_FILE)
    else:
        torch.export.save(program, folder / EXPORT_FILE)
    save_file(statistics, folder / STATISTICS_FILE)
    # save_file makes the file readable by its owner only
    (folder / STATISTICS_FILE).chmod(0o644)


def write_onnx(program: torch.export.ExportedProgram, file: Path) -> None:
    """Write a program as ONNX, in one file. Raises PolicyError."""
    exported = torch.onnx.export(program, verbose=False)
    if exported is None:
        raise PolicyError('torch.onnx.export returned no program')
    exported.save(file, external_data=False)
