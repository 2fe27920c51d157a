# SPDX-License-Identifier: Apache-2.0
"""The faults of a night, at times that a seed draws. One thread."""

from __future__ import annotations

from collections.abc import Callable
import random
from typing import TYPE_CHECKING

from lerobot_serve.learner.steps import TrainJob

if TYPE_CHECKING:
    from support.night.night import Night

MINUTE_S, HOUR_S = 60.0, 3600.0
NIGHT_S = 8 * HOUR_S
POLL_S = 7.0
# how often each process is killed at a time that nothing chooses, and how long it is away [s]
KILLS = {'loop': (8, 5.0, 600.0), 'router': (4, 5.0, 60.0), 'learner': (4, 5.0, 300.0)}


class Faults:
    """See the module; `happened` lists what was done, with its time [s]."""

    def __init__(self, night: Night, chance: random.Random) -> None:
        self._night, self._clock, self._chance = night, night.clock, chance
        self.happened: list[tuple[float, str]] = []
        for name, (count, shortest_s, longest_s) in KILLS.items():
            for _ in range(count):
                away_s = chance.uniform(shortest_s, longest_s)
                self._at(chance.uniform(0.02, 0.97), lambda n=name, s=away_s: self.kill(n, s))
        self._at(chance.uniform(0.55, 0.65), self._silence)
        self._at(chance.uniform(0.3, 0.4), lambda: self.kill('learner', HOUR_S))
        self._at(chance.uniform(0.05, 0.25), self._fill_disk)
        # in a verb: it, or its router, ends half way
        self._when(chance.uniform(0.02, 0.3), self._runs('gate'), lambda: self.kill('loop', 60.0))
        self._when(chance.uniform(0.02, 0.3), self._runs('start'), lambda: self.kill('loop', 60.0))
        self._when(
            chance.uniform(0.1, 0.4), self._runs('finish'), lambda: self.kill('router', 9.0)
        )
        for share, step_s in ((0.2, -HOUR_S), (0.45, HOUR_S), (0.7, HOUR_S), (0.85, -HOUR_S)):
            self._at(share + chance.uniform(-0.05, 0.05), lambda s=step_s: self._step_wall(s))
        # at the next moment of this kind after a time
        self._when(chance.uniform(0.05, 0.5), self._is_training, lambda: self.kill('learner', 9.0))
        self._when(chance.uniform(0.05, 0.5), self._is_publishing, self._die_publishing)
        self._when(chance.uniform(0.05, 0.4), lambda: True, self._poison)
        self._when(chance.uniform(0.02, 0.3), self._runs('gate'), self._damage)

    def _at(self, share: float, what: Callable[[], None]) -> None:
        self._clock.after(share * NIGHT_S, what)

    def _when(self, share: float, is_now: Callable[[], bool], what: Callable[[], None]) -> None:
        def look() -> None:
            if is_now():
                what()
            else:
                self._clock.after(POLL_S, look)

        self._at(share, look)

    def _note(self, what: str) -> None:
        self.happened.append((self._clock.elapsed_s, what))

    # processes

    def kill(self, name: str, away_s: float) -> None:
        """Kill a process, and start it again later."""
        process = getattr(self._night, name)
        if not self._night.is_up(name):
            return
        self._note(f'{name} killed for {away_s:.0f} s')
        process.kill()
        self._clock.after(away_s, lambda: self._start(name))

    def _start(self, name: str) -> None:
        if not self._night.is_up(name):
            getattr(self._night, name).start()
            self._note(f'{name} started')

    def _runs(self, step: str) -> Callable[[], bool]:
        return lambda: self._night.loop.verb == step

    def _is_training(self) -> bool:
        step = self._night.learner.step
        return step is not None and isinstance(step.job, TrainJob) and not step.is_over

    def _is_publishing(self) -> bool:
        return self._night.is_up('learner')

    def _die_publishing(self) -> None:
        learner = self._night.learner
        learner.dies_publishing = True

        def start() -> None:
            if learner.dies_publishing:
                self._clock.after(POLL_S, start)
                return
            self._note('learner killed in a publication')
            self._start('learner')

        self._clock.after(POLL_S, start)

    # the world

    def _silence(self) -> None:
        self._note('robots silent')
        self._set_silent(True)
        self._clock.after(HOUR_S, lambda: self._set_silent(False))

    def _set_silent(self, is_silent: bool) -> None:
        for robot in self._night.robots:
            robot.is_silent = is_silent

    def _fill_disk(self) -> None:
        self._note('disk of the store full')
        learner = self._night.learner
        learner.is_disk_full = True
        known = len(learner.failures)

        def look() -> None:
            if len(learner.failures) == known:
                self._clock.after(POLL_S, look)
            else:
                self._clock.after(15 * MINUTE_S, free)

        def free() -> None:
            self._note('disk of the store has room')
            learner.is_disk_full = False

        look()

    def _step_wall(self, by_s: float) -> None:
        self._note(f'system clock stepped by {by_s:g} s')
        self._clock.wall_step_s += by_s

    def _poison(self) -> None:
        self._note('rounds are poisoned')
        world = self._night.world
        world.is_poisoned = True

        def look() -> None:
            if world.poisoned & self._night.refused():
                world.is_poisoned = False
                self._note('a poisoned version was refused')
            else:
                self._clock.after(POLL_S, look)

        look()

    def _damage(self) -> None:
        """Change a byte of the version that is about to be compared."""
        version = self._night.ungated()[-1]
        file = self._night.store / version / 'model.safetensors'
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.chmod(0o644)
        file.write_bytes(content)
        self._night.damaged.add(version)
        self._note(f'{version} damaged')
