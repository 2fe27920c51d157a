# SPDX-License-Identifier: Apache-2.0
"""Changing what lies in a program's archive, as somebody would who means harm."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import zipfile

GRAPH, SAMPLES = 'models/model.json', 'data/sample_inputs/model.pt'
WEIGHTS = 'data/weights/model_weights_config.json'
CONSTANTS = 'data/constants/model_constants_config.json'
Members = dict[str, bytes]


def members(file: Path) -> Members:
    with zipfile.ZipFile(file) as archive:
        return {name.partition('/')[2]: archive.read(name) for name in archive.namelist()}


def write(file: Path, content: Members) -> None:
    with zipfile.ZipFile(file, 'w') as archive:
        for name, data in content.items():
            archive.writestr(f'program/{name}', data)


def edit(folder: Path, change: Callable[[Members], None]) -> None:
    content = members(folder / 'program.pt2')
    change(content)
    write(folder / 'program.pt2', content)


def edit_json(folder: Path, name: str, change: Callable[[dict], None]) -> None:
    def changed(content: Members) -> None:
        values = json.loads(content[name])
        change(values)
        content[name] = json.dumps(values).encode()

    edit(folder, changed)


class Harm:
    """Touches a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def code(trace: Path) -> str:
    return f"__import__('pathlib').Path({str(trace)!r}).touch()"
