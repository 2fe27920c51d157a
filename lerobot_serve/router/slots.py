"""
A slot: one policy, served by one or more replicas.

Its fingerprint is that of the first replica in the list that serves. A replica with another one,
or started for another slot, is a stranger and gets nothing, until none of the slot's policy is
there any more: then the slot takes the policy that is. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lerobot_serve.router.health import Health, HealthRules
from lerobot_serve.router.replicas import Replica, Seen


class Slot:
    """See the module."""

    def __init__(
        self, name: str, servers: tuple[str, ...], rules: HealthRules, replica_rules: HealthRules
    ) -> None:
        self.name = name
        self.health = Health(rules)
        # the only one is as well as its slot
        of_one = replica_rules if len(servers) > 1 else rules
        self.replicas = {server: Replica(server, name, of_one) for server in servers}
        self.policy = ''
        # why it cannot serve the robots that the other slot serves
        self.misfit = ''
        # what its policy lacks before it may take episodes
        self.unproven = ''
        # until all have had their chance to be heard, the order of arrival decides nothing
        self.is_settled = False

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    @property
    def can_answer(self) -> bool:
        return any(replica.is_ready for replica in self)

    @property
    def is_healthy(self) -> bool:
        """Whether it may take new episodes."""
        return self.health.is_healthy and self.can_answer and not (self.misfit or self.unproven)

    @property
    def text(self) -> str:
        """Why it takes no new episodes, in words; empty when it does."""
        if not self.health.is_healthy:
            return f'{self.health.state.value}: {self.health.reason}'
        if self.misfit or self.unproven:
            return self.misfit or self.unproven
        if not self.can_answer:
            return '; '.join(f'{r.name}: {r.text}' for r in self)
        return ''

    def learn(self, server: str, seen: Seen) -> str:
        """Note what a replica says of itself; return what changed for the slot, in words."""
        replica = self.replicas[server]
        replica.seen, replica.is_there = seen, True
        before = self.policy
        self._pin()
        for each in self:
            each.stranger = self._why_stranger(each)
        if before and self.policy != before:
            return f'slot {self.name} serves {self.policy} now, before it was {before}'
        return ''

    def _pin(self) -> None:
        """Decide which policy is the slot's."""
        serving = [r for r in self if r.seen and r.seen.is_active and r.is_there]
        serving = [r for r in serving if r.seen.slot == self.name]
        kept = self.is_settled and any(r.seen.policy == self.policy for r in serving)
        if serving and not kept:
            self.policy = serving[0].seen.policy

    def _why_stranger(self, replica: Replica) -> str:
        seen = replica.seen
        if seen is None or not seen.is_active:
            return ''
        if seen.slot != self.name:
            return (
                f'{replica.name} was started for slot {seen.slot!r} and stands in slot '
                f'{self.name!r}; start it with slot:={self.name}'
            )
        if seen.policy != self.policy:
            return (
                f'{replica.name} serves {seen.policy}, and slot {self.name} is {self.policy}; '
                'all replicas of a slot must serve the same policy'
            )
        return ''

    def choose(self, besides: Collection[str] = ()) -> Replica | None:
        """
        Return the least loaded replica that is ready and not one of `besides`; when there is none,
        one that has failed lately: without a session it could not be tried.
        """
        found = [r for r in self if r.is_reachable and r.name not in besides]
        return min(found, key=lambda r: (not r.is_ready, r.pressure), default=None)


def verdict(slots: dict[str, Slot]) -> str:
    """Return what the health of the slots comes to."""
    bad = [name for name, slot in slots.items() if not slot.is_healthy]
    if not bad:
        return 'healthy'
    return 'degraded' if len(bad) == len(slots) else f'drain-{bad[0]}'
