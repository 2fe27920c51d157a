# SPDX-License-Identifier: Apache-2.0
"""
The learner: takes what others deposit, decides by the tables, and runs one step after the other.

The thread `rounds` runs everything; `turn` never waits. What a round is stands in the memory
before the next step begins, so that a killed learner begins it again, or ends it cleanly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import math
import select
from typing import assert_never

from msgspec.structs import replace

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import DropCount, LearnerState, RecordedEpisode
from lerobot_serve.learner.database import MemoryNotWritten
from lerobot_serve.learner.memory import Memory, RoundEnd, RoundRecord
from lerobot_serve.learner.rounds import settings
from lerobot_serve.learner.rounds.jobs import RoundJobs
from lerobot_serve.learner.rounds.requests import Answer, Call, Command, Requests
from lerobot_serve.learner.rounds.settings import (
    Counts,
    LearnerListener,
    LearnerSettings,
)
from lerobot_serve.learner.rounds.states import (
    due_event,
    Facts,
    has_to_stage,
    MOST_DEATHS,
    next_phase,
    Phase,
    retry_delay_s,
    RoundEvent,
    RUNNING,
    Unfinished,
)
from lerobot_serve.learner.step_process import StartStep, StepProcess, StepRunner
from lerobot_serve.learner.steps import (
    ConvertDone,
    Failed,
    FoundEpisode,
    Job,
    PublishDone,
    RefusedBag,
    Report,
    ScanDone,
    SkippedFolder,
    StageDone,
    TrainDone,
)
from lerobot_serve.learner.stock import check_usable, Stock
from lerobot_serve.learner.trainers.base import Progress
from lerobot_serve.learner.versions import (
    CanaryNews,
    choose_parent,
    is_barred,
    NoParent,
    PolicyVerdict,
)

# each may wait for the disk, and a person waits for the answer of a service
DEPOSITS_A_TURN = 50
SHOW_PERIOD_S, LOOK_PERIOD_S = 1.0, 10.0
# beside round_budget_minutes: a trainer that does not end by itself
OVERTIME_S = 300.0
SECONDS_A_MINUTE = 60.0
# the message has 32 bits for a loss; one that diverged is infinite in it
FLOAT32_LIMIT = 3.4e38
NOTHING_SHOWN = LearnerState(
    state=Phase.WAITING, progress=math.nan, loss=math.nan, remaining_s=math.nan
)
PHASE_TEXTS = {
    Phase.CONVERTING: 'makes a data set of the episodes',
    Phase.TRAINING: 'trains',
    Phase.PUBLISHING: 'publishes the new version',
}


@dataclass(slots=True)
class _Times:
    """Instants of the monotonic clock [s]."""

    last_round_s: float
    retry_s: float = 0.0
    shown_s: float = 0.0
    looked_s: float = 0.0
    training_limit_s: float = 0.0


class Learner:
    """
    See the module. Any thread may read `shown`, and how many rounds ended in which way (`ended`),
    and may replace `live`, the parameters; a running round keeps its budget.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        memory: Memory,
        start_step: StartStep,
        listener: LearnerListener,
        clock: Callable[[], float],
    ) -> None:
        self.requests, self.live, self.shown = Requests(), settings.parameters, NOTHING_SHOWN
        self.ended: dict[str, int] = {}
        self._settings, self._memory, self._listener = settings, memory, listener
        self._clock, self._times = clock, _Times(last_round_s=clock())
        self._counts = Counts()
        filters, warn = settings.parameters.episode_filters, listener.log_warning
        self._stock = Stock(memory, settings.host, filters, self._drop, warn, clock)
        self._steps = StepRunner(start_step)
        self._jobs = RoundJobs(settings, memory, self._stock)
        self._phase = Phase.WAITING
        self._record: RoundRecord | None = None
        # of the policy of the parameter parent; None before the first search
        self._fallback: str | None = None
        # the champion and the watched policy that were heard last
        self._followed = ('', '')
        self._is_asked = self._is_stopping = False
        # whether the step that runs while the learner waits is a conversion, else it is a search
        self._is_staging = False
        self._failures, self._failure = 0, ''
        self._progress = Progress()

    # any thread

    def stop(self) -> None:
        """Let `run` end."""
        self._is_stopping = True
        self.requests.wake()

    # the thread `rounds`

    def run(self) -> None:
        """Run until `stop`."""
        self.begin()
        try:
            while not self._is_stopping:
                self.turn()
                self._wait()
        finally:
            self.end()

    def begin(self) -> None:
        """Announce what was published before, and look for episodes."""
        self._after_restart()
        rejected, versions = self._memory.rejected(), self._memory.versions()
        for version in versions:
            if not is_barred(version.id, versions, rejected):
                self._listener.on_version(version.id)
        if self._memory.is_paused:
            self._change(RoundEvent.PAUSE)
        try:
            self._start(self._jobs.scan())
        except OSError as error:
            self._listener.log_warning(f'episodes are not looked for: {error}')
        self._show()

    def _after_restart(self) -> None:
        """Give up a round during which process after process ended."""
        with self._keeping():
            left = self._memory.begin_process()
            if left and left.deaths >= MOST_DEATHS and not left.trained:
                text = f'given up: {left.deaths} processes ended during it'
                self._memory.end_round(left.number, RoundEnd.GIVEN_UP, text)
                self._end_round_folder(left, 'given_up')
                self._listener.log_warning(
                    f'round {left.number} {text}; see {self._jobs.folder(left)}'
                )

    def _wait(self) -> None:
        readable: list[Requests | StepProcess] = [self.requests, *self._steps.readable]
        select.select(readable, [], [], min(self._steps.poll_s, SHOW_PERIOD_S))

    def end(self) -> None:
        """End the running step, and answer everything that waits."""
        self._steps.end_all()
        self.requests.close()
        with self._keeping():
            self._memory.set_running(False)
        self._memory.close()

    def turn(self) -> None:
        """Do what can be done now."""
        for deposit in self.requests.take(DEPOSITS_A_TURN):
            self._on_deposit(deposit)
        self._stock.try_again()
        try:
            self._steps.advance()
            for report in self._steps.poll():
                self._on_report(report)
            self._check_training_time()
            if self._phase in (Phase.WAITING, Phase.PAUSED) and self._steps.is_idle:
                self._begin_due()
        except MemoryNotWritten as error:
            # its last step is done again, when there may be room
            self._fail(str(error), keeps_round=True)
        except OSError as error:
            self._fail(str(error))
        self._show()

    # what others deposit

    def _on_deposit(self, deposit: RecordedEpisode | CanaryNews | Malformed | Call) -> None:
        if isinstance(deposit, RecordedEpisode):
            self._on_announced(deposit)
        elif isinstance(deposit, CanaryNews):
            self._on_news(deposit)
        elif isinstance(deposit, Malformed):
            self._on_malformed(str(deposit))
        elif isinstance(deposit, Call):
            deposit.answer.set_result(self._answer(deposit.command))
        else:
            assert_never(deposit)

    def _on_announced(self, episode: RecordedEpisode) -> None:
        try:
            check_usable(episode)
        except ValueError as error:
            self._on_malformed(str(error))
        else:
            self._stock.learn(episode, is_announced=True)

    def _on_malformed(self, text: str) -> None:
        self._counts.drop('malformed')
        self._listener.log_warning(f'an announced episode is refused: {text}')

    def _drop(self, reason: str, key: str, text: str) -> None:
        if self._counts.drop(reason, key) and text:
            self._listener.log_warning(f'{reason}: {text}')

    def _on_news(self, news: CanaryNews) -> None:
        """Keep a verdict; a running round whose parent is rejected is begun again."""
        with self._keeping():
            if news.champion:
                self._follow(news)
            if news.verdict is PolicyVerdict.NONE:
                return
            if news.verdict is PolicyVerdict.ACCEPTED:
                if self._memory.accept(news.policy):
                    self._listener.log_info(f'{news.policy} was promoted: rounds may build on it')
                return
            if not self._memory.reject(news.policy, news.text):
                return
            self._listener.log_warning(
                f'{news.policy} was rolled back, no round builds on it: {news.text}'
            )
            if self._record and self._phase in RUNNING and self._is_barred(self._record.parent):
                self._begin_again()

    def _follow(self, news: CanaryNews) -> None:
        """
        Build on what slot a serves: while this learner was away, a version may have become the
        champion, or a promoted one may have been rolled back. A policy of others changes nothing.
        """
        watched = news.policy if news.verdict is PolicyVerdict.ACCEPTED else ''
        champion = digest_of(news.champion)
        is_own = any(digest_of(each.id) == champion for each in self._memory.versions())
        is_fallback = champion == digest_of(self._fallback or '')
        if (news.champion, watched) == self._followed or not (is_own or is_fallback):
            return
        if self._memory.follow(news.champion, watched):
            self._listener.log_info(f'slot a serves {news.champion}: rounds build on it')
        self._followed = news.champion, watched

    def _is_barred(self, version_id: str) -> bool:
        return is_barred(version_id, self._memory.versions(), self._memory.rejected())

    def _begin_again(self) -> None:
        self._listener.log_warning(f'round {self._number} is begun again from another parent')
        self._steps.drop()
        self._change(RoundEvent.PARENT_REJECTED)
        self._record = None
        try:
            self._start(self._jobs.scan())
        except OSError as error:
            # deposits behind this one wait
            self._fail(str(error))

    # commands of people

    def _answer(self, command: Command) -> Answer:
        try:
            return {
                Command.START: self._ask,
                Command.PAUSE: self._pause,
                Command.RESUME: self._resume,
            }[command]()
        except MemoryNotWritten as error:
            return False, str(error)

    def _ask(self) -> Answer:
        if self._memory.is_paused:
            return False, 'the learner is paused; call ~/resume first'
        if self._phase in RUNNING:
            return False, f'round {self._number} runs; wait for its end'
        self._is_asked = True
        return True, 'a round begins if there is an episode that no version was trained on'

    def _pause(self) -> Answer:
        self._memory.set_paused(True)
        number, before = self._number, self._phase
        if before in (Phase.CONVERTING, Phase.TRAINING):
            self._steps.drop()
            # a round that still looks for episodes is not kept otherwise
            self._is_asked = self._memory.open_round is None
        elif before is Phase.WAITING and self._is_staging:
            self._steps.drop()
            self._is_staging = False
        self._change(RoundEvent.PAUSE)
        if before is Phase.PUBLISHING:
            return True, f'round {number} is published, then the learner pauses'
        if before in RUNNING:
            return True, f'round {number} is ended; resume begins it again from its beginning'
        return True, 'paused; the service ~/resume lets rounds begin'

    def _resume(self) -> Answer:
        was_paused = self._memory.is_paused
        self._memory.set_paused(False)
        self._change(RoundEvent.RESUME)
        return True, 'resumed' if was_paused else 'the learner is not paused'

    # rounds

    def _begin_due(self) -> None:
        now_s = self._clock()
        if now_s - self._times.looked_s >= LOOK_PERIOD_S:
            self._times.looked_s = now_s
            self._stock.look_again(only_missing=True)
        event = due_event(self._facts(now_s))
        if event is RoundEvent.PAUSE:
            self._change(event)
        elif event is RoundEvent.STAGE:
            self._stage()
        elif event is not None:
            self._begin_round(event)

    def _stage(self) -> None:
        """Convert episodes ahead of their round, each once: the round does what failed."""
        self._change(RoundEvent.STAGE)
        job = self._jobs.stage()
        self._stock.on_staged(each.sha256 for each in job.bags)
        self._is_staging = True
        self._start(job)

    def _begin_round(self, event: RoundEvent) -> None:
        self._is_asked = False
        self._progress = Progress()
        self._change(event)
        if event is RoundEvent.TRAINED_BEFORE:
            self._record = self._memory.open_round
            assert self._record
            self._start(self._jobs.publish(self._record), self._record)
        else:
            self._record = None
            self._start(self._jobs.scan())

    def _facts(self, now_s: float) -> Facts:
        period_s = self.live.round_period_s
        return Facts(
            is_paused=self._memory.is_paused,
            is_asked=self._is_asked,
            unfinished=self._unfinished(),
            has_enough=len(self._stock.new()) >= self.live.episodes_per_round,
            is_scheduled=period_s > 0 and now_s - self._times.last_round_s >= period_s,
            may_retry=now_s >= self._times.retry_s,
            has_to_stage=has_to_stage(
                unstaged=len(self._stock.unstaged()),
                new=len(self._stock.new()),
                wanted=self.live.episodes_per_round,
            ),
        )

    def _unfinished(self) -> Unfinished:
        record = self._memory.open_round
        if record is None:
            return Unfinished.NONE
        is_whole = record.trained and self._jobs.has_output(record)
        return (
            Unfinished.TRAINED
            if is_whole and not self._is_barred(record.parent)
            else Unfinished.BEGUN
        )

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Progress):
            self._progress = report
        elif isinstance(report, FoundEpisode):
            self._stock.learn(report.episode, is_announced=False)
        elif isinstance(report, SkippedFolder):
            self._drop('no_episode', report.path, f'{report.path}: {report.text}')
        elif isinstance(report, RefusedBag):
            self._stock.refuse(report.sha256, report.reason, report.text)
        elif isinstance(report, ScanDone):
            self._on_scanned(report)
        elif isinstance(report, StageDone):
            self._is_staging = False
        elif isinstance(report, ConvertDone):
            self._on_converted(report)
        elif isinstance(report, TrainDone):
            self._on_trained(report)
        elif isinstance(report, PublishDone):
            self._on_published(report)
        elif isinstance(report, Failed):
            self._on_failed(report)
        else:
            assert_never(report)

    def _on_failed(self, report: Failed) -> None:
        if self._phase in RUNNING:
            self._fail(report.text)
        elif self._is_staging:
            self._is_staging = False
            self._listener.log_warning(f'no episode is converted ahead of a round: {report.text}')
        else:
            # the search at start
            self._fallback = ''
            self._listener.log_warning(f'episodes were not looked for: {report.text}')

    def _on_scanned(self, report: ScanDone) -> None:
        self._fallback = report.parent
        for fault in report.faults:
            self._drop('folder_not_read', fault, fault)
        if self._phase is not Phase.CONVERTING:
            return
        self._stock.look_again()
        if not self._stock.unused():
            self._nothing_new()
            return
        try:
            parent = self._choose_parent()
        except NoParent as error:
            self._fail(str(error))
            return
        self._record = self._memory.begin_round(parent)
        self._jobs.clear(self._record)
        self._listener.log_info(f'round {self._number} begins from {parent}')
        self._start(self._jobs.convert(self._record), self._record)

    def _choose_parent(self) -> str:
        return choose_parent(
            self._memory.versions(),
            self._memory.rejected(),
            self._fallback or '',
            self._jobs.has_version,
            self._memory.promoted() if self._settings.parameters.router else None,
        )

    def _nothing_new(self) -> None:
        """Go on waiting; a round that was begun before has lost its episodes."""
        self._change(RoundEvent.NOTHING_NEW)
        self._times.last_round_s = self._clock()
        if left := self._memory.open_round:
            text = 'none of its episodes has a bag any more'
            self._memory.end_round(left.number, RoundEnd.GIVEN_UP, text)
            self._end_round_folder(left, 'given_up')
            self._listener.log_warning(f'round {left.number} is given up: {text}')
        self._listener.log_info('no round: there is no new episode')

    def _on_converted(self, report: ConvertDone) -> None:
        assert self._record
        if not self._stock.on_converted(report.converted):
            self._fail('none of the new episodes could be converted; the log has the reasons')
            return
        # all that the parent was not trained on, also from rounds whose version was not accepted:
        # they are not new to what is trained from this version
        new = self._stock.named(report.new)
        self._memory.set_dataset(self._record.number, report.dataset_sha256, new)
        self._jobs.total_episodes = report.total_episodes
        self._progress = Progress()
        self._change(RoundEvent.CONVERTED)
        budget_s = self.live.round_budget_minutes * SECONDS_A_MINUTE
        self._times.training_limit_s = self._clock() + budget_s + OVERTIME_S
        self._start(self._jobs.train(self._record, report.new_episodes, budget_s), self._record)

    def _check_training_time(self) -> None:
        if self._phase is Phase.TRAINING and self._clock() > self._times.training_limit_s:
            self._fail(
                f'the trainer did not end {OVERTIME_S:g} s after its budget; raise '
                'round_budget_minutes, or see the log of the round'
            )

    def _on_trained(self, report: TrainDone) -> None:
        assert self._record
        if self._memory.has_published(report.fingerprint):
            self._fail(f'training gave {report.fingerprint}, which is published already')
            return
        self._memory.set_trained(self._record.number, report.fingerprint, str(report.output))
        self._progress = Progress()
        self._change(RoundEvent.TRAINED)
        self._record = self._memory.open_round
        assert self._record
        self._start(self._jobs.publish(self._record), self._record)

    def _start(self, job: Job, record: RoundRecord | None = None) -> None:
        """Start a step, of a round or besides. Raises OSError."""
        self._steps.start(job, self._jobs.log(job, record))

    def _on_published(self, report: PublishDone) -> None:
        record = self._record
        assert record
        self._memory.set_published(record.number, report.id)
        self._stock.on_published(sorted(self._memory.used_by([record.number])))
        self._change(RoundEvent.PUBLISHED)
        self._times.last_round_s = self._clock()
        self._times.retry_s, self._failures, self._failure = 0.0, 0, ''
        self._end_round_folder(record, 'published')
        self._listener.log_info(f'round {record.number} is published as {report.id}')
        self._listener.on_version(report.id)

    def _fail(self, text: str, *, keeps_round: bool = False) -> None:
        """End the running round, or keep it to be begun again; the learner continues."""
        self._steps.drop()
        if self._phase not in RUNNING:
            self._is_staging = False
            self._listener.log_warning(text)
            return
        self._change(RoundEvent.FAILED)
        self._failures += 1
        now_s = self._clock()
        self._times.retry_s = now_s + retry_delay_s(self._failures)
        self._times.last_round_s = now_s
        self._failure = settings.failure_text(self._number, text, retry_delay_s(self._failures))
        self._counts.drop('round_failed')
        self._listener.log_warning(self._failure)
        record, self._record = self._record or self._memory.open_round, None
        if record and not keeps_round:
            with self._keeping():
                self._memory.end_round(record.number, RoundEnd.FAILED, self._failure)
            self._end_round_folder(record, 'failed')

    def _end_round_folder(self, record: RoundRecord, how: str) -> None:
        self._counts.rounds[how] += 1
        self._jobs.clear(record)

    def _change(self, event: RoundEvent) -> None:
        self._phase = next_phase(self._phase, event)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Log what the disk refuses: the memory stays as it was."""
        try:
            yield
        except MemoryNotWritten as error:
            self._counts.drop('disk_full')
            self._listener.log_warning(str(error))

    @property
    def _number(self) -> int:
        record = self._record or self._memory.open_round
        return record.number if record else 0

    # what is shown

    def _show(self) -> None:
        """Show the state when it changed, and each second: one that shows nothing hangs."""
        now_s = self._clock()
        shown = self._shown()
        is_due = now_s - self._times.shown_s >= SHOW_PERIOD_S
        if is_due or _without_progress(shown) != _without_progress(self.shown):
            self._times.shown_s = now_s
            self.shown, self.ended = shown, dict(self._counts.rounds)
            self._listener.on_state(shown)

    def _shown(self) -> LearnerState:
        versions = self._memory.versions()
        last = self._memory.last_round
        is_running = self._phase in RUNNING
        progress = self._progress if is_running else Progress()
        return LearnerState(
            state=self._phase,
            text=encodable_text(self._text()),
            round=last.number if last else 0,
            parent=self._shown_parent(),
            latest=versions[-1].id if versions else '',
            episodes=len(self._stock),
            episodes_new=len(self._stock.new()),
            episodes_wanted=self.live.episodes_per_round,
            progress=_float32(progress.done_share),
            loss=_float32(progress.loss),
            remaining_s=_float32(progress.remaining_s),
            dropped=self._dropped(),
        )

    def _dropped(self) -> tuple[DropCount, ...]:
        overflow = self.requests.overflow
        counts = {**self._counts.dropped, **({'overflow': overflow} if overflow else {})}
        return tuple(DropCount(*each) for each in sorted(counts.items()))

    def _shown_parent(self) -> str:
        if self._record and self._phase in RUNNING:
            return self._record.parent
        try:
            return self._choose_parent()
        except NoParent:
            return ''

    def _text(self) -> str:
        if self._phase in RUNNING:
            what = PHASE_TEXTS[self._phase] if self._record else settings.LOOKING_TEXT
            return settings.running_text(what, self._number, pauses=self._memory.is_paused)
        if self._phase is Phase.PAUSED:
            return settings.PAUSED_TEXT
        if not (self._steps.is_idle or self._is_staging):
            return settings.LOOKING_TEXT
        return settings.waiting_text(
            new=len(self._stock.new()),
            wanted=self.live.episodes_per_round,
            failure=self._failure,
            is_staging=self._is_staging,
        )


def _float32(value: float | None) -> float:
    if value is None:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) > FLOAT32_LIMIT else value


def _without_progress(shown: LearnerState) -> LearnerState:
    return replace(shown, progress=0.0, loss=0.0, remaining_s=0.0)
