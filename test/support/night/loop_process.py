# SPDX-License-Identifier: Apache-2.0
"""
The loop of a night: the real conductor with its journal, and the real verbs behind it: the gate in
this process, start and finish of a rollout by a client of the played fleet. One thread.

A verb takes time, in which everything else continues: also a kill of the loop, with which the
kernel ends the verb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import io
from pathlib import Path
from typing import Any

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.errors import UserError
from lerobot_serve.router.api.slot_commands import SlotCommandRejected
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.loop.conductor import Conductor
from lerobot_serve.tools.loop.decisions import LoopStep, rollout_facts, RolloutFacts
from lerobot_serve.tools.loop.journal import Journal, JOURNAL_FILE
from lerobot_serve.tools.loop.observing import VerbResult
from lerobot_serve.tools.loop.settings import LoopSettings
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.operations import checked
from lerobot_serve.tools.operate.outcome import NotReached, ResultUnknown
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader
from lerobot_serve_interfaces.srv import ControlSlot
from support.night.clock import NightClock
from support.night.robots import NightRobot
from support.night.router_process import NAME, NightRouter
from support.night.servers import CHANGE_S, LOAD_S, NightServer
from support.tools.operator_states import robot_of, server_of

GATE_S, STATE_LIMIT_S, ROBOT_LIMIT_S, POLL_S = 30.0, 10.0, 300.0, 1.0
CUT_LINE = '{"at": "2026-'
# the p99 of a policy of a millisecond is that of a busy machine
ANY_LATENCY = ['--latency-ratio', '100000']


class Killed(BaseException):
    """The process of the loop ends here."""


class FleetOfTheNight:
    """What the verbs ask of a fleet, as FleetClient."""

    operator = 'loop@night'

    def __init__(
        self,
        clock: NightClock,
        router: NightRouter,
        servers: Mapping[str, NightServer],
        robots: Sequence[NightRobot],
        wait: Callable[[float, Callable[[], bool]], bool],
    ) -> None:
        self._clock, self._router = clock, router
        self._servers, self._robots, self._wait = servers, robots, wait

    def router(self, name: str) -> RouterView:
        view = self._router.view
        if view is None:
            raise NotReached(f'{name} does not run')
        return view

    def last_router(self, name: str) -> RouterView | None:
        return self._router.view

    def wait_for_router(
        self, name: str, accepts: Callable[[RouterView], bool], timeout_s: float | None = None
    ) -> RouterView | None:
        def is_accepted() -> bool:
            view = self._router.view
            return view is not None and accepts(view)

        limit_s = STATE_LIMIT_S if timeout_s is None else timeout_s
        return self._router.view if self._wait(limit_s, is_accepted) else None

    def find_robots(self, **_: object) -> list[RobotView]:
        return [self._robot(each) for each in self._robots]

    def wait_for_robot(self, node: str, accepts: Callable[[RobotView], bool]) -> bool:
        (robot,) = [each for each in self._robots if each.node == node]
        return self._wait(ROBOT_LIMIT_S, lambda: accepts(self._robot(robot)))

    @staticmethod
    def _robot(robot: NightRobot) -> RobotView:
        return robot_of(
            robot.node,
            robot.client_id,
            'STREAMING',
            server=NAME,
            slot=robot.slot,
            episode_id=robot.episode_id,
        )

    def get_parameters(self, server: str, names: Sequence[str]) -> dict[str, str]:
        found = self._servers[server]
        values = {'policy_path': str(found.path), 'policy_root': '/', 'policy_kind': 'builtin'}
        return {name: values.get(name, '') for name in names}

    def set_parameters(self, server: str, values: Mapping[str, object]) -> str:
        self._servers[server].path = Path(str(values['policy_path']))
        return ''

    def lifecycle_state(self, server: str) -> str:
        return self._servers[server].state

    def change_state(self, server: str, transition: str, timeout_s: float) -> bool:
        self._wait(LOAD_S if transition == 'configure' else CHANGE_S, lambda: False)
        is_done = self._servers[server].change(transition)
        self._router.poll()
        return is_done

    def server(self, server: str) -> ServerStatus:
        found = self._servers[server]
        return server_of(server, 'ACTIVE', policy=found.policy, text=found.text)

    def control_slot(
        self, name: str, command: str, *, reason: str, **values: Any
    ) -> tuple[bool, str]:
        if self._router.core is None:
            raise NotReached(f'{name} does not run')
        values['plan'] = tuple(values.get('plan', ()))
        try:
            return True, self._router.command(
                getattr(ControlSlot.Request, command), reason, **values
            )
        except SlotCommandRejected as error:
            return False, str(error)


class NightLoop:
    """See the module. `conductor` is None while the process is away; `started` hears of starts."""

    def __init__(
        self,
        settings: LoopSettings,
        clock: NightClock,
        router: NightRouter,
        servers: Mapping[str, NightServer],
        robots: Sequence[NightRobot],
    ) -> None:
        self._settings, self._clock, self._router = settings, clock, router
        self._fleet = FleetOfTheNight(clock, router, servers, robots, self._wait)
        self.conductor: Conductor | None = None
        self._journal: Journal | None = None
        self._is_busy = False
        # the step of the verb that runs now
        self.verb = ''
        self.log: list[str] = []
        self.start()
        clock.every(settings.period_s, self.look)

    # the process

    def start(self) -> None:
        if self._is_busy:
            # the verb of the one before has not noticed its end yet
            self._clock.after(POLL_S, self.start)
            return
        self._journal = Journal(self._settings.folder, self._clock.wall)
        self._journal.add('loop_started', text=f'store {self._settings.store}')
        self.conductor = Conductor(
            self._settings,
            self._journal,
            self._observe,
            self._run_verb,
            self.log.append,
            self._clock.monotonic_s,
        )

    def kill(self) -> None:
        """End as SIGKILL does, while a line is written; the lock goes with the process."""
        self.stop()
        with (self._settings.folder / JOURNAL_FILE).open('a') as file:
            file.write(CUT_LINE)

    def stop(self) -> None:
        self.conductor = None
        if self._journal:
            self._journal.__exit__(None, None, None)
            self._journal = None

    def look(self) -> None:
        """Take steps until nothing is to do."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self.conductor and self.conductor.take_step() is not LoopStep.WAIT:
                pass
        except Killed:
            pass
        finally:
            self._is_busy = False

    def _observe(self) -> RolloutFacts:
        view = self._router.view
        return rollout_facts(view) if view else RolloutFacts(text='no router')

    def _wait(self, limit_s: float, is_over: Callable[[], bool]) -> bool:
        """Let time pass in a verb. Raises Killed when the loop was killed meanwhile."""
        mine = self.conductor

        def is_over_or_dead() -> bool:
            return self.conductor is not mine or is_over()

        until_s = self._clock.monotonic_s() + limit_s
        while not is_over_or_dead() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.pass_time(min(POLL_S, left_s), is_over_or_dead)
        if self.conductor is not mine:
            raise Killed
        return is_over()

    # verbs

    def _run_verb(self, words: list[str], limit_s: float) -> VerbResult:
        self.verb = words[0] if words[0] == 'gate' else words[1]
        try:
            if self.verb == 'gate':
                self._wait(GATE_S, lambda: False)
                return run_in_process([*words, *ANY_LATENCY])
            return VerbResult(0, self._rollout(words), '')
        except (UserError, ResultUnknown) as error:
            return VerbResult(getattr(error, 'exit_status', 1), '', f'lerobot-serve: {error}\n')
        finally:
            self.verb = ''

    def _rollout(self, words: list[str]) -> str:
        """Run `rollout start` or `rollout finish` as its verb does. Raises UserError."""
        before = self._fleet.router(NAME)
        loader = ServerLoader(self._fleet, 600.0, self.log.append)
        if words[1] == 'finish':
            if not checked(rollouts.finish_rule(before)):
                return 'nothing to do'
            return rollouts.finish(loader, before, reason='learning loop').text
        (plan,) = [word.removeprefix('--plan=') for word in words if word.startswith('--plan=')]
        steps = rollouts.parsed_plan(plan)
        checked(rollouts.start_rule(before, words[2], steps, lambda: None))
        return rollouts.start(loader, before, words[2], steps, reason='learning loop').text


def run_in_process(words: list[str]) -> VerbResult:
    """Run a verb of `lerobot-serve` in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = main(words)
    return VerbResult(status, output.getvalue(), errors.getvalue())
