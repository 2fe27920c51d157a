# SPDX-License-Identifier: Apache-2.0
"""The resident memory is that which the kernel states, and 0 where it states none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lerobot_serve.telemetry.process_memory import resident_memory_mb

HELD_MB = 400
# in a process of its own: what other tests free would be part of the difference
CODE = f"""
import re
from lerobot_serve.telemetry.process_memory import resident_memory_mb
before_mb = resident_memory_mb()
held = bytearray({HELD_MB} * 1_000_000)
held[::4096] = b'1' * len(held[::4096])
after_mb = resident_memory_mb()
kilobytes = re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1]
print(before_mb, after_mb, int(kilobytes) * 1024 / 1e6)
"""


def test_it_is_what_the_kernel_states():
    printed = subprocess.run(
        [sys.executable, '-c', CODE], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    before_mb, after_mb, stated_mb = map(float, printed.split())
    # the kernel counts in batches for each of its cores
    assert after_mb == pytest.approx(stated_mb, rel=0.1)
    assert after_mb - before_mb == pytest.approx(HELD_MB, rel=0.1)


@pytest.mark.parametrize('text', ['', '12', 'a b c'])
def test_it_is_0_where_the_system_does_not_say(tmp_path, text):
    assert resident_memory_mb(tmp_path / 'gone') == 0
    (tmp_path / 'statm').write_text(text)
    assert resident_memory_mb(tmp_path / 'statm') == 0
