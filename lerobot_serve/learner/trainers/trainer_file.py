# SPDX-License-Identifier: Apache-2.0
"""
Read a trainer file: `builtin` with its options, or `command` with the words of a program.

docs/trainers.md describes it. Every unknown key and placeholder is refused, with the nearest one.
Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
import re
from typing import Any

import yaml

from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.options import BuiltinOptions, CommandOptions
from lerobot_serve.parameters import closest_name
from lerobot_serve.policies.files.unique_keys import UniqueKeys

FILE_LIMIT_BYTES = 1 << 20
BUILTIN, COMMAND = 'builtin', 'command'
COMMAND_KEYS = tuple(field.name for field in fields(CommandOptions))
PLACEHOLDERS = (
    *('dataset', 'parent', 'output', 'work', 'seed', 'budget_s', 'steps', 'new_episodes'),
)
PLACEHOLDER = re.compile(r'\{(\w+)\}')
# where a command may leave the policy, which is moved from there
RESULT_BEGINNINGS = ('{output}', '{work}')
VARIABLE = re.compile(r'[A-Za-z_]\w*', re.ASCII)
WHOLE_LIMIT = 10**9
# rows that are drawn beforehand, and kept in memory
DRAWS_LIMIT = 50_000_000
SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The bounds of a number; `whole` for one without a fraction."""

    low: float
    high: float
    whole: bool = False

    def check(self, value: Any, where: str) -> None:
        """Raise TrainerError for another value."""
        kinds = (int,) if self.whole else (int, float)
        if type(value) not in kinds or not self.low <= value <= self.high:
            kind = 'a whole number' if self.whole else 'a number'
            raise TrainerError(
                f'{where} must be {kind} from {self.low:g} to {self.high:g}, got {shown(value)}'
            )


STEPS = NumberRule(1, WHOLE_LIMIT, whole=True)
END_S = NumberRule(0.1, 3600)
BUILTIN_RULES = {
    'steps': STEPS,
    'batch_size': NumberRule(2, 65536, whole=True),
    'learning_rate': NumberRule(1e-8, 1),
    'intervention_weight': NumberRule(1, 1000),
    'cpu_threads': NumberRule(1, 256, whole=True),
}


def read_trainer_file(file: Path) -> BuiltinOptions | CommandOptions:
    """Return the options in a file. Raises TrainerError."""
    return parse_trainer(_read(file), str(file))


