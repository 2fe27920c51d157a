# SPDX-License-Identifier: Apache-2.0
"""
Rules for values in the files of a policy, from which the allow-lists are built. Any thread.

A folder is not trusted: a value that no rule allows is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import difflib
import math
import re
from typing import Any

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.policy_folder import SIZE_LIMIT

TEXT_LIMIT, ITEM_LIMIT, NUMBER_LIMIT = 256, 64, 1e12
WORD = re.compile(r'[\w./ :+@-]*', re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule of one field: its description and its test."""

    text: str
    is_valid: Callable[[Any], bool]


Rules = Mapping[str, FieldRule]


def one_of(*allowed: Any) -> FieldRule:
    """Return the rule for one of these values, type included."""
    return FieldRule(
        ' or '.join(map(repr, allowed)),
        lambda value: any(type(value) is type(one) and value == one for one in allowed),
    )


def integer_range(low: int, high: int) -> FieldRule:
    """Return the rule for a whole number in a range."""
    return FieldRule(
        f'a whole number from {low} to {high}',
        lambda value: type(value) is int and low <= value <= high,
    )


def number_range(low: float, high: float) -> FieldRule:
    """Return the rule for a finite number in a range."""
    return FieldRule(
        f'a number from {low:g} to {high:g}',
        lambda value: _is_number(value) and low <= value <= high,
    )


def each(names: str, rule: FieldRule) -> dict[str, FieldRule]:
    """Return the rules of some fields, all the same."""
    return dict.fromkeys(names.split(), rule)


def optional(rule: FieldRule) -> FieldRule:
    """Return a rule that also allows null."""
    return FieldRule(f'null or {rule.text}', lambda value: value is None or rule.is_valid(value))


def list_of(rule: FieldRule, *counts: int) -> FieldRule:
    """Return the rule for a list; `counts` are the allowed lengths, any length if empty."""
    text = ' or '.join(map(str, counts)) if counts else f'up to {ITEM_LIMIT}'
    return FieldRule(
        f'a list of {text}, each {rule.text}',
        lambda value: (
            isinstance(value, list)
            and (len(value) in counts if counts else len(value) <= ITEM_LIMIT)
            and all(map(rule.is_valid, value))
        ),
    )


def object_of(key: Callable[[str], bool], rule: FieldRule) -> FieldRule:
    """Return the rule for an object of at most ITEM_LIMIT entries."""
    return FieldRule(
        f'an object of up to {ITEM_LIMIT} entries, each {rule.text}',
        lambda value: (
            isinstance(value, dict)
            and len(value) <= ITEM_LIMIT
            and all(key(name) and rule.is_valid(each) for name, each in value.items())
        ),
    )


def is_text(value: Any) -> bool:
    """Return whether a value is a short line of printable text."""
    return isinstance(value, str) and len(value) <= TEXT_LIMIT and value.isprintable()


def is_word(value: Any) -> bool:
    return is_text(value) and bool(WORD.fullmatch(value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_feature(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {'type', 'shape'}
        and value['type'] in FEATURE_TYPES
        and list_of(SIZE, 0, 1, 2, 3, 4).is_valid(value['shape'])
    )


FEATURE_TYPES = ('STATE', 'VISUAL', 'ENV', 'ACTION', 'REWARD', 'LANGUAGE')
MODES = ('MIN_MAX', 'MEAN_STD', 'IDENTITY', 'QUANTILES', 'QUANTILE10')
COUNT, LAYERS = integer_range(0, SIZE_LIMIT), integer_range(1, 128)
SIZE = integer_range(1, SIZE_LIMIT)
WIDTH = integer_range(1, 1 << 16)
FLAG = one_of(False, True)
FRACTION, NUMBER = number_range(0, 1), number_range(-NUMBER_LIMIT, NUMBER_LIMIT)
TEXT, NAME = FieldRule('a short text', is_text), FieldRule('a short plain text', is_word)
NAMES = list_of(NAME)
DEVICE = optional(
    FieldRule(
        "'cpu', 'mps' or 'cuda:N'",
        lambda value: isinstance(value, str)
        and bool(re.fullmatch(r'cpu|mps|xpu|cuda(:\d{1,2})?', value)),
    )
)
FEATURES = object_of(is_text, FieldRule('a feature with type and shape', _is_feature))
NORMALIZATION = object_of(
    lambda name: name in FEATURE_TYPES,
    FieldRule(f'one of {", ".join(MODES)}', lambda v: v in MODES),
)


def check_keys(values: Mapping[str, Any], rules: Rules, where: str, what: str) -> None:
    """
    Raise PolicyError unless each key has a rule and each value follows it.

    A missing key has LeRobot's default. `what` names the owner of the keys in error texts.
    """
    for name, value in values.items():
        rule = rules.get(name)
        if rule is None:
            near = difflib.get_close_matches(name[:TEXT_LIMIT], rules, 1)
            hint = f' (the nearest is {near[0]!r})' if near else ''
            raise PolicyError(
                f'{where}: {name!r:.80} is not a setting that {what} may have{hint}; save '
                'the policy again with the LeRobot that is installed, or install the '
                'lerobot_serve that knows it'
            )
        if not rule.is_valid(value):
            raise PolicyError(f'{where}: {name} must be {rule.text}, got {value!r:.80}')
