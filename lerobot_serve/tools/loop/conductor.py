# SPDX-License-Identifier: Apache-2.0
"""
Take each new version to the robots, one step at a time, by the verbs of `lerobot-serve`.

Main thread: a verb is bound to the thread that starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import json
from pathlib import Path
import shlex
import threading
import time

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.decisions import (
    Choice,
    choose,
    is_one_of,
    is_tried,
    LoopStep,
    own_rollout,
    RESTORING,
    Rollout,
    RolloutFacts,
    server_to_restore,
    SETTLED,
    STEPS,
)
from lerobot_serve.tools.loop.history import entry_text
from lerobot_serve.tools.loop.journal import Journal, LoopEvent
from lerobot_serve.tools.loop.observing import VerbResult
from lerobot_serve.tools.loop.settings import (
    GATE_LIMIT_S,
    LoopSettings,
    RETRY_LIMIT_S,
    RETRY_S,
    ROLLOUT_LIMIT_S,
)
from lerobot_serve.versions.manifest import Manifest

REASON = 'learning loop'
# what is recorded when the rollout changes
EVENTS = {
    Rollout.UNKNOWN: LoopEvent.ROUTER_UNKNOWN,
    Rollout.IDLE: LoopEvent.IDLE,
    Rollout.ON_TRIAL: LoopEvent.ON_TRIAL,
    Rollout.LOST: LoopEvent.CANDIDATE_LOST,
    Rollout.WATCHED: LoopEvent.PROMOTED,
    Rollout.PROMOTED: LoopEvent.WATCHED,
}
# what is recorded when a verb has done its step
DONE = {
    LoopStep.START: LoopEvent.ROLLOUT_STARTED,
    LoopStep.FINISH: LoopEvent.FINISHED,
    LoopStep.RESTORE: LoopEvent.RESTORED,
}
# exit statuses of `gate` that are results, and no failures
HELD, TOO_FEW_STATUS = 'held', 4
GATE_RESULTS = {
    0: LoopEvent.GATE_ADMITTED,
    3: LoopEvent.GATE_REFUSED,
    TOO_FEW_STATUS: LoopEvent.GATE_TOO_FEW,
}
RunVerb = Callable[[list[str], float], VerbResult]


class Conductor:
    """
    See the module. `observe` returns what the router says now, `run_verb` runs a verb with a time
    limit, `say` prints a line.
    """

    def __init__(
        self,
        settings: LoopSettings,
        journal: Journal,
        observe: Callable[[], RolloutFacts],
        run_verb: RunVerb,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._journal, self._observe = settings, journal, observe
        self._run_verb, self._say, self._clock = run_verb, say, clock
        self._before = RolloutFacts()
        self._passed_over_text = ''
        # the last step with its version, how often in a row, and when it may be taken again: one
        # that changes nothing of what is seen must not be repeated without a pause
        self._last: tuple[LoopStep, str] | None = None
        self._attempts, self._again_at_s = 0, 0.0
        # version and bags of a gate with too few episodes
        self._too_few: tuple[str, list[Path]] = ('', [])
        self._start_policy = observing.fingerprint(settings.champion)

    def run(self, stop: threading.Event) -> None:
        """Take steps until `stop` is set."""
        self._add(LoopEvent.LOOP_STARTED, self._start_policy, f'store {self._settings.store}')
        while not stop.is_set():
            if self.take_step() is LoopStep.WAIT:
                stop.wait(self._settings.period_s)
        self._add(LoopEvent.LOOP_ENDED)

    def take_step(self) -> LoopStep:
        """Look, decide, and take one step; return it, WAIT if nothing was done."""
        facts = self._look()
        found = observing.versions(self._settings.store)
        self._note_new(found)
        records = observing.gate_records(self._settings.gates, found)
        self._note_champion(facts, found)
        choice = choose(found, facts.champion, records, self._journal.rolled_back)
        self._note_passed_over(choice)
        step, version = self._next(facts, found, choice)
        if step is LoopStep.WAIT or not self._is_due(step, version):
            return LoopStep.WAIT
        return step if self._take(step, version, facts) else LoopStep.WAIT

    def _next(
        self, facts: RolloutFacts, found: Sequence[Manifest], choice: Choice
    ) -> tuple[LoopStep, str]:
        rollout = own_rollout(facts, self._journal.versions)
        step = STEPS[rollout][choice.candidate]
        if rollout in RESTORING and self._server_to_restore(facts, found):
            step = LoopStep.RESTORE
        versions = {LoopStep.RESTORE: self._journal.champion, LoopStep.FINISH: facts.candidate}
        return step, versions.get(step, choice.version)

    # what is there

    def _look(self) -> RolloutFacts:
        facts = self._observe()
        self._note_changes(self._before, facts)
        self._before = facts
        return facts

    def _note_new(self, found: list[Manifest]) -> None:
        """Record the versions that have come to the store."""
        for version in found:
            if digest_of(version.id) not in self._journal.versions:
                self._add(
                    LoopEvent.NEW_VERSION,
                    version.id,
                    f'trained from {version.parent or "nothing"}',
                )

    def _note_changes(self, before: RolloutFacts, now: RolloutFacts) -> None:
        """Record what happened to champion and candidate since the last look."""
        if now.champion and digest_of(now.champion) != self._journal.served:
            self._add(LoopEvent.CHAMPION, now.champion, 'slot a serves it')
        if is_tried(now) and digest_of(now.candidate) in self._journal.rolled_back:
            self._add(LoopEvent.TRIED_AGAIN, now.candidate, 'a person lifted its rollback')
        if before.stage == now.stage:
            return
        if now.phase != CanaryPhase.ROLLED_BACK.word:
            candidate = '' if now.rollout is Rollout.IDLE else now.candidate
            self._add(EVENTS[now.rollout], candidate, now.text)
        elif digest_of(now.candidate) not in self._journal.rolled_back:
            self._add(LoopEvent.ROLLED_BACK, now.candidate, now.text)

    def _note_champion(self, facts: RolloutFacts, found: Sequence[Manifest]) -> None:
        """Record a version in slot a that this conductor saw no `finish` of, or did not end."""
        digest = digest_of(facts.champion)
        is_news = digest not in (digest_of(self._journal.champion), digest_of(self._start_policy))
        if facts.rollout in SETTLED and is_news and is_one_of(found, facts.champion):
            self._add(
                LoopEvent.ADOPTED, facts.champion, 'slot a serves it, and no finish is recorded'
            )

    def _server_to_restore(self, facts: RolloutFacts, found: Sequence[Manifest]) -> str:
        champion = self._journal.champion
        if digest_of(champion) in self._journal.rolled_back or not is_one_of(found, champion):
            return ''
        return server_to_restore(facts, self._start_policy, champion)

    def _note_passed_over(self, choice: Choice) -> None:
        if choice.why_not and choice.why_not != self._passed_over_text:
            if choice.stale:
                self._add(LoopEvent.STALE, choice.stale, choice.why_not.partition(': ')[2])
            else:
                self._say(f'no candidate: {choice.why_not}')
        self._passed_over_text = choice.why_not

    # steps

    def _is_due(self, step: LoopStep, version: str) -> bool:
        if self._last == (step, version) and self._clock() < self._again_at_s:
            return False
        return step is not LoopStep.GATE or self._too_few != (version, self._recordings())

    def _take(self, step: LoopStep, version: str, facts: RolloutFacts) -> bool:
        """Run the verb of a step; return whether it did what it should."""
        words = self._words(step, version, facts)
        if words is None:
            return False
        self._say(f'{step.value} {version}: {self._shown(words)}')
        self._too_few = ('', [])
        result = self._run_verb(words, GATE_LIMIT_S if step is LoopStep.GATE else ROLLOUT_LIMIT_S)
        wait_s = self._count_attempt(step, version)
        if failure := self._failure(step, version, facts, result):
            self._add(f'{step.value}_failed', version, f'{failure} (again in {wait_s:g} s)')
            return False
        if step is LoopStep.GATE:
            self._add(self._gate_event(version, result), version, _gate_text(result))
            if result.status == TOO_FEW_STATUS:
                self._too_few = (version, self._recordings())
        else:
            self._add(DONE[step], version)
        return True

    def _failure(
        self, step: LoopStep, version: str, facts: RolloutFacts, result: VerbResult
    ) -> str:
        """Return why a verb did not do its step; empty if it did."""
        if step is not LoopStep.GATE or result.status not in GATE_RESULTS:
            return _last_line(result) if result.status else ''
        settings = self._settings
        record = observing.gate_record(settings.gates, version)
        if record is None:
            return f'its record is not in {settings.gates}, or cannot be read'
        if digest_of(record.parent) != digest_of(facts.champion):
            return (
                f'{settings.champion} is {record.parent}, and slot a serves {facts.champion}, '
                f'which {settings.store} has not; give its folder with --champion'
            )
        return ''

    def _gate_event(self, version: str, result: VerbResult) -> str:
        record = observing.gate_record(self._settings.gates, version)
        # the same exit status; a person may let one of them start
        is_held = record is not None and record.verdict == HELD
        return LoopEvent.GATE_HELD if is_held else GATE_RESULTS[result.status]

    def _count_attempt(self, step: LoopStep, version: str) -> float:
        """Return the time until this step may be taken again for this version [s]."""
        is_again = self._last == (step, version)
        self._attempts = self._attempts + 1 if is_again else 1
        self._last = (step, version)
        # bounded exponent: a loop may fail for weeks
        wait_s = min(RETRY_S * 2.0 ** min(self._attempts - 1, 10), RETRY_LIMIT_S)
        self._again_at_s = self._clock() + wait_s
        return wait_s

    def _words(self, step: LoopStep, version: str, facts: RolloutFacts) -> list[str] | None:
        settings = self._settings
        if step is LoopStep.RESTORE:
            server = server_to_restore(facts, self._start_policy, version)
            return ['swap', server, version, '--wait', '--yes']
        if step is LoopStep.FINISH:
            return self._rollout('finish', '--yes', f'--reason={REASON}')
        folder = str(settings.store / version)
        if step is LoopStep.START:
            return self._rollout(
                *('start', folder, f'--plan={settings.plan}', '--yes', f'--reason={REASON}')
            )
        bags = [str(bag) for bag in self._recordings()]
        if not bags:
            return None
        parent = observing.version_folder(settings.store, facts.champion) or settings.champion
        words = ['gate', *bags, '--candidate', folder, '--parent', str(parent)]
        words += ['--records', str(settings.gates), '--json']
        return words + (['--robot', str(settings.robot)] if settings.robot else [])

    def _shown(self, words: list[str]) -> str:
        """Return a command as it is printed: the bags of a gate are many."""
        folder = f'{self._settings.recordings}/'
        bags = [word for word in words if word.startswith(folder)]
        rest = [word for word in words if word not in bags]
        named = [rest[0], f'{folder}... ({len(bags)} bags)'] if bags else rest[:1]
        return ' '.join(['lerobot-serve', *named, shlex.join(rest[1:])])

    def _rollout(self, *words: str) -> list[str]:
        router = [f'--router={self._settings.router}'] if self._settings.router else []
        return ['rollout', *words, *router]

    def _recordings(self) -> list[Path]:
        settings = self._settings
        return observing.newest_recordings(settings.recordings, settings.gate_recordings)

    def _add(self, event: str, version: str = '', text: str = '') -> None:
        entry = self._journal.add(event, version, text)
        self._say(entry_text(entry.event, entry.version, entry.text))


def _last_line(result: VerbResult) -> str:
    lines = (result.errors or result.output).strip().splitlines()
    return lines[-1][:1024] if lines else f'exit status {result.status}'


def _gate_text(result: VerbResult) -> str:
    """Return what the record of a gate says."""
    try:
        return str(json.loads(result.output)['text'])
    except (ValueError, KeyError, TypeError):
        return _last_line(result)
