# SPDX-License-Identifier: Apache-2.0
"""A folder full of modules that leave a line in a file when they are imported."""

from __future__ import annotations

from pathlib import Path

MODULES = (
    *('json', 're', 'resource', 'struct', 'tempfile', 'threading', 'typing', 'yaml'),
    *('numpy', 'torch', 'onnxruntime', 'safetensors', 'tokenizers', 'transformers', 'lerobot'),
    *('huggingface_hub', 'rclpy', 'sitecustomize', 'usercustomize', 'encodings_trap'),
)
PACKAGES = ('lerobot_serve', 'lerobot_serve_interfaces')


def fill(folder: Path, log: Path) -> None:
    """Write the traps; `log` has a line for each that was imported."""
    for name in MODULES:
        (folder / f'{name}.py').write_text(trap(name, log))
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / '__init__.py').write_text(trap(name, log))
    (folder / 'trap.pth').write_text(f'import os; {trap("trap.pth", log)}')


def trap(name: str, log: Path) -> str:
    return f"open({str(log)!r}, 'a').write({name + chr(10)!r}); raise SystemExit({name!r})\n"


def sprung(log: Path) -> list[str]:
    """Return the traps that were imported."""
    return log.read_text().split() if log.exists() else []
