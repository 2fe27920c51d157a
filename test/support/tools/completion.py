# SPDX-License-Identifier: Apache-2.0
"""What a shell is told when it asks how a command line may go on."""

from __future__ import annotations

import os
from pathlib import Path
import subprocess
import sys

CODE = 'from lerobot_serve.tools.cli.main import main; main()'


def completed(line: str, folder: Path) -> list[str]:
    """Return the words with which a command line may go on."""
    file = folder / 'told'
    environment = {
        **os.environ,
        '_ARGCOMPLETE': '1',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(file),
        '_ARGCOMPLETE_IFS': '\n',
        'COMP_LINE': line,
        'COMP_POINT': str(len(line)),
    }
    command = [sys.executable, '-c', CODE]
    subprocess.run(command, env=environment, timeout=60, cwd=folder, check=True)
    return [word.strip() for word in file.read_text().split('\n') if word.strip()]
