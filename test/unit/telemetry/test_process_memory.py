# SPDX-License-Identifier: Apache-2.0
"""The resident memory is that which the kernel states, and 0 where it states none."""

from __future__ import annotations

from pathlib import Path
import re

import numpy as np
import pytest

from lerobot_serve.telemetry.process_memory import resident_memory_mb


def test_it_is_what_the_kernel_states():
    before_mb = resident_memory_mb()
    held = np.ones(25_000_000)
    status = Path('/proc/self/status').read_text()
    kilobytes = int(re.search(r'VmRSS:\s+(\d+)', status)[1])
    assert resident_memory_mb() == pytest.approx(kilobytes * 1024 / 1e6, rel=0.1)
    assert resident_memory_mb() > before_mb + 0.9 * held.nbytes / 1e6


@pytest.mark.parametrize('text', ['', '12', 'a b c'])
def test_it_is_0_where_the_system_does_not_say(tmp_path, text):
    assert resident_memory_mb(tmp_path / 'gone') == 0
    (tmp_path / 'statm').write_text(text)
    assert resident_memory_mb(tmp_path / 'statm') == 0
