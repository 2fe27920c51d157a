# SPDX-License-Identifier: Apache-2.0
"""
The options of both trainers, and the file that has them: `builtin` with its options, or `command`
with the words of a program. docs/trainers.md describes it. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
import re
from typing import Annotated, Any

from msgspec import Meta

from lerobot_serve.files.load import load, parsed, Record, Refused, rule
from lerobot_serve.files.parsing import from_yaml, shown
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.parameters import closest_name

BUILTIN, COMMAND = 'builtin', 'command'
# `step:12` and `step:3K` in a line of lerobot-train, `12/400 [` in its progress bar
STEP_PATTERN = r'\bstep:(\S+)|\bTraining:.*?(\d+)/\d+ \['
LOSS_PATTERN = r'\bloss:(\S+)'
PLACEHOLDERS = (
    *('dataset', 'parent', 'output', 'work', 'seed', 'budget_s', 'steps', 'new_episodes'),
)
PLACEHOLDER = re.compile(r'\{(\w+)\}')
# where a command may leave the policy, which is moved from there
RESULT_BEGINNINGS = ('{output}', '{work}')
# rows that are drawn beforehand, and kept in memory
DRAWS_LIMIT = 50_000_000


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a checked text with its placeholders replaced."""
    replace: Callable[[re.Match[str]], str] = lambda found: values[found[1]]  # noqa: E731
    return PLACEHOLDER.sub(replace, text)


def _is_result(result: str) -> bool:
    parts = PurePosixPath(result).parts
    return bool(parts) and parts[0] in RESULT_BEGINNINGS and '..' not in parts


def _has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups > 0
    except (re.error, OverflowError, RecursionError):
        return False


Steps = Annotated[int, Meta(ge=1, le=10**9)]
NO_NUL = Meta(pattern=r'^[^\0]*\Z')
Word = Annotated[str, NO_NUL, Meta(min_length=1)]
Variable = Annotated[
    str, Meta(pattern=r'^[A-Za-z_][A-Za-z0-9_]*\Z', description='that of a variable')
]
Pattern = Annotated[
    str,
    rule(
        _has_group,
        r"a regular expression with a group around the number, such as 'step (\d+)'",
    ),
]


class BuiltinOptions(Record, frozen=True):
    """
    Of the built-in trainer. Steps, not seconds: the result must not depend on how fast or how busy
    a machine is. Another `cpu_threads` changes the last bits of the result.
    """

    steps: Steps = 800
    batch_size: Annotated[int, Meta(ge=2, le=65536)] = 32
    learning_rate: Annotated[float, Meta(ge=1e-8, le=1)] = 1e-3
    intervention_weight: Annotated[float, Meta(ge=1, le=1000)] = 3.0
    # two of them take twice the CPU where others use the cores: they spin while they wait
    cpu_threads: Annotated[int, Meta(ge=1, le=256)] = 1

    def __post_init__(self) -> None:
        if self.steps * self.batch_size > DRAWS_LIMIT:
            raise ValueError(
                f'steps x batch_size must be at most {DRAWS_LIMIT}, got '
                f'{self.steps} x {self.batch_size}'
            )


class CommandOptions(Record, frozen=True):
    """
    Of a command: its words, and where it leaves the policy, both with placeholders. `steps` is 0
    where the file does not say how many there are: then no progress is known. The command gets
    `end_s` to end after SIGINT, and as long after SIGTERM.
    """

    command: Annotated[
        tuple[Word, ...],
        Meta(
            min_length=1,
            description='a list of words, each in quotes where YAML would read a number; no shell '
            'runs it: no pipes, no $VARIABLES, no *',
        ),
    ]
    result: Annotated[
        str,
        rule(
            _is_result,
            f'where the command leaves the policy, below {" or ".join(RESULT_BEGINNINGS)}, such '
            'as {output}/checkpoints/last/pretrained_model',
        ),
        NO_NUL,
    ]
    steps: Steps = 0
    environment: Annotated[
        dict[Variable, Annotated[str, NO_NUL, Meta(description='a text in quotes')]],
        Meta(description="a group of variables with texts, such as OMP_NUM_THREADS: '1'"),
    ] = {}
    step_pattern: Pattern = STEP_PATTERN
    loss_pattern: Pattern = LOSS_PATTERN
    end_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0

    def __post_init__(self) -> None:
        for text in (*self.command, self.result, *self.environment.values()):
            for name in PLACEHOLDER.findall(text):
                self._check_placeholder(name, text)

    def _check_placeholder(self, name: str, text: str) -> None:
        if name not in PLACEHOLDERS:
            near = closest_name(name[:80], PLACEHOLDERS)
            known = ', '.join(f'{{{each}}}' for each in PLACEHOLDERS)
            hint = f'did you mean {{{near}}}?' if near else f'allowed are {known}'
            raise ValueError(f'unknown placeholder {{{name[:80]}}} in {shown(text)}; {hint}')
        if name == 'steps' and not self.steps:
            raise ValueError(f'{shown(text)} needs the key steps, such as steps: 2000')


class BuiltinFile(Record, frozen=True):
    """A file with options of the built-in trainer."""

    builtin: BuiltinOptions | None


def read_trainer_file(file: Path) -> BuiltinOptions | CommandOptions:
    """Return the options in a file; ~ is the home folder. Raises TrainerError."""
    file = file.expanduser()
    try:
        return trainer_options(parsed(file, from_yaml), str(file))
    except Refused as refused:
        raise TrainerError(
            'the trainer is builtin or a trainer file, such as those in config/trainers; '
            f'{refused}'
        ) from None


def trainer_options(content: Any, place: str) -> BuiltinOptions | CommandOptions:
    """Return the options in a content. Raises Refused."""
    if not isinstance(content, dict) or (BUILTIN in content) == (COMMAND in content):
        raise Refused(
            place,
            f'must have the key {BUILTIN} (options of the built-in trainer) or {COMMAND} (the '
            f'words of a program), got {shown(content)}',
        )
    if BUILTIN in content:
        return load(BuiltinFile, content, place).builtin or BuiltinOptions()
    return load(CommandOptions, content, place)
