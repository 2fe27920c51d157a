# SPDX-License-Identifier: Apache-2.0
"""Libraries are left out of garbage collections; policies are freed all the same."""

from __future__ import annotations

import subprocess
import sys

FREEZES = """
import gc, sys, weakref
from lerobot_serve.policies.runtime import memory

class Policy:
    pass

first = Policy()
memory.leave_out_of_collections('libraries')
frozen = gc.get_freeze_count()
assert frozen > 1000
# what is frozen is freed with its last reference
gone = weakref.ref(first)
del first
assert gone() is None
# a policy that was loaded since, in a cycle of references, is collected
second = Policy()
second.itself = second
gone = weakref.ref(second)
memory.leave_out_of_collections('libraries')
assert gc.get_freeze_count() <= frozen, 'frozen twice for the same name'
del second
memory.release_unused()
assert gone() is None
memory.leave_out_of_collections('others')
assert gc.get_freeze_count() > frozen - 100
assert 'torch' not in sys.modules
"""


def test_what_is_left_out_is_freed_and_what_came_since_is_collected():
    """In a process of its own: nothing thaws what is frozen."""
    ended = subprocess.run([sys.executable, '-c', FREEZES], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
