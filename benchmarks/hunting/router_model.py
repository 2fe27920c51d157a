# SPDX-License-Identifier: Apache-2.0
"""
A whole router core in virtual time: dispatcher, slots, control, canary, operator and the folder
that outlives it, with servers, robots and a person who operates it.

`step` is the turn of one robot; the other methods are what happens between two steps. The checker
sees what crosses the boundary, and raises Violation. A restart builds everything anew from the
folder as it was on the disk at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
import contextlib
from dataclasses import replace
import heapq
from itertools import count
from pathlib import Path
from random import Random
import shutil
import tempfile
from typing import Any
from unittest import mock

from builtin_interfaces.msg import Time
import numpy as np

from benchmarks.hunting.router_invariants import CanaryCounts, RouterInvariants, S
from benchmarks.hunting.router_servers import HEALTHY, NAMES, RouterModelClient, RouterModelServer
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Flag, MsgType, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.parameters import build_parameters, ParameterError
from lerobot_serve.router.api.slot_commands import Command, run_slot_command, SlotCommandRejected
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.links import ParameterSource, RouterLinks
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions import call_pool
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.job_queue import JobQueue
from lerobot_serve_interfaces.msg import CanaryState

STEP_NS = S // 6
# in turns of robots
LOOK_EVERY = 3
ROBOTS = 'r1', 'r2', 'r3'
SLOTS = {'a': ('/a1', '/a2'), 'b': ('/b1',)}
STATE = np.zeros((1, 2), np.float32)
# a robot asks again when nothing came for so long
PATIENCE_NS = 4 * S
SLOT_COMMANDS = {
    'drain': Command.DRAIN,
    'restore': Command.RESTORE,
    'probe': Command.PROBE,
    'lift': Command.LIFT_VERDICT,
}
CANARY_COMMANDS = {
    'pause': Command.CANARY_PAUSE,
    'resume': Command.CANARY_RESUME,
    'promote': Command.CANARY_PROMOTE,
    'rollback': Command.CANARY_ROLLBACK,
}
PLANS = {'none': (), 'short': ('50:2:0', '100'), 'careful': ('20:3:0', '50:3:0', '100')}
CHOICES: dict[str, tuple[object, ...]] = {
    'split_percent': (50, 100, 0, 80),
    'canary.plan': tuple(PLANS.values()),
    'hedge_factor': (0.0, 2.0),
    'failover_slots': ('none', 'none', 'b'),
    'move_episodes_on_rollback': (False, True),
    'standby_replicas': (0, 1),
}
FIXED = {
    'slot_a': SLOTS['a'],
    'slot_b': SLOTS['b'],
    'reply_timeout_s': 0.5,
    'probe_initial_interval_s': 0.2,
    'probe_max_interval_s': 0.5,
    'healthy_threshold': 1,
    'canary.minimum_episodes': 2,
    'canary.minimum_step_s': 0.0,
    'canary.margin': 0.3,
    'canary.block_episodes': 1,
    'max_remembered_placements': 1000,
    'session_grace_s': 5.0,
}


class InlineExecutor:
    """An executor that does everything at once, in the caller's thread."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, act: Callable[..., Any], *arguments: object) -> Future:
        future: Future = Future()
        try:
            future.set_result(act(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None: ...


class ModelRobot:
    """One robot: its session, its episode, and what it waits for."""

    def __init__(self, name: str) -> None:
        self.name, self.epoch, self.seq = name, 0, 0
        self.episode, self.number = '', 0
        self.waits_since_ns: int | None = None
        self.is_open = False

    def ask(self) -> OpenSessionRequest:
        topic = f'/{self.name}/chunk'
        return OpenSessionRequest(
            client_id=self.name,
            instance=1,
            session_epoch=self.epoch,
            reply_topic=topic,
            state_names=NAMES,
            action_names=NAMES,
            fps=10.0,
        )


class RouterModel(RequestObserver):
    """See the module; one thread drives it. It is transport and observer of its own router."""

    def __init__(self, seed: int, **choices: object) -> None:
        """`choices` take the place of what the seed would draw."""
        self.random = Random(seed)
        drawn = {name: self.random.choice(values) for name, values in CHOICES.items()}
        self.choices = {**drawn, **choices}
        # as the file has them
        self._given = build_parameters(RouterParameters, {**FIXED, **self.choices})
        self._parent = Path(tempfile.mkdtemp(prefix='hunt'))
        self._folders = count()
        self._folder = self._parent / 'state'
        self._folder.mkdir()
        self.now_ns, self.wall_s = 1000 * S, 1.7e9
        self._names = count(1)
        self.servers = {
            name: RouterModelServer(name, slot, f'{slot}@{slot}1')
            for slot in SLOTS
            for name in SLOTS[slot]
        }
        self.people = {name: ModelRobot(name) for name in ROBOTS}
        self.checker = RouterInvariants(end_ns=3 * S, calm_ns=8 * S)
        self.checker.split(self._given.split_percent)
        self._future: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.steps = 0
        self._is_rolled_back = self._is_doomed = False
        self._begin()

    # the process

    def _begin(self) -> None:
        self._future = []
        self._drops, self.parameters = DropCounters(), self._given
        self._began_ns = self.now_ns
        clients = {name: RouterModelClient(server) for name, server in self.servers.items()}
        with mock.patch.object(call_pool, 'ThreadPoolExecutor', InlineExecutor):
            self.core = self._core(clients)
        # what was set live before holds again
        self.parameters = self.core.parameters
        self._tell_status()
        self.core.pin_policies()
        self.core.session_manager.check_replicas()
        self.checker.started(self.parameters.split_percent)
        for slot in SLOTS:
            self.checker.slot_is(slot, self.now_ns, well=self._is_well(slot), open=False)
        for person in self.people.values():
            person.is_open = False

    def _core(self, clients: dict[str, RouterModelClient]) -> RouterCore:
        links = RouterLinks(clients, self, lambda message: None, observers=(self,))
        context = NodeContext(
            '/policy_router',
            clock=lambda: self.now_ns,
            stamp=Time,
            local_time=lambda: f'at {self.wall_s:.0f}',
            log_warning=lambda text: None,
            log_info=lambda text: None,
        )
        source = ParameterSource(self._given, self._given, self._set_own)
        return RouterCore(source, self._folder, links, self._drops, context)

    def _set_own(self, **values: Any) -> None:
        """The canary's own choice; as the node's parameter server does it."""
        if 'split_percent' in values and not self._is_doomed:
            self.checker.split(values['split_percent'])
        self._apply(replace(self.parameters, **values))

    def _apply(self, parameters: RouterParameters) -> None:
        self.parameters = parameters
        self.core.change_parameters(parameters)

    def _tell_status(self) -> None:
        for name, server in self.servers.items():
            self.core.set_available(name, is_available=server.is_there)
            if server.tells:
                self.core.update_replica(name, server.seen)

    # what the dispatcher does to the outside

    def send(self, server: str, raw: bytes) -> None:
        for delay_ns, answer in self.servers[server].answers(raw, self.random):
            self._at(delay_ns, lambda a=answer: self._answered(server, a))

    def _answered(self, server: str, raw: bytes) -> None:
        self.core.dispatcher.on_reply(server, raw, self.now_ns)

    def reply(self, session: ClientSession, raw: bytes) -> None:
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed:
            return
        person = self.people[session.request.client_id]
        key = chunk.client_id, chunk.header.session_epoch, chunk.header.seq
        if (key[1], key[2]) == (person.epoch, person.seq):
            person.waits_since_ns = None
        if chunk.status != Status.OK:
            self.checker.failed(key)
            return
        flagged = bool(chunk.header.flags & Flag.POLICY_CHANGED)
        self.checker.replied(key, chunk.episode_id, chunk.slot, chunk.policy, flagged=flagged)

    def fail(
        self, request: InFlightRequest, status: Status, text: str, retry_after_s: float = 0.0
    ) -> None:
        self.people[request.session.request.client_id].waits_since_ns = None
        self.checker.failed(key_of(request))

    def refuse_unknown(self, header: Header, client_id: str, episode_id: str) -> None: ...

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        if not placement.slot:
            return
        self.checker.decided(
            request.episode_id,
            placement.slot,
            self.core.slots[placement.slot].policy,
            self.now_ns,
            is_new=not placement.sticky,
        )

    def on_dropped(self, request: InFlightRequest, reason: str) -> None:
        self.checker.dropped(key_of(request))

    # time

    def _at(self, delay_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._future, (self.now_ns + delay_ns, next(self._numbers), act))

    def step(self) -> None:
        """A robot has its turn."""
        self.steps += 1
        self._live(self.people[ROBOTS[self.steps % len(ROBOTS)]])
        self._pass(self.now_ns + STEP_NS)
        self._work()
        if self.steps % LOOK_EVERY == 0:
            self._tell_status()
            self.core.update_canary()
            self._look()
        if self.steps % (2 * LOOK_EVERY) == 0:
            self.core.expire_episodes()
            self.core.session_manager.check_replicas()
            self.core.session_manager.maintain_sessions()

    def _pass(self, end_ns: int) -> None:
        dispatcher = self.core.dispatcher
        while True:
            due_ns = dispatcher.on_timer(self.now_ns)
            times = [due_ns] if due_ns is not None else []
            times += [at_ns for at_ns, *_ in self._future[:1]]
            at_ns = min(times, default=end_ns)
            if at_ns > end_ns:
                break
            if at_ns == end_ns and not times:
                break
            self.now_ns = max(self.now_ns, at_ns)
            while self._future and self._future[0][0] <= self.now_ns:
                heapq.heappop(self._future)[2]()
        self.now_ns = max(self.now_ns, end_ns)

    def _work(self) -> None:
        """What the thread `control` does, up to now."""
        jobs, self.core.jobs = self.core.jobs, JobQueue()
        jobs.end()
        jobs.run()

    def _look(self) -> None:
        for slot, names in SLOTS.items():
            is_open = all(person.is_open for person in self.people.values())
            is_open &= all(
                name in robot.places.get(slot, ())
                for robot in self.core.table.sessions
                for name in names[:1]
            )
            self.checker.slot_is(slot, self.now_ns, well=self._is_well(slot), open=is_open)
        self.checker.look(self.now_ns)
        canary, was_rolled_back = self.core.canary.report(None), self._is_rolled_back
        self._is_rolled_back = canary.state == CanaryState.ROLLED_BACK
        # a candidate that becomes known later has no verdict of its own
        if self._is_rolled_back and not was_rolled_back:
            self.checker.verdict(canary.candidate_policy, canary.slot)
        if self.steps % 600 == 0:
            self.checker.forget(500)

    # robots

    def _live(self, person: ModelRobot) -> None:
        waits = person.waits_since_ns
        if waits is not None and self.now_ns - waits < PATIENCE_NS:
            return
        if not person.is_open or waits is not None:
            self._open(person)
        if person.is_open:
            if not person.episode or self.random.random() < 0.15:
                self._begin_episode(person)
            self._ask(person)

    def _open(self, person: ModelRobot) -> None:
        person.epoch += 1
        self.checker.closed(person.name)
        person.waits_since_ns, person.is_open = None, False
        with contextlib.suppress(SessionRefused):
            self.core.session_manager.open(person.ask())
            person.is_open = True

    def _begin_episode(self, person: ModelRobot) -> None:
        if person.episode and self.random.random() < 0.8:
            good = self.random.random() < 0.7
            self.core.record_outcome(person.episode, 1 if good else 2)
        person.number += 1
        person.episode = f'episode-{next(self._names)}'

    def _ask(self, person: ModelRobot) -> None:
        person.seq += 1
        person.waits_since_ns = self.now_ns
        header = Header(person.seq, 0, person.epoch, person.number, 1, MsgType.OBSERVATION)
        key = person.name, person.epoch, person.seq
        self.checker.asked(key, person.episode, self.now_ns)
        dropped = sum(self._drops.counts().values())
        raw = wire_observation.encode(Observation(header, person.name, person.episode, STATE))
        self.core.dispatcher.on_request(raw, self.now_ns)
        robot = self.core.table.sessions.find(person.name, person.epoch)
        if robot is None and sum(self._drops.counts().values()) > dropped:
            # counted: no such session
            self.checker.dropped(key)

    # what happens between two steps

    def _is_well(self, slot: str) -> bool:
        return all(self.servers[name].mood == HEALTHY for name in SLOTS[slot])

    def _disturbed(self, slot: str) -> None:
        self.checker.slot_is(slot, self.now_ns, well=False, open=False)

    def set_mood(self, server: str, mood: str) -> None:
        self.servers[server].mood = mood
        self._disturbed(self.servers[server].slot)

    def slot_mood(self, slot: str, mood: str) -> None:
        for name in SLOTS[slot]:
            self.servers[name].mood = mood
        self._disturbed(slot)

    def load(self, slot: str, version: int) -> None:
        """All servers of a slot serve another policy."""
        for name in SLOTS[slot]:
            self.servers[name].load(f'{slot}@{slot}{version}')
        self._disturbed(slot)

    def swap(self, server: str, version: int) -> None:
        """One server replaces its policy under its sessions."""
        slot = self.servers[server].slot
        self.servers[server].swap(f'{slot}@{slot}{version}')
        self._disturbed(slot)

    def slot_word(self, word: str, slot: str) -> None:
        """An operator's word on a slot."""
        with contextlib.suppress(SlotCommandRejected):
            policy = self.core.slots[slot].policy
            run_slot_command(self.core, SLOT_COMMANDS[word], slot, 'hunted')
            if word == 'lift':
                self.checker.lifted(policy, slot)
                # the canary continues saying what its trial came to
                canary = self.core.canary.report(None)
                self._is_rolled_back = canary.state == CanaryState.ROLLED_BACK
            elif word != 'probe':
                self.checker.drain(slot, is_drained=word == 'drain')

    def canary_word(self, word: str) -> None:
        """An operator's word on the canary."""
        before = self.core.canary.report(None)
        with contextlib.suppress(SlotCommandRejected):
            run_slot_command(self.core, CANARY_COMMANDS[word], '', 'hunted')
            if word == 'rollback':
                self.checker.verdict(before.candidate_policy, before.slot)
            elif before.state == CanaryState.ROLLED_BACK:
                self.checker.lifted(before.candidate_policy, before.slot)

    def set_split(self, percent: int) -> None:
        """`ros2 param set split_percent`, as the node's parameter server takes it."""
        wanted = replace(self.parameters, split_percent=percent)
        with contextlib.suppress(ParameterError):
            self.core.check_change(self.parameters, wanted)
            self.checker.split(percent)
            self._apply(wanted)

    def set_plan(self, name: str) -> None:
        """`ros2 param set canary.plan`."""
        wanted = replace(self.parameters, canary_plan=PLANS[name])
        with contextlib.suppress(ParameterError):
            self.core.check_change(self.parameters, wanted)
            self._apply(wanted)

    def step_wall_clock(self, by_s: float) -> None:
        """The system clock is set."""
        self.wall_s += by_s

    def restart(self, is_killed: bool) -> None:
        """The process ends, by a signal or without a word, and is started again."""
        left = None
        if is_killed:
            # there is no writer thread here; a real one has written all but the last moment
            self.core.writer.flush()
            left = self._disk()
        self._end(left)
        self._begin()

    def _disk(self) -> Path:
        """Return a copy of what is on the disk now."""
        left = self._parent / f'state{next(self._folders)}'
        shutil.copytree(self._folder, left)
        return left

    def _end(self, left: Path | None) -> None:
        """End the process, by a signal where a copy of the disk of before is left."""
        self.core.close()
        if left:
            shutil.rmtree(self._folder)
            self._folder = left

    def kill_after_outcome(self, robot: str, outcome: int) -> None:
        """A robot reports how its episode ended; the router accepts it and is killed at once."""
        person, problems = self.people[robot], list[str]()
        if not self.core.record_outcome(person.episode, outcome).is_accepted:
            return
        person.episode = ''
        self.core.writer.when_durable(problems.append)
        if problems != ['']:
            return
        left = self._disk()
        # what it would have counted if it had lived; nobody hears of what it decides by that
        self._is_doomed = True
        self.core.update_canary()
        counted = canary_counts(self.core.canary.report(None))
        self._end(left)
        self._is_doomed = False
        self._begin()
        self.core.update_canary()
        self.checker.outcome_survived(counted, canary_counts(self.core.canary.report(None)))
        self._look()

    def close(self) -> None:
        self.core.close()
        shutil.rmtree(self._parent, ignore_errors=True)


def canary_counts(now: CanaryState) -> CanaryCounts:
    return CanaryCounts(
        (now.candidate_policy, now.champion_policy),
        now.state == CanaryState.RUNNING,
        now.step,
        (now.candidate_successes, now.candidate_failures),
        (now.champion_successes, now.champion_failures),
    )


def key_of(request: InFlightRequest) -> tuple[str, int, int]:
    ask = request.session.request
    return ask.client_id, ask.session_epoch, request.seq
