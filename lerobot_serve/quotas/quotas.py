# SPDX-License-Identifier: Apache-2.0
"""
Admit the requests of each robot within its quota and those of its groups.

A request is admitted while each of its budgets has something left. A refused one uses nothing up;
its refusal names the time after which the next one is admitted, unless others of its group use the
budget up meanwhile. Any thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
import math
import threading

from lerobot_serve.quotas.rules import QuotaRule, Resource, Scope

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
