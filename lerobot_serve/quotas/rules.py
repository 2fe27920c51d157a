# SPDX-License-Identifier: Apache-2.0
"""
The parameters of quotas, which are the same in router and server, and their rules:
`robot PATTERN: RATE, ...` and `group PATTERN: RATE, ...`. Pure.

A rule of robots gives each robot whose client_id matches a budget of its own; the first rule that
matches counts. A rule of a group gives all robots that match one budget together; each rule that
matches counts. A rate is `NUMBER requests/s`, `NUMBER MB/s` or `NUMBER inference_ms/s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
import math
import re

from lerobot_serve.parameters import parameter, ParameterError

RULE = re.compile(r'\s*(\w+)\s+(\S+)\s*:(.*)')
RATE = re.compile(r'\s*(\S+)\s+(\S+)\s*')
RATE_LIMIT, RULES_LIMIT, PATTERN_LIMIT = 1e9, 256, 128
EXAMPLE = "'robot *: 10 requests/s, 20 MB/s, 300 inference_ms/s'"


class Scope(Enum):
    """Who shares a budget."""

    ROBOT = 'robot'
    GROUP = 'group'


class Resource(Enum):
    """What is counted; the value is the unit of its rate."""

    REQUESTS = 'requests/s'
    MEGABYTES = 'MB/s'
    INFERENCE = 'inference_ms/s'


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """One rule. A resource that `rates` lacks is not limited."""

    scope: Scope
    pattern: str
    rates: tuple[tuple[Resource, float], ...]

    @property
    def name(self) -> str:
        return f'{self.scope.value} {self.pattern}'

    def matches(self, client_id: str) -> bool:
        return fnmatchcase(client_id, self.pattern)


def parse_quotas(lines: Iterable[str], name: str = 'quotas') -> tuple[QuotaRule, ...]:
    """Return the rules of the parameter `name`. Raises ParameterError."""
    rules: dict[str, QuotaRule] = {}
    for line in lines:
        rule = _rule(line, name)
        if rule.name in rules:
            raise ParameterError(f'{name} has two rules for {rule.name!r}; keep one of them')
        rules[rule.name] = rule
    if len(rules) > RULES_LIMIT:
        raise ParameterError(f'{name} may have {RULES_LIMIT} rules, got {len(rules)}')
    return tuple(rules.values())


def _rule(line: str, name: str) -> QuotaRule:
    found = RULE.fullmatch(line)
    scopes = {scope.value: scope for scope in Scope}
    if not found or found[1] not in scopes:
        raise ParameterError(
            f'{name} must hold rules like {EXAMPLE} or group lab_*: ..., got {line!r}'
        )
    if len(found[2]) > PATTERN_LIMIT:
        raise ParameterError(
            f'{name}: a pattern may have {PATTERN_LIMIT} characters, got {len(found[2])}'
        )
    rates: dict[Resource, float] = {}
    for text in found[3].split(','):
        resource, rate = _rate(text, line, name)
        if resource in rates:
            raise ParameterError(f'{name}: {resource.value} is there twice in {line!r}')
        rates[resource] = rate
    return QuotaRule(scopes[found[1]], found[2], tuple(rates.items()))


def _rate(text: str, line: str, name: str) -> tuple[Resource, float]:
    found = RATE.fullmatch(text)
    units = {resource.value: resource for resource in Resource}
    if not found or found[2] not in units:
        raise ParameterError(
            f'{name}: a rate is a number and one of {", ".join(units)}, got {text.strip()!r} in '
            f'{line!r}'
        )
    try:
        rate = float(found[1])
    except ValueError:
        rate = math.nan
    if not 0 < rate <= RATE_LIMIT:
        raise ParameterError(
            f'{name}: a rate must be above 0 and at most {RATE_LIMIT:g}, got {found[1]!r} in '
            f'{line!r}'
        )
    return units[found[2]], rate


def quotas() -> tuple[str, ...]:
    """Return the parameter `quotas`."""
    return parameter(
        (),
        f'rules like {EXAMPLE}: what each robot whose client_id matches may use, the first match '
        "counts; 'group lab_*: ...': what all that match may use together; empty: no quota",
        live=True,
    )


def quota_burst_s() -> float:
    """Return the parameter `quota_burst_s`."""
    return parameter(
        2.0,
        'a robot or group that was silent may use up this much of its quota at once',
        unit='s',
        low=0.1,
        high=3600.0,
        live=True,
    )
