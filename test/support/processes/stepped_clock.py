# SPDX-License-Identifier: Apache-2.0
"""A system clock that a test steps, for the processes that it starts and for no others."""

from __future__ import annotations

from pathlib import Path
import shutil
import struct
import subprocess

import pytest

SOURCE = Path(__file__).with_name('stepped_clock.c')


class SteppedClock:
    """Compiled once for each test; `environment` makes a process live by it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which('gcc') or shutil.which('cc')
        if compiler is None:
            pytest.skip('needs a C compiler: the system clock is stepped for one process only')
        library, self._offset = folder / 'stepped_clock.so', folder / 'clock_offset'
        command = [compiler, '-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-o', str(library)]
        subprocess.run([*command, str(SOURCE), '-ldl', '-lpthread'], check=True)
        self.step_to(0.0)
        self.environment = {'LD_PRELOAD': str(library), 'STEPPED_CLOCK': str(self._offset)}

    def step_to(self, offset_s: float) -> None:
        """Let the clock be so much ahead from now on."""
        if not self._offset.exists():
            self._offset.write_bytes(bytes(8))
        # in place: the processes have mapped this very file
        with open(self._offset, 'r+b') as file:
            file.write(struct.pack('<q', int(offset_s * 1e9)))