def parse_trainer(content_text: str | bytes, place: str) -> BuiltinOptions | CommandOptions:
    """Return the options in a text of YAML; `place` is for errors. Raises TrainerError."""
    try:
        content = yaml.load(content_text, UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = ' '.join(str(error).split())
        raise TrainerError(f'{place}: not valid YAML: {text:.300}') from None
    if not isinstance(content, dict) or (BUILTIN in content) == (COMMAND in content):
        raise TrainerError(
            f'{place}: must have the key {BUILTIN} (options of the built-in trainer) or '
            f'{COMMAND} (the words of a program), got {shown(content)}'
        )
    if BUILTIN in content:
        _check_keys(content, (BUILTIN,), place)
        return _builtin(content[BUILTIN], f'{place}: {BUILTIN}')
    _check_keys(content, COMMAND_KEYS, place)
    return _command(content, place)


def _builtin(values: Any, place: str) -> BuiltinOptions:
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise TrainerError(
            f'{place} must be a group of {", ".join(BUILTIN_RULES)}, got {shown(values)}'
        )
    _check_keys(values, tuple(BUILTIN_RULES), place)
    given = asdict(BuiltinOptions()) | values
    for name, rule in BUILTIN_RULES.items():
        rule.check(given[name], f'{place}: {name}')
    if given['steps'] * given['batch_size'] > DRAWS_LIMIT:
        raise TrainerError(
            f'{place}: steps x batch_size must be at most {DRAWS_LIMIT}, got '
            f'{given["steps"]} x {given["batch_size"]}'
        )
    return BuiltinOptions(**given)


def _command(values: dict[str, Any], place: str) -> CommandOptions:
    words = _words(values['command'], f'{place}: command')
    result = _result(values, f'{place}: result')
    environment = _environment(values.get('environment', {}), f'{place}: environment')
    if 'steps' in values:
        STEPS.check(values['steps'], f'{place}: steps')
    for text in (*words, result, *environment.values()):
        _check_placeholders(text, place, has_steps='steps' in values)
    end_s = values.get('end_s', _default('end_s'))
    END_S.check(end_s, f'{place}: end_s')
    return CommandOptions(
        words,
        result,
        values.get('steps', 0),
        environment,
        _pattern(values, 'step_pattern', place),
        _pattern(values, 'loss_pattern', place),
        float(end_s),
    )


def _default(name: str) -> Any:
    return next(field.default for field in fields(CommandOptions) if field.name == name)


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_word, value)):
        raise TrainerError(
            f'{where} must be a list of words, each in quotes where YAML would read a number, got '
            f'{shown(value)}; no shell runs it: no pipes, no $VARIABLES, no *'
        )
    return tuple(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and '\0' not in value


def _result(values: dict[str, Any], where: str) -> str:
    result = values.get('result') or ''
    parts = Path(result).parts if _is_word(result) else ()
    if not parts or parts[0] not in RESULT_BEGINNINGS or '..' in parts:
        raise TrainerError(
            f'{where} must be where the command leaves the policy, below '
            f'{" or ".join(RESULT_BEGINNINGS)}, such as '
            f'{{output}}/checkpoints/last/pretrained_model, got {shown(result)}'
        )
    return str(result)


def _environment(value: Any, where: str) -> dict[str, str]:
    is_group = isinstance(value, dict) and all(
        isinstance(name, str) and VARIABLE.fullmatch(name) and isinstance(text, str)
        for name, text in value.items()
    )
    if not is_group or any('\0' in text for text in value.values()):
        raise TrainerError(
            f'{where} must be a group of variables with texts, such as '
            f"OMP_NUM_THREADS: '1', got {shown(value)}"
        )
    return dict(value)


def _pattern(values: dict[str, Any], name: str, place: str) -> re.Pattern[str]:
    if name not in values:
        default: re.Pattern[str] = _default(name)
        return default
    try:
        pattern = re.compile(values[name])
    except (re.error, TypeError) as error:
        raise TrainerError(
            f'{place}: {name} must be a regular expression, got {shown(values[name])} ({error})'
        ) from None
    if not isinstance(values[name], str) or not pattern.groups:
        raise TrainerError(
            f'{place}: {name} needs a group around the number, such as '
            rf"'step (\d+)', got {shown(values[name])}"
        )
    return pattern


def _check_placeholders(text: str, place: str, *, has_steps: bool) -> None:
    for name in PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            raise TrainerError(
                f'{place}: {{{name}}} in {shown(text)} is no placeholder; '
                f'{_hint(name, PLACEHOLDERS, "{%s}")}there are '
                f'{", ".join(f"{{{each}}}" for each in PLACEHOLDERS)}'
            )
        if name == 'steps' and not has_steps:
            raise TrainerError(f'{place}: {shown(text)} needs the key steps, such as steps: 2000')


def _check_keys(content: Mapping[Any, Any], known: tuple[str, ...], place: str) -> None:
    for key in content:
        if key not in known:
            raise TrainerError(
                f'{place}: {shown(key)} is no key; {_hint(str(key), known, "%s")}there are '
                f'{", ".join(known)}'
            )


def _hint(name: str, known: Iterable[str], form: str) -> str:
    near = closest_name(name[:SHOWN_CHARS], known)
    return f'did you mean {form % near}? ' if near else ''


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a checked text with its placeholders replaced."""
    replace: Callable[[re.Match[str]], str] = lambda found: values[found[1]]  # noqa: E731
    return PLACEHOLDER.sub(replace, text)


def shown(value: object) -> str:
    """Return a value for an error text, shortened."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f'{text[:SHOWN_CHARS]}...'


def _read(file: Path) -> bytes:
    try:
        with open(file, 'rb') as handle:
            data = handle.read(FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise TrainerError(
            f'the trainer is builtin or a trainer file; cannot read {shown(str(file))}: {reason}; '
            'examples are in config/trainers'
        ) from None
    if len(data) > FILE_LIMIT_BYTES:
        raise TrainerError(f'{file}: over {FILE_LIMIT_BYTES} bytes, which no trainer file is')
    return data
