# SPDX-License-Identifier: Apache-2.0
"""The options of both trainers, as a trainer file has them. Plain data; trainer_file checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import re

# `step:12` and `step:3K` in a line of lerobot-train, `12/400 [` in its progress bar
STEP_PATTERN = re.compile(r'\bstep:(\S+)|\bTraining:.*?(\d+)/\d+ \[')
LOSS_PATTERN = re.compile(r'\bloss:(\S+)')


@dataclass(frozen=True, slots=True)
class BuiltinOptions:
    """
    Of the built-in trainer. Steps, not seconds: the result must not depend on how fast or how busy
    a machine is. Another `cpu_threads` changes the last bits of the result.
    """

    steps: int = 800
    batch_size: int = 32
    learning_rate: float = 1e-3
    intervention_weight: float = 3.0
    # two of them take twice the CPU where others use the cores: they spin while they wait
    cpu_threads: int = 1


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """
    Of a command: its words, and where it leaves the policy, both with placeholders. `steps` is 0
    where the file does not say how many there are: then no progress is known. The command gets
    `end_s` to end after SIGINT, and as long after SIGTERM.
    """

    command: tuple[str, ...]
    result: str
    steps: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    step_pattern: re.Pattern[str] = STEP_PATTERN
    loss_pattern: re.Pattern[str] = LOSS_PATTERN
    end_s: float = 30.0
