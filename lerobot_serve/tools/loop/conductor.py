# SPDX-License-Identifier: Apache-2.0
"""
Take each new version to the robots, one step at a time, by the verbs of `lerobot-serve`.

Main thread: a verb is bound to the thread that starts it.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import shlex
import threading
import time

from lerobot_serve.router.canary.gate_record import identity
from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.decisions import (
    Choice,
    choose,
    Rollout,
    RolloutFacts,
    Step,
    STEPS,
)
from lerobot_serve.tools.loop.journal import Journal, ROLLED_BACK
from lerobot_serve.tools.loop.settings import (
    GATE_LIMIT_S,
    LoopSettings,
    RETRY_LIMIT_S,
    RETRY_S,
    ROLLOUT_LIMIT_S,
)
from lerobot_serve.tools.loop.verb_process import VerbResult

REASON = 'learning loop'
# what is recorded when the rollout changes
EVENTS = {
    Rollout.UNKNOWN: 'router_unknown',
    Rollout.IDLE: 'idle',
    Rollout.ON_TRIAL: 'on_trial',
    Rollout.WATCHED: 'promoted',
    Rollout.PROMOTED: 'watched',
}
# exit statuses of `gate` that are results, and no failures
GATE_RESULTS = {0: 'admitted', 3: 'refused', 4: 'too_few'}
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
        # step and version that failed, how often in a row, and when to try again
        self._failed: tuple[Step, str] | None = None
        self._failures, self._retry_at_s = 0, 0.0
        # bags that a gate with too few episodes had
        self._too_few: tuple[str, int] = ('', -1)

    def run(self, stop: threading.Event) -> None:
        """Take steps until `stop` is set."""
        self._add('loop_started', text=f'store {self._settings.store}')
        while not stop.is_set():
            if self.take_step() is Step.WAIT:
                stop.wait(self._settings.period_s)
        self._add('loop_ended')

    def take_step(self) -> Step:
        """Look, decide, and take one step; return it, WAIT if nothing was done."""
        facts = self._look()
        found = observing.versions(self._settings.store)
        records = observing.gate_records(self._settings.gates, found)
        choice = choose(found, facts.champion, records, self._journal.rolled_back)
        self._note_passed_over(choice)
        step = STEPS[facts.rollout, choice.candidate]
        version = facts.candidate if step is Step.FINISH else choice.version
        if step is Step.WAIT or not self._is_due(step, version):
            return Step.WAIT
        return step if self._take(step, version, facts) else Step.WAIT

    # what is there

    def _look(self) -> RolloutFacts:
        facts = self._observe()
        self._note_changes(self._before, facts)
        self._before = facts
        return facts

    def _note_changes(self, before: RolloutFacts, now: RolloutFacts) -> None:
        """Record what happened to the candidate since the last look."""
        if before.stage == now.stage:
            return
        if now.phase != ROLLED_BACK:
            candidate = '' if now.rollout is Rollout.IDLE else now.candidate
            self._add(EVENTS[now.rollout], candidate, now.text)
        elif identity(now.candidate) not in self._journal.rolled_back:
            self._add(ROLLED_BACK, now.candidate, now.text)

    def _note_passed_over(self, choice: Choice) -> None:
        if choice.why_not and choice.why_not != self._passed_over_text:
            self._say(f'no candidate: {choice.why_not}')
        self._passed_over_text = choice.why_not

    # steps

    def _is_due(self, step: Step, version: str) -> bool:
        if self._failed == (step, version) and self._clock() < self._retry_at_s:
            return False
        bags = len(self._recordings()) if step is Step.GATE else 0
        return step is not Step.GATE or self._too_few != (version, bags)

    def _take(self, step: Step, version: str, facts: RolloutFacts) -> bool:
        """Run the verb of a step; return whether it did what it should."""
        words = self._words(step, version, facts)
        if words is None:
            return False
        self._say(f'{step.value} {version}: {self._shown(words)}')
        limit_s = GATE_LIMIT_S if step is Step.GATE else ROLLOUT_LIMIT_S
        result = self._run_verb(words, limit_s)
        if step is Step.GATE and result.status in GATE_RESULTS:
            self._add(f'gate_{GATE_RESULTS[result.status]}', version, _gate_text(result))
            if GATE_RESULTS[result.status] == 'too_few':
                self._too_few = (version, len(self._recordings()))
        elif result.status:
            self._fail(step, version, _last_line(result))
            return False
        else:
            self._add({Step.START: 'rollout_started', Step.FINISH: 'finished'}[step], version)
        self._failed, self._failures = None, 0
        return True

    def _words(self, step: Step, version: str, facts: RolloutFacts) -> list[str] | None:
        settings = self._settings
        if step is Step.FINISH:
            return self._rollout('finish', '--yes', f'--reason={REASON}')
        folder = str(settings.store / version)
        if step is Step.START:
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

    def _fail(self, step: Step, version: str, text: str) -> None:
        self._failures = self._failures + 1 if self._failed == (step, version) else 1
        self._failed = (step, version)
        wait_s = min(RETRY_S * 2 ** (self._failures - 1), RETRY_LIMIT_S)
        self._retry_at_s = self._clock() + wait_s
        self._add(f'{step.value}_failed', version, f'{text} (again in {wait_s:g} s)')

    def _add(self, event: str, version: str = '', text: str = '') -> None:
        entry = self._journal.add(event, version, text)
        self._say(entry_text(entry.event, entry.version, entry.text))


def entry_text(event: str, version: str, text: str) -> str:
    """Return an entry in words."""
    return ': '.join(filter(None, (f'{event.replace("_", " ")} {version}'.strip(), text)))


def _last_line(result: VerbResult) -> str:
    lines = (result.errors or result.output).strip().splitlines()
    return lines[-1][:1024] if lines else f'exit status {result.status}'


def _gate_text(result: VerbResult) -> str:
    """Return what the record of a gate says."""
    try:
        return str(json.loads(result.output)['text'])
    except (ValueError, KeyError, TypeError):
        return _last_line(result)
