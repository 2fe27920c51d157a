# SPDX-License-Identifier: Apache-2.0
"""The bounds of what a pickle may ask for. Each is checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """
    The bounds of one pickle.

    Arrays are views of the pickle, so `pickle_bytes` bounds them too; only big-endian arrays and
    the text form of protocol 2 are copied, each byte once, up to `copied_bytes`.
    """

    pickle_bytes: int = 32 * 2**20
    copied_bytes: int = 16 * 2**20
    # one text, and all texts together: names of joints, the task
    text_bytes: int = 4096
    all_text_bytes: int = 2**20
    opcodes: int = 20_000
    stack_items: int = 4096
    marks: int = 32
    array_dimensions: int = 8


OBSERVATION = Limits()
POLICY = Limits(pickle_bytes=2**20)
# LeRobot's server pickles every row of a chunk with a storage of its own
ACTIONS = Limits(opcodes=400_000, all_text_bytes=2**22)
