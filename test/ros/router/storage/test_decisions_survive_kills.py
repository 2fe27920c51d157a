# SPDX-License-Identifier: Apache-2.0
"""
What a router said yes to is in the router that starts next: random decisions in random order, and
SIGKILL 0 to 50 ms after the last reply, twenty times for each kind of decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
import random
import time

from msgspec.structs import replace
import pytest
from support.nodes.router_rig import LIMIT_S, RouterRig
from support.nodes.small_client import SmallClient
from support.postgres.server import postgres_server
from support.router.rollout_rig import FAILURE, PLAN

from lerobot_serve.contract.schema import Status
from lerobot_serve_interfaces.msg import CanaryState, ReplicaState, RouterState, SlotState
from lerobot_serve_interfaces.srv import ControlSlot

pytestmark = [pytest.mark.long, pytest.mark.slow]

R = ControlSlot.Request
# of each kind of decision and store
KILLS, ROUNDS_LIMIT = 10, 40
KINDS = (
    *('split', 'start', 'pause', 'resume', 'promote', 'abort'),
    *('lift', 'stop', 'drain', 'restore', 'outcome'),
)
RUNNING = (CanaryState.RUNNING, CanaryState.UNDECIDED)
STEPS = ['50:1000:0', '100']


@dataclass
class Decided:
    """What holds, by the replies of the router."""

    state: int = CanaryState.OFF
    split: int = 50
    plan: list[str] = field(default_factory=list)
    failures: int = 0
    is_barred: bool = False
    drained: str = ''

    @property
    def is_on_trial(self) -> bool:
        return self.state in (CanaryState.RUNNING, CanaryState.PAUSED)

    @property
    def is_open(self) -> bool:
        """Whether both slots may get a share."""
        return not (self.is_barred or self.drained)


class Operator:
    """Gives random commands that are possible now, and knows what must hold."""

    def __init__(self, rig: RouterRig, seed: int, **state: object) -> None:
        self.rig, self._state, self._draw = rig, state, random.Random(seed)
        self.decided, self.given, self.rounds = Decided(), Counter(), 0
        self._numbers = iter(range(100_000))
        for slot in ('a', 'b'):
            rig.server(slot, slot)
        self._start()
        rig.wait_for_health('healthy')
        self.robot: SmallClient = rig.robot()

    def _start(self) -> None:
        settings = {name: value for name, value in PLAN.items() if name != 'canary.plan'}
        self.rig.router(slot_a=['a'], slot_b=['b'], **settings, **self._state)

    # commands: when they are possible, and what they do

    def commands(self) -> dict[str, Callable[[], None]]:
        now = self.decided
        is_over = now.state in (CanaryState.OFF, CanaryState.ROLLED_BACK)
        possible = {
            'split': is_over and now.is_open,
            'start': is_over and now.is_open,
            'pause': now.state == CanaryState.RUNNING,
            'resume': now.state == CanaryState.PAUSED,
            'promote': now.state == CanaryState.RUNNING and not now.drained,
            'abort': now.is_on_trial or now.state == CanaryState.PROMOTED,
            'lift': now.is_barred,
            'stop': now.state != CanaryState.OFF and now.is_open,
            'drain': not now.drained,
            'restore': bool(now.drained),
            'outcome': now.is_on_trial,
        }
        return {name: getattr(self, name) for name, is_possible in possible.items() if is_possible}

    def act(self) -> str:
        """Give a command, of those that were given least."""
        commands = self.commands()
        least = min(self.given[name] for name in commands)
        name = self._draw.choice([each for each in commands if self.given[each] <= least + 2])
        commands[name]()
        self.given[name] += 1
        return name

    def _control(self, command: int, slot: str = '', **values: object) -> None:
        request = R(command=command, slot=slot, reason='a test', **values)
        answer = self.rig.ask(ControlSlot, 'control_slot', request)
        assert answer.success and 'NOT DURABLE' not in answer.text, answer.text

    def split(self) -> None:
        self.decided.split = self._draw.randrange(5, 95)
        self._control(R.SET_SPLIT, split_percent=self.decided.split)

    def start(self) -> None:
        self._control(R.CANARY_START, plan=STEPS)
        self.decided.plan, self.decided.failures = STEPS, 0
        self.decided.state, self.decided.split = CanaryState.RUNNING, 50
        # it waits for its first look at both slots
        self.rig.wait(lambda: self.seen(CanaryState).state in RUNNING, 'the rollout runs')

    def pause(self) -> None:
        self._control(R.CANARY_PAUSE)
        self.decided.state = CanaryState.PAUSED

    def resume(self) -> None:
        self._control(R.CANARY_RESUME)
        self.decided.state = CanaryState.RUNNING

    def promote(self) -> None:
        request = R(command=R.CANARY_PROMOTE, reason='a test')
        # a router that has just started looks at the candidate first
        self.rig.wait(
            lambda: self.rig.ask(ControlSlot, 'control_slot', request).success, 'promoted'
        )
        self.decided.state, self.decided.split = CanaryState.PROMOTED, 0

    def abort(self) -> None:
        self._control(R.CANARY_ROLLBACK)
        self.decided.state, self.decided.split = CanaryState.ROLLED_BACK, 100
        self.decided.is_barred = True

    def lift(self) -> None:
        self._control(R.LIFT_VERDICT, 'b')
        self.decided.is_barred = False

    def stop(self) -> None:
        self._control(R.CANARY_STOP, split_percent=50)
        self.decided.state, self.decided.plan, self.decided.split = CanaryState.OFF, [], 50

    def drain(self) -> None:
        self.decided.drained = f'reason {next(self._numbers)}'
        request = R(command=R.DRAIN, slot='a', reason=self.decided.drained)
        assert self.rig.ask(ControlSlot, 'control_slot', request).success

    def restore(self) -> None:
        self._control(R.RESTORE, 'a')
        self.decided.drained = ''

    def outcome(self) -> None:
        """A robot begins an episode of the candidate and fails; nothing waits in between."""
        name = self.rig.episode('b', salt=next(self._numbers))
        chunk = self.robot.round_trip(episode_id=name)
        assert (chunk.status, chunk.slot) == (Status.OK, 'b'), chunk.status_text
        receipt = self.rig.report(name, FAILURE)
        assert receipt.accepted, receipt.text
        self.decided.failures += 1

    # the kill, and what is there after it

    def kill(self) -> None:
        time.sleep(self._draw.uniform(0.0, 0.05))
        self.rig.kill('router')
        self.rig.watch.last.clear()
        self._start()
        self.rounds += 1
        self._wait_for_what_was_decided()
        self.rig.wait(self._has_servers, 'both servers are there')
        robot = self.robot
        robot.ask = replace(robot.ask, session_epoch=robot.ask.session_epoch + 1)
        robot.open()

    def _wait_for_what_was_decided(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while wrong := self.difference():
            assert time.monotonic() < deadline, wrong
            time.sleep(0.005)
        # a parameter of its own, which no topic has
        assert list(self.rig.get('canary.plan') or []) == self.decided.plan

    def _has_servers(self) -> bool:
        replicas = [each for slot in self.seen(RouterState).slots for each in slot.replicas]
        return bool(replicas) and all(each.state == ReplicaState.READY for each in replicas)

    def seen(self, kind: type) -> object:
        return self.rig.watch.last.get(kind, kind())

    def difference(self) -> str:
        """Return what the router has otherwise; empty when all is there."""
        now, canary, router = self.decided, self.seen(CanaryState), self.seen(RouterState)
        slots = {slot.slot: slot for slot in router.slots}
        if len(slots) < 2 or not canary.stamp.sec:
            return 'nothing is published yet'
        states = RUNNING if now.state == CanaryState.RUNNING else (now.state,)
        text, is_barred = slots['a'].text, slots['b'].state == SlotState.BARRED
        found = {
            'rollout': (canary.state in states, canary.state),
            'split': (router.split_percent == now.split, router.split_percent),
            'bar': (is_barred == now.is_barred, slots['b'].text),
            'drain': (now.drained in text and bool(now.drained) == ('reason' in text), text),
            'outcomes': (
                not now.is_on_trial or canary.candidate_failures == now.failures,
                canary.candidate_failures,
            ),
        }
        wrong = {name: seen for name, (is_right, seen) in found.items() if not is_right}
        return f'{wrong}, not {now}' if wrong else ''


@pytest.fixture(params=['file', 'postgres'])
def state(request, tmp_path):
    """The parameters of a state."""
    if request.param == 'file':
        yield {'state_folder': tmp_path / 'kept'}
        return
    with postgres_server() as server:
        yield {'state_url': server.new_database(), 'state_folder': tmp_path / 'kept'}


def test_every_decision_survives(router_rig, state):
    seed = random.randrange(1 << 32)
    print(f'seed {seed}')
    operator = Operator(router_rig, seed, **state)
    draw, kills = random.Random(seed), Counter()
    while min(kills[name] for name in KINDS) < KILLS:
        assert operator.rounds < ROUNDS_LIMIT
        given = [operator.act() for _ in range(draw.randrange(8, 20))]
        if 'outcome' in operator.commands() and draw.random() < 0.7:
            # the only one that no later decision takes along to the disk
            operator.outcome()
            given.append('outcome')
        print(given)
        operator.kill()
        kills.update(set(given))
    print(f'{operator.rounds} kills: {dict(kills)}')
