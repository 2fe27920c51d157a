# SPDX-License-Identifier: Apache-2.0
"""
Apply and store the decisions of operators and canary: live parameters, drains, verdicts. The
executor thread; objects that other threads read are replaced as a whole.

A parameter set live overrides the parameter file until it is set to the value of the file, or the
value in the file changes. In a state that routers share, all live parameters are those of the
state; one that was never set live follows the file of the router that started last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.parameters import parameter_specs, ParameterError, ParameterSpec, with_changes
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import BARRING_VERDICTS, PolicyVerdict
from lerobot_serve.router.replicas.slot import (
    Slot,
    SlotDrain,
    VerdictRecord,
    VerdictRecords,
)
from lerobot_serve.router.storage.records import (
    DecisionKey,
    DRAIN,
    NO_DRAIN,
    PARAMETER,
    ROLLOUT,
    VERDICT,
)
from lerobot_serve.router.storage.store import DecisionConflict
from lerobot_serve.router.storage.writer import StoreWriter

BY_HAND, BY_FILE = 'by hand', 'by the file of'
CANARY_AUTHOR = 'the canary'
# ROS parameters carry no name
UNKNOWN_AUTHOR = 'unknown, by parameter'
LIFT_HINT = 'lift it with `lerobot-serve rollout resume`, or LIFT_VERDICT of control_slot'


class NotDurable(Exception):
    """A decision that admits a policy cannot be stored and has no effect."""


class DurableDecisions:
    """
    See the module. `verdicts` is shared with the slots. `leave_within_ns` is the time limit for
    running episodes to leave.
    """

    def __init__(self, writer: StoreWriter, context: NodeContext) -> None:
        self.writer, self._context = writer, context
        self.leave_within_ns = 0
        self.verdicts = VerdictRecords()
        # why the last decisions came too late: another router had decided
        self._conflict = ''
        self._by = BY_HAND
        self._transaction: dict[DecisionKey, Any] | None = None
        # called when the transaction is written
        self._effects: list[Callable[[], None]] = []

    def _now(self) -> str:
        return self._context.local_time()

    # at start

    def restore(self, slots: Mapping[str, Slot]) -> list[str]:
        """Restore verdicts and drains; return a log line for each one in force."""
        texts = []
        for (kind, name), value in self.writer.decisions.items():
            self.adopt((kind, name), value, slots)
            if kind == VERDICT and self.verdicts[name].verdict in BARRING_VERDICTS:
                texts.append(f'{name} is barred: {self.verdicts[name].text}; {LIFT_HINT}')
            elif kind == DRAIN and name in slots and value['text']:
                texts.append(f'slot {name} is drained: {value["text"]}; RESTORE ends that')
        return texts

    def parameters(
        self, current: RouterParameters, given: RouterParameters
    ) -> tuple[RouterParameters, list[str]]:
        """
        Return the parameters in force, from the `current` ones and those of file and command line
        (`given`), and a log line for each restored or discarded value.
        """
        texts: list[str] = []
        self.record_parameters(given, current, given)
        if self.writer.store.is_shared:
            self._share_files(current)
        for spec in live_specs():
            known = self.writer.decisions.get((PARAMETER, spec.name))
            if known is None:
                continue
            file = to_json_value(getattr(given, spec.field))
            if self.writer.store.is_shared and known['value'] == file:
                continue
            if known['file'] is None and not self.writer.store.is_shared:
                # it comes from another state
                known = {**known, 'file': file}
                self.writer.enqueue({(PARAMETER, spec.name): known})
            if known['file'] != file and not self.writer.store.is_shared:
                texts.append(
                    f'{spec.name} is {file}, the value in the file; the restored value '
                    f'{known["value"]}, set {known["by"]} {known["when"]}, is discarded: the file '
                    f'changed from {known["file"]} since'
                )
                self.writer.enqueue({(PARAMETER, spec.name): None})
                continue
            try:
                current = with_changes(current, {spec.name: known['value']})
            except ParameterError as error:
                texts.append(f'the value set {known["by"]} {known["when"]} is discarded: {error}')
                if not self.writer.store.is_shared:
                    self.writer.enqueue({(PARAMETER, spec.name): None})
                continue
            texts.append(
                f'{spec.name} is {known["value"]}, set {known["by"]} {known["when"]}; the file '
                f'says {file}'
            )
        return current, texts

    def _share_files(self, own: RouterParameters) -> None:
        """Let live parameters that were never set live be those of the own file, for all."""
        decisions: dict[DecisionKey, Any] = {}
        for spec in live_specs():
            known = self.writer.decisions.get((PARAMETER, spec.name))
            value = to_json_value(getattr(own, spec.field))
            # a canary may set what the file says, too
            is_of_file = known is not None and known['by'].startswith(BY_FILE)
            if known is None or (is_of_file and known['value'] != value):
                by = f'{BY_FILE} {self._context.name}'
                row = {'value': value, 'file': value, 'when': self._now(), 'by': by}
                decisions[PARAMETER, spec.name] = row
        self._write(decisions)

    # parameters

    def record_parameters(
        self, old: RouterParameters, new: RouterParameters, given: RouterParameters
    ) -> None:
        """Store values set live that differ from the given ones."""
        decisions: dict[DecisionKey, Any] = {}
        for spec in live_specs():
            value = to_json_value(getattr(new, spec.field))
            known = self.writer.decisions.get((PARAMETER, spec.name))
            if value == to_json_value(getattr(old, spec.field)) or (
                known and known['value'] == value
            ):
                continue
            file = to_json_value(getattr(given, spec.field))
            if value != file or self.writer.store.is_shared:
                row = {'value': value, 'file': file, 'when': self._now(), 'by': self._by}
                decisions[PARAMETER, spec.name] = row
            elif known:
                decisions[PARAMETER, spec.name] = None
        self._write(decisions)

    def adopt(self, key: DecisionKey, value: Any, slots: Mapping[str, Slot]) -> None:
        """Apply a stored drain or verdict, also one of another router; None takes it back."""
        kind, name = key
        if kind == DRAIN and name in slots:
            slots[name].drain = self._make_drain(value) if value and value['text'] else None
        elif kind == VERDICT:
            self._adopt_verdict(name, value)

    def _adopt_verdict(self, name: str, value: Any) -> None:
        """
        Apply a stored verdict; None takes it back. Of several on the same weights, stored under
        several names, one that bars holds.
        """
        stored = [self.writer.decisions[VERDICT, each] for each in self._stored_names(name)]
        found = [value, *stored] if value else stored
        if not found:
            self.verdicts.pop(name, None)
            return
        bars = [each for each in found if PolicyVerdict(each['verdict']) in BARRING_VERDICTS]
        holds = (bars or found)[0]
        self.verdicts[name] = self._make_verdict(holds)

    def _stored_names(self, name: str) -> list[str]:
        """Return the names under which verdicts on the same weights are stored."""
        return [
            each
            for kind, each in self.writer.decisions
            if kind == VERDICT and weights_of(each) == weights_of(name)
        ]

    def take_conflict(self) -> str:
        """Return, once, why decisions came too late in a shared state; empty otherwise."""
        text, self._conflict = self._conflict, ''
        return text

    # slots

    def drain(self, slot: Slot, text: str, *, at_once: bool) -> str:
        """Drain a slot; return why the drain is not durable. It takes effect in any case."""
        row = {'text': text, 'now': at_once}
        slot.drain = self._make_drain(row)
        return self._write({(DRAIN, slot.name): row})

    def end_drain(self, slot: Slot) -> None:
        """End the drain of a slot. Raises NotDurable."""
        if slot.drain is None and not self.writer.store.is_shared:
            return
        # in a shared state, another router may have begun one just now
        self._write_or_reject(
            {(DRAIN, slot.name): dict(NO_DRAIN)}, f'slot {slot.name} stays drained'
        )
        slot.drain = None

    # verdicts

    def bar(self, slot: Slot, policy: str, why: str, *, at_once: bool) -> str:
        """
        Bar a policy until an operator lifts the verdict; return why the verdict is not durable. It
        takes effect in any case. For an unknown policy the slot is barred.
        """
        name = policy or f'slot:{slot.name}'
        text = f'{PolicyVerdict.ROLLED_BACK.value.replace("_", " ")} {self._now()}: {why}'
        row = self._row(PolicyVerdict.ROLLED_BACK, text, at_once)
        self.verdicts[name] = self._make_verdict(row)
        return self._write({(VERDICT, name): row})

    def promote(self, policy: str) -> None:
        """Store the verdict that a policy is promoted."""
        text = f'promoted {self._now()}'
        self.verdicts[policy] = VerdictRecord(PolicyVerdict.PROMOTED, text)
        self._write({(VERDICT, policy): self._row(PolicyVerdict.PROMOTED, text, False)})

    def lift(self, slot: Slot, policy: str) -> str:
        """
        Lift the verdicts on a slot and on a policy, empty if unknown; return their names. Raises
        NotDurable.
        """
        names = (f'slot:{slot.name}', policy)
        barred = {
            n for n in names if n in self.verdicts and self.verdicts[n].verdict in BARRING_VERDICTS
        }
        barred |= {each for name in barred for each in self._stored_names(name)}
        if barred:
            changes: dict[DecisionKey, Any] = {(VERDICT, name): None for name in barred}
            otherwise = f'the verdict on slot {slot.name} stays'
            if self._transaction is None:
                self._write_or_reject(changes, otherwise)
            elif self.writer.text:
                raise NotDurable(f'{otherwise}: {self.writer.text}; repair it, then retry')
            else:
                self._transaction.update(changes)
        for name in barred:
            self.verdicts.pop(name, None)
        return ', '.join(sorted(barred))

    def canary(self, snapshot: dict[str, Any], *, is_decision: bool) -> None:
        """Store the snapshot of the canary; wait until it is durable for a decision only."""
        if is_decision:
            self._write({ROLLOUT: snapshot})
        else:
            self.writer.enqueue({ROLLOUT: snapshot})

    @property
    def canary_snapshot(self) -> dict[str, Any] | None:
        return self.writer.decisions.get(ROLLOUT)

    # transactions

    @property
    def author(self) -> str:
        """Who changes parameters now."""
        return UNKNOWN_AUTHOR if self._by == BY_HAND else self._by.removeprefix('by ')

    @contextmanager
    def authored(self, by: str) -> Iterator[None]:
        """Store the parameters that change in the block with the name of an operator."""
        before, self._by = self._by, f'by {by}'
        try:
            yield
        finally:
            self._by = before

    @contextmanager
    def canary_transaction(self) -> Iterator[None]:
        """Store all decisions of the block in one transaction, as decisions of the canary."""
        with self.authored(CANARY_AUTHOR), self.transaction():
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all decisions of the block in one transaction."""
        if self._transaction is not None:
            yield
            return
        self._transaction = {}
        try:
            yield
        finally:
            decisions, self._transaction = self._transaction, None
            effects, self._effects = self._effects, []
            self._write(decisions)
            for effect in effects:
                effect()

    def when_written(self, effect: Callable[[], None]) -> None:
        """Call `effect` at the end of the transaction, at once without one."""
        if self._transaction is None:
            effect()
        else:
            self._effects.append(effect)

    def _write(self, decisions: dict[DecisionKey, Any]) -> str:
        """Store decisions that take effect in any case; return why they are not durable."""
        if self._transaction is not None:
            self._transaction.update(decisions)
            return ''
        try:
            error = self.writer.decide(decisions, keep=True) if decisions else ''
        except DecisionConflict as conflict:
            self._conflict = str(conflict)
            self._context.log_warning(self._conflict)
            return self._conflict
        if error:
            names = ', '.join(f'{kind} {name}'.strip() for kind, name in decisions)
            self._context.log_warning(f'not durable (lost at restart): {names}: {error}')
        return error

    def _write_or_reject(self, decisions: dict[DecisionKey, Any], otherwise: str) -> None:
        """Store decisions that admit a policy. Raises NotDurable without a change."""
        error = self.writer.decide(decisions, keep=False)
        if error:
            raise NotDurable(
                f'{otherwise}: {error}; free disk space or repair the disk, then retry'
            )

    def _make_drain(self, row: Mapping[str, Any]) -> SlotDrain:
        return SlotDrain(row['text'], self._leave_by(row))

    def _make_verdict(self, row: Mapping[str, Any]) -> VerdictRecord:
        return VerdictRecord(PolicyVerdict(row['verdict']), row['text'], self._leave_by(row))

    def _leave_by(self, row: Mapping[str, Any]) -> int:
        return self._context.clock() + (0 if row['now'] else self.leave_within_ns)

    def _row(self, verdict: PolicyVerdict, text: str, at_once: bool) -> dict[str, Any]:
        return {'verdict': verdict.value, 'text': text, 'now': at_once, 'when': self._now()}


def live_specs() -> list[ParameterSpec]:
    """Return the parameters that may be set live."""
    return [spec for spec in parameter_specs(RouterParameters) if spec.live]


def live_changes(old: RouterParameters, new: RouterParameters) -> dict[str, Any]:
    """Return the live parameters that differ between `old` and `new`, by field."""
    values = {spec.field: getattr(new, spec.field) for spec in live_specs()}
    return {name: value for name, value in values.items() if getattr(old, name) != value}


def to_json_value(value: Any) -> Any:
    """Return the value of a parameter as read back from the store."""
    return list(value) if isinstance(value, tuple) else value
