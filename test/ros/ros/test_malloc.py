# SPDX-License-Identifier: Apache-2.0
"""Freed megabytes stay with the process: the next request does not fault them in again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from lerobot_serve.allocator import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
for round in range(40):
    if round == 20:
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    images = [bytearray(8 << 20) for _ in range(3)]
    for image in images:
        image[::4096] = b'1' * (len(image) // 4096)
    del images, image
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin)
"""


def faults(*, keep: bool) -> int:
    code = FAULTS.format(keep=keep)
    return int(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='the allocator is not glibc')
def test_page_faults_go_away():
    assert faults(keep=True) < faults(keep=False) / 10
