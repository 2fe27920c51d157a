# SPDX-License-Identifier: Apache-2.0
"""The files of an exported policy. No torch, any thread."""

from __future__ import annotations

import os
from pathlib import Path

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.exported.onnx_session import OnnxModel, read_model
from lerobot_serve.policies.exported.sidecar import Sidecar
from lerobot_serve.policies.files.fingerprint import fingerprint
from lerobot_serve.policies.files.policy_folder import check_folder
from lerobot_serve.policies.files.policy_json import read_policy_json, SETTINGS_FILE
from lerobot_serve.policies.files.version_folder import version_name

EXPORT_FILE, ONNX_FILE = 'program.pt2', 'program.onnx'
STATISTICS_FILE = 'statistics.safetensors'


def policy_files(path: str) -> tuple[Path, Path]:
    """Return policy.json and the program. Raises PolicyError."""
    folder = Path(path)
    if not path or not os.path.isdir(path):
        raise PolicyError(
            f'the path of an exported policy is its folder, with {SETTINGS_FILE} and '
            f'{EXPORT_FILE} or {ONNX_FILE}; {path!r} is not a folder'
        )
    check_folder(folder)
    if not os.path.isfile(folder / SETTINGS_FILE):
        raise PolicyError(f'{folder / SETTINGS_FILE} is missing; copy the whole folder')
    programs = [folder / name for name in (EXPORT_FILE, ONNX_FILE)]
    there = [program for program in programs if os.path.isfile(program)]
    if len(there) != 1:
        script = ' (TorchScript, program.pt, is no longer served)'
        raise PolicyError(
            f'{folder} must hold either {EXPORT_FILE} or {ONNX_FILE}, got '
            f'{"both" if there else "neither"}'
            f'{script if os.path.isfile(folder / "program.pt") else ""}'
        )
    return folder / SETTINGS_FILE, there[0]


def policy_fingerprint(
    program: Path, sidecar: Sidecar, model: OnnxModel | None, name: str = ''
) -> str:
    """
    Return the fingerprint of settings, program, statistics and external tensors; `name` is that
    of the operator. Raises PolicyError.
    """
    folder = program.parent
    files = [folder / SETTINGS_FILE, program]
    if os.path.isfile(folder / STATISTICS_FILE):
        files.append(folder / STATISTICS_FILE)
    if model:
        files += sorted({folder / each.location for each in model.external})
    try:
        return fingerprint(name or version_name(folder) or sidecar.id, files)
    except OSError as error:
        raise PolicyError(f'cannot read the policy: {error}') from error


def folder_fingerprint(path: str, name: str = '') -> str:
    """Return the fingerprint of a folder without loading its program. Raises PolicyError."""
    settings, program = policy_files(path)
    model = read_model(program) if program.name == ONNX_FILE else None
    return policy_fingerprint(program, read_policy_json(Sidecar, settings), model, name)
