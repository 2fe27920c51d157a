"""
Writing the folder of an exported policy, for whoever trains one.

    program = torch.export.export(network, (state, image), dynamic_shapes=...)
    write(Path('folder'), program, sidecar, statistics)

`sidecar` are the fields of policy.json as exported_sidecar reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
import torch

from lerobot_serve.policies.exported.loader import EXPORT_FILE, SCRIPT_FILE, STATISTICS_FILE
from lerobot_serve.policies.settings import SETTINGS_FILE


def write(
    folder: Path,
    program: torch.export.ExportedProgram | torch.jit.ScriptModule,
    sidecar: dict[str, Any],
    statistics: dict[str, torch.Tensor],
) -> None:
    """Write policy.json, the program and its statistics. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS_FILE).write_text(json.dumps(sidecar, indent=2) + '\n', encoding='utf-8')
    if isinstance(program, torch.export.ExportedProgram):
        torch.export.save(program, folder / EXPORT_FILE)
    else:
        torch.jit.save(program, folder / SCRIPT_FILE)
    save_file(statistics, folder / STATISTICS_FILE)
    # save_file makes it readable to its owner alone
    (folder / STATISTICS_FILE).chmod(0o644)
