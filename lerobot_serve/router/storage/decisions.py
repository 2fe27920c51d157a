"""
What people and the canary decided, held in memory and in the store: parameters that were set live,
drains, verdicts. The executor thread; what other threads read of a slot is replaced as a whole.

A value set live wins over the parameter file until it is set to what the file says, or until the
file says something else than it did then: what was said last holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lerobot_serve.parameters import parameter_specs, ParameterError, ParameterSpec, with_changes
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS, PolicyVerdict
from lerobot_serve.router.replicas.slot import Slot, SlotDrain, VerdictRecord, VerdictRecords
from lerobot_serve.router.storage.content import (
    CANARY,
    DecisionKey,
    DRAIN,
    NO_DRAIN,
    PARAMETER,
    VERDICT,
)
from lerobot_serve.router.storage.writer import StoreWriter

BY_HAND, BY_CANARY = 'by hand', 'by the canary'
LIFT_HINT = 'lift it with control_slot: {command: 8, slot: b, reason: ...}'


class NotDurable(Exception):
    """A decision that would let a policy drive cannot be written down, and is not taken."""


class DurableDecisions:
    """
    See the module. `bars` are shared with the slots. `now` is the present in words, for people;
    `leave_by` returns when running episodes leave at the latest, given whether that is at once.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        clock: Callable[[], int],
        now: Callable[[], str],
        warn: Callable[[str], None],
    ) -> None:
        self.writer, self._clock, self._now, self._warn = writer, clock, now, warn
        self.leave_within_ns = 0
        self.bars: VerdictRecords = {}
        self._by = BY_HAND
        self._together: dict[DecisionKey, Any] | None = None

    # at start

    def restore(self, slots: Mapping[str, Slot]) -> list[str]:
        """Bring back verdicts and drains; return what holds, in words."""
        texts = []
        for (kind, name), value in self.writer.decisions.items():
            if kind == VERDICT:
                bar = self._make_verdict(
                    PolicyVerdict(value['verdict']), value['text'], at_once=value['now']
                )
                self.bars[name] = bar
                if bar.verdict in BARRING_VERDICTS:
                    texts.append(f'{name} drives no robot: {bar.text}; {LIFT_HINT}')
            elif kind == DRAIN and name in slots and value['text']:
                slots[name].drain = self._hold(value['text'], at_once=value['now'])
                texts.append(f'slot {name} is drained: {value["text"]}; RESTORE ends that')
        return texts

    def parameters(
        self, current: RouterParameters, given: RouterParameters
    ) -> tuple[RouterParameters, list[str]]:
        """
        Return the parameters that hold, of those that are set now and the `given` ones of file and
        command line, and in words where each comes from that is not as given.
        """
        texts: list[str] = []
        self.record_parameters(given, current, given)
        for spec in live_specs():
            known = self.writer.decisions.get((PARAMETER, spec.name))
            if known is None:
                continue
            file = to_json_value(getattr(given, spec.field))
            if known['file'] != file:
                texts.append(
                    f'{spec.name} is {file}, as the file says now; {known["value"]}, set '
                    f'{known["by"]} {known["when"]} when the file said {known["file"]}, is over'
                )
                self.writer.later({(PARAMETER, spec.name): None})
                continue
            try:
                current = with_changes(current, {spec.name: known['value']})
            except ParameterError as error:
                texts.append(f'what was set {known["by"]} {known["when"]} is over: {error}')
                self.writer.later({(PARAMETER, spec.name): None})
                continue
            texts.append(
                f'{spec.name} is {known["value"]}, set {known["by"]} {known["when"]}; the file '
                f'says {file}'
            )
        return current, texts

    # parameters

    def record_parameters(
        self, old: RouterParameters, new: RouterParameters, given: RouterParameters
    ) -> None:
        """Write down what was set live, where it is not what was given."""
        decisions: dict[DecisionKey, Any] = {}
        for spec in live_specs():
            value = to_json_value(getattr(new, spec.field))
            known = self.writer.decisions.get((PARAMETER, spec.name))
            if value == to_json_value(getattr(old, spec.field)) or (
                known and known['value'] == value
            ):
                continue
            file = to_json_value(getattr(given, spec.field))
            row = {'value': value, 'file': file, 'when': self._now(), 'by': self._by}
            if value == file:
                row = None
            if row or known:
                decisions[PARAMETER, spec.name] = row
        self._decide(decisions)

    # slots

    def drain(self, slot: Slot, text: str, *, at_once: bool) -> str:
        """Give a slot no new episodes; return why that is not durable. It holds all the same."""
        slot.drain = self._hold(text, at_once=at_once)
        return self._decide({(DRAIN, slot.name): {'text': text, 'now': at_once}})

    def end_drain(self, slot: Slot) -> None:
        """Raises NotDurable."""
        if slot.drain is None:
            return
        self._allow({(DRAIN, slot.name): dict(NO_DRAIN)}, f'slot {slot.name} stays drained')
        slot.drain = None

    # verdicts

    def bar(self, slot: Slot, policy: str, why: str, *, at_once: bool) -> str:
        """
        Let a policy drive no robot until a person lifts that; return why it is not durable. It
        holds all the same. One that is not known yet: whatever the slot serves.
        """
        name = policy or f'slot:{slot.name}'
        text = f'{PolicyVerdict.ROLLED_BACK.value.replace("_", " ")} {self._now()}: {why}'
        self.bars[name] = self._make_verdict(PolicyVerdict.ROLLED_BACK, text, at_once=at_once)
        return self._decide({(VERDICT, name): self._row(PolicyVerdict.ROLLED_BACK, text, at_once)})

    def promote(self, policy: str) -> None:
        """A policy has passed its canary."""
        text = f'promoted {self._now()}'
        self.bars[policy] = VerdictRecord(PolicyVerdict.PROMOTED, text)
        self._decide({(VERDICT, policy): self._row(PolicyVerdict.PROMOTED, text, False)})

    def lift(self, slot: Slot, policy: str = '') -> str:
        """Let a slot's policy drive again; return what was lifted. Raises NotDurable."""
        names = (f'slot:{slot.name}', slot.policy, policy)
        barred = {n for n in names if n in self.bars and self.bars[n].verdict in BARRING_VERDICTS}
        if barred:
            changes = {(VERDICT, name): None for name in barred}
            self._allow(changes, f'the verdict on slot {slot.name} stays')
        for name in barred:
            del self.bars[name]
        return ', '.join(sorted(barred))

    def canary(self, memory: dict[str, Any], *, is_decision: bool) -> None:
        """Write down what the canary knows; what it only counted need not be waited for."""
        if is_decision:
            self._decide({(CANARY, ''): memory})
        else:
            self.writer.later({(CANARY, ''): memory})

    @property
    def canary_snapshot(self) -> dict[str, Any] | None:
        return self.writer.decisions.get((CANARY, ''))

    # transactions

    @contextmanager
    def canary_transaction(self) -> Iterator[None]:
        """What is decided within is the canary's, and one transaction."""
        if self._together is not None:
            yield
            return
        self._by, self._together = BY_CANARY, {}
        try:
            yield
        finally:
            decisions, self._by, self._together = self._together, BY_HAND, None
            self._decide(decisions)

    def _decide(self, decisions: dict[DecisionKey, Any]) -> str:
        """Write what holds in any case; return why it is not durable, empty when it is."""
        if self._together is not None:
            self._together.update(decisions)
            return ''
        error = self.writer.decide(decisions, keep=True) if decisions else ''
        if error:
            names = ', '.join(f'{kind} {name}'.strip() for kind, name in decisions)
            self._warn(
                f'not durable, a router that starts again may not know it: {names}: {error}'
            )
        return error

    def _allow(self, decisions: dict[DecisionKey, Any], otherwise: str) -> None:
        """Write what lets a policy drive. Raises NotDurable, and nothing has changed then."""
        error = self.writer.decide(decisions, keep=False)
        if error:
            raise NotDurable(f'{otherwise}: {error}; make room or mend the disk, then ask again')

    def _hold(self, text: str, *, at_once: bool) -> SlotDrain:
        return SlotDrain(text, self._leave_by(at_once=at_once))

    def _make_verdict(self, verdict: PolicyVerdict, text: str, *, at_once: bool) -> VerdictRecord:
        return VerdictRecord(verdict, text, self._leave_by(at_once=at_once))

    def _leave_by(self, *, at_once: bool) -> int:
        return self._clock() + (0 if at_once else self.leave_within_ns)

    def _row(self, verdict: PolicyVerdict, text: str, at_once: bool) -> dict[str, Any]:
        return {'verdict': verdict.value, 'text': text, 'now': at_once, 'when': self._now()}


def live_specs() -> list[ParameterSpec]:
    """Return the parameters that may be set live."""
    return [spec for spec in parameter_specs(RouterParameters) if spec.live]


def live_changes(old: RouterParameters, new: RouterParameters) -> dict[str, Any]:
    """Return what was set live, by field."""
    values = {spec.field: getattr(new, spec.field) for spec in live_specs()}
    return {name: value for name, value in values.items() if getattr(old, name) != value}


def to_json_value(value: Any) -> Any:
    """Return a parameter's value as the store gives it back."""
    return list(value) if isinstance(value, tuple) else value
