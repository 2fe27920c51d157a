# SPDX-License-Identifier: Apache-2.0
"""
Kills processes of a loop at random moments of its stages, some in each round, and waits for the
next champion.

Main thread. A fleet that does not come to its next champion is ended, and a new one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import random
import signal
import time

from benchmarks.loop_fleet import judging
from benchmarks.loop_fleet.fleet import GATE_RECORDINGS, loop_fleet, LoopFleet, PROCESSES
from benchmarks.loop_fleet.stages import LONGEST_S, LoopStage, Seen, stages_of, VerbFollower
from benchmarks.loop_fleet.witness import Witness, witness

# from the start to the first champion, from a champion to the next stage, from a kill to the next
# champion; a version that is rolled back for the kill needs a round more
START_LIMIT_S, STAGE_LIMIT_S, NEXT_LIMIT_S = 600.0, 600.0, 600.0
RESTART_LIMIT_S = 60.0
# in one round, each in another stage or of another process
KILLS_A_ROUND = 3
ORDER = {stage: number for number, stage in enumerate(LoopStage)}
QUIET_S, LONG_QUIET_S, AGAIN_S, LOST_S = 3.0, 60.0, 2.0, 20.0
LOG_LINES = 60


@dataclass(slots=True)
class Kill:
    """What was killed when, and what followed. `why_not` is empty for one that is ok."""

    stage: LoopStage
    process: str
    after_s: float = 0.0
    next_champion_s: float = 0.0
    why_not: str = ''


@dataclass(slots=True)
class KillResults:
    """All runs, and what the fleets left: faults, and how much was read for them."""

    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    champions: int = 0
    versions: int = 0
    replies: int = 0
    episodes: int = 0


def pairs(count: int, draw: random.Random) -> Iterator[tuple[LoopStage, str]]:
    """Yield stages and processes: all pairs before the first one comes again."""
    while count > 0:
        every = [(stage, name) for stage in LoopStage for name in PROCESSES]
        draw.shuffle(every)
        yield from every[:count]
        count -= len(every)


def kill_often(
    folder: Path, planned: Sequence[tuple[LoopStage, str]], draw: random.Random
) -> KillResults:
    """Do the planned kills, in as many fleets as it takes. Raises UserError."""
    results, left, number = KillResults(), list(planned), 0
    while left:
        number += 1
        home = folder / f'loop_{number}'
        with witness() as seen:
            with loop_fleet(home) as fleet:
                run = FleetRun(fleet, seen, draw)
                run.kill_all(left, results)
            run.judge(results)
    return results


class FleetRun:
    """One fleet from its start to its end."""

    def __init__(self, fleet: LoopFleet, seen: Witness, draw: random.Random) -> None:
        self._fleet, self._seen, self._draw = fleet, seen, draw
        self._champions: list[str] = []
        self._verbs = VerbFollower()
        # since when nothing but gathering continues, when the person acted, and whether it
        # corrects
        self._quiet_s = self._called_s = 0.0
        self._corrects = False

    def kill_all(self, left: list[tuple[LoopStage, str]], results: KillResults) -> None:
        """Take kills from `left` until none is left, or the loop does not go on."""
        if not self._next_champion(START_LIMIT_S):
            results.faults.append(f'{self._fleet.home}: no champion within {START_LIMIT_S:g} s')
            left.clear()
            return
        while left:
            kills = sorted(
                (Kill(*each) for each in left[:KILLS_A_ROUND]), key=lambda kill: ORDER[kill.stage]
            )
            del left[:KILLS_A_ROUND]
            results.kills += kills
            self._run(kills)
            for kill in kills:
                print(f'  {as_line(kill)}', flush=True)
            if any(kill.why_not for kill in kills):
                lines = self._fleet.log.splitlines()[-LOG_LINES:]
                (self._fleet.home / 'stuck.txt').write_text('\n'.join(lines))
                return
        # the one after the last kill, so that each kill has a whole round after it
        if not self._next_champion(NEXT_LIMIT_S):
            results.faults.append(f'{self._fleet.home}: no round after the last kill')

    def _run(self, kills: Sequence[Kill]) -> None:
        """Do the kills of one round, in the order of its stages; wait for the next champion."""
        before, times_s = len(self._champions), []
        for number, kill in enumerate(kills):
            kill.why_not = self._do(kill)
            if kill.why_not:
                for later in kills[number + 1 :]:
                    later.why_not = 'not done'
                return
            times_s.append(time.monotonic())
        # it may have come before the last kill of the round
        is_there = self._next_champion(NEXT_LIMIT_S, before)
        for kill, killed_s in zip(kills, times_s, strict=True):
            kill.next_champion_s = time.monotonic() - killed_s
            kill.why_not = '' if is_there else f'no next champion within {NEXT_LIMIT_S:g} s'

    def _do(self, kill: Kill) -> str:
        """Kill a process in a stage; return why that was not possible."""
        if not self._wait(lambda: kill.stage in self._stages(), STAGE_LIMIT_S):
            return f'{kill.stage.value} did not come within {STAGE_LIMIT_S:g} s'
        kill.after_s = self._draw.uniform(0.0, LONGEST_S[kill.stage])
        time.sleep(kill.after_s)
        return '' if self._kill(kill.process) else f'{kill.process} does not run'

    def _wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Wait beside a person who corrects the robot whenever nothing else continues."""

        def holds_now() -> bool:
            self._correct_when_quiet(time.monotonic())
            return holds()

        return self._fleet.wait(holds_now, limit_s)

    def _correct_when_quiet(self, now_s: float) -> None:
        """Take the robot over when only episodes are gathered, and hand it back afterwards."""
        stages = self._stages()
        if stages - {LoopStage.GATHERING}:
            self._quiet_s = now_s
        # a rollout that waits may go on by itself
        is_quiet = now_s - self._quiet_s >= (QUIET_S if stages else LONG_QUIET_S)
        # again, if the robot did not hear it
        is_done = is_quiet == self._corrects and (not is_quiet or now_s < self._called_s + LOST_S)
        if is_done or now_s - self._called_s < AGAIN_S:
            return
        if not is_quiet or count_bags(self._fleet.bags) >= GATE_RECORDINGS:
            self._called_s, self._corrects = now_s, is_quiet
            self._seen.call('take_over' if is_quiet else 'hand_back')

    def _stages(self) -> set[LoopStage]:
        seen = self._seen
        self._verbs.add(self._fleet.news())
        return stages_of(Seen(seen.learner, seen.canary, self._verbs.verb))

    def _kill(self, name: str) -> bool:
        """Kill a process; one that is being restarted a moment later."""
        if not self._fleet.wait(lambda: self._fleet.pid(name), RESTART_LIMIT_S):
            return False
        pid = self._fleet.pid(name)
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
        return True

    def _next_champion(self, limit_s: float, known_before: int | None = None) -> bool:
        """
        Wait until slot a serves a version that it has not served before, or not when its
        `known_before` first ones were known.
        """
        before = len(self._champions) if known_before is None else known_before

        def is_there() -> bool:
            # the first policy is that of the start
            first, *others = self._seen.served['a'] or ['']
            known = {first, *self._champions}
            self._champions += [policy for policy in others if policy not in known]
            return len(self._champions) > before

        return self._wait(is_there, limit_s)

    def judge(self, results: KillResults) -> None:
        """Read what the ended fleet has left."""
        fleet, served = self._fleet, self._seen.policies
        first = self._seen.served['a'][0] if self._seen.served['a'] else ''
        of_bags, replies = judging.faults_of_bags(fleet.bags)
        of_traces, episodes = judging.faults_of_traces(fleet.traces)
        results.faults += judging.faults_of_store(fleet.store, served, first) + of_bags + of_traces
        results.replies += replies
        results.episodes += episodes
        results.versions += len(list(fleet.store.glob('*@*')))
        results.champions += len(self._champions)


def count_bags(folder: Path) -> int:
    return len(list(folder.glob('*/metadata.yaml')))


def as_line(kill: Kill) -> str:
    how = kill.why_not or f'next champion after {kill.next_champion_s:.0f} s'
    return f'{kill.process} killed {kill.after_s:.1f} s into {kill.stage.value}: {how}'
