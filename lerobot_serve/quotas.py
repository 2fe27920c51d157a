# SPDX-License-Identifier: Apache-2.0
"""
What a robot, or a group of robots, may ask of a router or a server: requests, bytes, inference;
and how often a robot without a session gets a reply. Called by the data path of router and
server, in any of its threads. Plain; time is an argument.

The parameter `quotas` has lines `robot PATTERN: RATE, ...` and `group PATTERN: RATE, ...`. A rule
of robots gives each robot whose client_id matches a budget of its own; the first rule that matches
counts. A rule of a group gives all robots that match one budget together; each rule that matches
counts. A rate is `NUMBER requests/s`, `NUMBER MB/s` or `NUMBER inference_ms/s`.

A request is admitted while each of its budgets has something left. A refused one uses nothing up;
its refusal names the time after which the next one is admitted, unless others of its group use the
budget up meanwhile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from itertools import islice
import math
import re
import threading

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


SESSION_PERIOD_S = 0.5
# a client with another session in each request must leave replies to others
MAX_CLIENT_REPLIES_PER_S, MAX_REPLIES_PER_S = 4, 50
MAX_SESSIONS = 1024


class NoSessionLimiter:
    """See the module."""

    def __init__(self) -> None:
        self._answered_ns: OrderedDict[tuple[str, int], int] = OrderedDict()
        # replies of this second by client: at most MAX_REPLIES_PER_S clients
        self._second, self._answers = -1, Counter[str]()

    def allows_reply(self, client_id: str, session_epoch: int, now_ns: int) -> bool:
        """Return whether to reply to this client now, and count the reply."""
        key, second = (client_id, session_epoch), now_ns // 1_000_000_000
        last_ns = self._answered_ns.get(key)
        if last_ns is not None and now_ns - last_ns < 1e9 * SESSION_PERIOD_S:
            return False
        if second != self._second:
            self._second, self._answers = second, Counter()
        is_client_done = self._answers[client_id] >= MAX_CLIENT_REPLIES_PER_S
        if is_client_done or self._answers.total() >= MAX_REPLIES_PER_S:
            return False
        self._answers[client_id] += 1
        self._answered_ns[key] = now_ns
        self._answered_ns.move_to_end(key)
        if len(self._answered_ns) > MAX_SESSIONS:
            self._answered_ns.popitem(last=False)
        return True


# robots whose budgets are kept; of those that were silent longest, the first one without debts is
# forgotten: a name of its own must not help a robot out of its debts
ROBOTS_LIMIT, OLDEST = 10_000, 64
MEGABYTE = 1e6
# what one request is charged at most: the reply of a faulty server must not bar a robot for good
INFERENCE_LIMIT_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """Which budget is used up, and after which time the next request is admitted."""

    rule: QuotaRule
    resource: Resource
    rate: float
    retry_after_s: float

    @property
    def text(self) -> str:
        return (
            f'quota of {self.rule.name} is used up ({self.rate:g} {self.resource.value}); the '
            f'next request is admitted in {self.retry_after_s:.3g} s'
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """The bucket of a resource, and the rule that it comes from."""

    rule: QuotaRule
    resource: Resource
    rate: float
    bucket: TokenBucket


class Quotas:
    """See the module. Without rules it admits everything."""

    def __init__(self, rules: Sequence[QuotaRule] = (), burst_s: float = 1.0) -> None:
        self._lock = threading.Lock()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._settings = tuple(rules), burst_s
        self._groups: dict[QuotaRule, list[Budget]] = {}
        self._robots: OrderedDict[str, list[Budget]] = OrderedDict()

    def apply(self, rules: Sequence[QuotaRule], burst_s: float) -> None:
        """Replace the rules. Budgets are full again if anything changes."""
        with self._lock:
            wanted = tuple(rules), burst_s
            if self._settings != wanted:
                self._settings = wanted
                self._groups.clear()
                self._robots.clear()

    @property
    def settings(self) -> tuple[tuple[QuotaRule, ...], float]:
        """The rules, and for which time a budget may be used up at once [s]."""
        return self._settings

    def admit(self, client_id: str, request_bytes: int, now_ns: int) -> QuotaRefusal | None:
        """Count a request; return why it is refused, or None."""
        if not self._settings[0]:
            return None
        with self._lock:
            budgets = self._budgets(client_id, now_ns)
            refusal = _longest_wait(budgets, now_ns)
            if refusal:
                self._refused[refusal.rule.name, refusal.resource.value] += 1
                return refusal
            used = {Resource.REQUESTS: 1.0, Resource.MEGABYTES: request_bytes / MEGABYTE}
            _take(budgets, used, now_ns)
            return None

    def charge(self, client_id: str, inference_ms: float, now_ns: int) -> None:
        """Take the inference of a request from its budgets."""
        if not self._settings[0] or not inference_ms > 0:
            return
        with self._lock:
            budgets = self._budgets(client_id, now_ns)
            _take(budgets, {Resource.INFERENCE: min(inference_ms, INFERENCE_LIMIT_MS)}, now_ns)

    def refusals(self) -> dict[tuple[str, str], int]:
        """Return the refused requests by rule and unit."""
        with self._lock:
            return dict(self._refused)

    def _budgets(self, client_id: str, now_ns: int) -> list[Budget]:
        found = self._robots.get(client_id)
        if found is None:
            found = self._robots[client_id] = self._new_budgets(client_id, now_ns)
            if len(self._robots) > ROBOTS_LIMIT:
                self._forget_one(now_ns)
        else:
            self._robots.move_to_end(client_id)
        return found

    def _forget_one(self, now_ns: int) -> None:
        oldest = list(islice(self._robots, OLDEST))
        in_credit = (name for name in oldest if not _longest_wait(self._robots[name], now_ns))
        del self._robots[next(in_credit, oldest[0])]

    def _new_budgets(self, client_id: str, now_ns: int) -> list[Budget]:
        rules, burst_s = self._settings
        matching = [rule for rule in rules if rule.matches(client_id)]
        own = [rule for rule in matching if rule.scope is Scope.ROBOT][:1]
        found = [budget for rule in own for budget in _full(rule, burst_s, now_ns)]
        for rule in matching:
            if rule.scope is Scope.GROUP:
                if rule not in self._groups:
                    self._groups[rule] = _full(rule, burst_s, now_ns)
                found += self._groups[rule]
        return found


def _full(rule: QuotaRule, burst_s: float, now_ns: int) -> list[Budget]:
    return [
        Budget(rule, resource, rate, TokenBucket(rate, rate * burst_s, now_ns))
        for resource, rate in rule.rates
    ]


def _longest_wait(budgets: Sequence[Budget], now_ns: int) -> QuotaRefusal | None:
    waits = [(budget.bucket.wait_s(now_ns), budget) for budget in budgets]
    wait_s, budget = max(waits, key=lambda wait: wait[0], default=(0.0, None))
    if budget is None or not wait_s:
        return None
    return QuotaRefusal(budget.rule, budget.resource, budget.rate, wait_s)


def _take(budgets: Sequence[Budget], used: dict[Resource, float], now_ns: int) -> None:
    for budget in budgets:
        if budget.resource in used:
            budget.bucket.take(used[budget.resource], now_ns)


class TokenBucket:
    """`rate` tokens arrive each second, up to `capacity`. Full at `now_ns`."""

    __slots__ = ('_balance', '_capacity', '_rate', '_updated_ns')

    def __init__(self, rate: float, capacity: float, now_ns: int) -> None:
        self._rate, self._capacity = rate, capacity
        self._balance, self._updated_ns = capacity, now_ns

    def wait_s(self, now_ns: int) -> float:
        """Return the time until something is left; 0 when there is."""
        self._refill(now_ns)
        if self._balance > 0:
            return 0.0
        # rounding may leave nothing after exactly this time
        return math.nextafter(-self._balance / self._rate + 1e-9, math.inf)

    def take(self, tokens: float, now_ns: int) -> None:
        """Take tokens, also into debt."""
        self._refill(now_ns)
        self._balance -= tokens

    def _refill(self, now_ns: int) -> None:
        # threads may bring times in another order
        passed_ns = max(0, now_ns - self._updated_ns)
        self._balance = min(self._capacity, self._balance + self._rate * passed_ns / 1e9)
        self._updated_ns += passed_ns
