# SPDX-License-Identifier: Apache-2.0
"""Where the source tree keeps what tests read."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / 'test' / 'support'
PLUGINS = SUPPORT / 'plugins'


def module_environment() -> dict[str, str]:
    """Return an environment in which a child process finds the modules of the tests."""
    known = [str(REPOSITORY / 'test'), str(REPOSITORY), os.environ.get('PYTHONPATH', '')]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, known))}
