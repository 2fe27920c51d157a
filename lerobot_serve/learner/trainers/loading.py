# SPDX-License-Identifier: Apache-2.0
"""
Make a trainer of its name or file. Any thread; torch is imported only for the built-in trainer.
"""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.learner.trainers.base import Trainer, TrainerError
from lerobot_serve.learner.trainers.command import CommandTrainer
from lerobot_serve.learner.trainers.trainer_file import (
    BUILTIN,
    BuiltinOptions,
    CommandOptions,
    read_trainer_file,
)
from lerobot_serve.requirements import install_command


def load_trainer(name: str) -> Trainer:
    """Return the trainer `builtin`, or that of a trainer file. Raises TrainerError."""
    options = BuiltinOptions() if name == BUILTIN else read_trainer_file(Path(name))
    if isinstance(options, CommandOptions):
        return CommandTrainer(options)
    try:
        from lerobot_serve.learner.trainers.builtin import BuiltinTrainer
    except ImportError as error:
        raise TrainerError(
            f'the built-in trainer cannot run here: {error}; install its requirements '
            f'({install_command("torch", "safetensors")})'
        ) from error
    return BuiltinTrainer(options)
