# SPDX-License-Identifier: Apache-2.0
"""Rollouts by the verbs of an operator, with a real router and real servers."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from itertools import islice
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.golden import form_of, Golden
from support.nodes.operator import one_client, Operator
from support.nodes.router_rig import ROUTER, RouterRig
from support.nodes.zenoh_links import both_links

from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve_interfaces.msg import CanaryState

pytestmark = pytest.mark.long
CONFIRM = 'lerobot_serve.tools.cli.operator_options.Operator.confirm'
# a shell that runs the tests in its background lets them ignore SIGINT
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from lerobot_serve.tools.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def operator(capsys):
    return Operator(capsys)


def two_slots(rig: RouterRig, *champions: str, **router: object) -> None:
    """Start servers with v1 in slot a, one with v2 in slot b, and a router for slot a alone."""
    root = {'policy_root': str(rig.folder)}
    for name in champions:
        rig.server(name, 'a', 'v1', **root)
    rig.server('b', 'b', 'v2', **root)
    rig.router(slot_a=list(champions), slot_b=['b'], split_percent=100, **router)
    rig.wait_for_health('healthy')


class Requests(threading.Thread):
    """A robot that sends one request after the other, until `end`."""

    def __init__(self, rig: RouterRig) -> None:
        super().__init__(name='requests', daemon=True)
        self._client, self._ended = rig.robot(), threading.Event()
        self.statuses: list[int] = []
        self.slots: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set():
            chunk = self._client.round_trip(episode_id=f'episode-{len(self.statuses)}')
            self.statuses.append(chunk.status)
            self.slots.append(chunk.slot)

    def end(self) -> None:
        self._ended.set()
        self.join(20)


@pytest.mark.slow
@pytest.mark.golden
@both_links
def test_a_rollout_from_its_start_to_the_new_champion(router_rig, operator, monkeypatch, golden):
    two_slots(router_rig, 'a1', 'a2', trace_folder=router_rig.folder / 'traces')
    with one_client(monkeypatch):
        check_rollout(router_rig, operator, golden)


def is_replaced(router_rig: RouterRig) -> bool:
    """Return whether both slots have one policy, and both replicas of slot a serve it."""
    champion, candidate = (router_rig.slot(name) for name in 'ab')
    states = [replica.state for replica in champion.replicas]
    return champion.policy == candidate.policy and states == [1, 1]


def check_rollout(router_rig: RouterRig, operator: Operator, golden: Golden) -> None:
    assert 'did you mean steered?' in operator.is_refused('rollout', 'start', 'stered', '--yes')
    assert 'no rollout runs' in operator.is_refused('rollout', 'abort', '--yes')
    policy_hash = router_rig.slot('b').policy.partition('@')[2][:6]
    refusal = operator.needs_yes('rollout', 'start', policy_hash, '--plan', '50,100')
    assert 'add --yes' in refusal and 'Nothing was changed' in refusal
    assert router_rig.get('canary.plan') == []

    told = operator.does('rollout', 'start', policy_hash, '--plan', '50,100')
    assert 'rollout: off -> ' in told and f'by {operator_name()}' in told
    router_rig.wait(lambda: phase(router_rig) == CanaryState.RUNNING, 'the first step')
    status = operator.reads('rollout', 'status')
    golden.holds('json_of_nodes/rollout_status.txt', form_of(status))
    assert (status['state'], status['share_percent']) == ('running', 50)
    assert [bar['decision'] for bar in status['bars']] == ['promote', 'roll back']

    assert 'rollout: running -> paused' in operator.does('rollout', 'pause', '--reason', 'lunch')
    assert 'nothing to do: paused' in operator.does('rollout', 'pause')
    assert f'{operator_name()}: lunch' in router_rig.watch.last[CanaryState].text
    assert 'a rollout sets the split' in operator.is_refused('split', '10', '--yes')
    assert 'is not promoted' in operator.is_refused('rollout', 'finish', '--yes')
    assert 'rollout: paused -> ' in operator.does('rollout', 'undo')
    assert 'split to slot a: 50 % -> 0 %' in operator.does('rollout', 'promote')

    requests = Requests(router_rig)
    requests.start()
    try:
        told = operator.does('rollout', 'finish')
    finally:
        requests.end()
    assert 'split to slot a: 0 % -> 100 %' in told
    assert set(requests.statuses) == {Status.OK}
    router_rig.wait(lambda: is_replaced(router_rig), 'slot a serves the policy of slot b')
    assert router_rig.get('canary.plan') == []
    assert 'nothing to do' in operator.does('rollout', 'finish')

    found = operator.reads('rollout', 'history')
    golden.holds(
        'json_of_nodes/rollout_history.txt',
        form_of({**dict.fromkeys(found), 'decisions': found['decisions'][:1]}),
    )
    decisions = [d['what'] for d in found['decisions']]
    candidate = router_rig.slot('b').policy
    assert f'rollout paused, 50 % to slot b ({candidate})' in decisions
    assert 'split_percent: 0 -> 100' in decisions


def phase(rig: RouterRig) -> int:
    now = rig.watch.last.get(CanaryState)
    return now.state if now else CanaryState.OFF


def operator_name() -> str:
    from lerobot_serve.tools.operate.names import operator_name

    return operator_name()


@contextlib.contextmanager
def watched() -> Iterator[Iterator[str]]:
    """Give the lines of `rollout watch`, which Ctrl-C ends with success."""
    command = [sys.executable, '-c', CODE, 'rollout', 'watch']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield iter(process.stdout.readline, '')
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def roll_back_twice(router_rig: RouterRig) -> None:
    """Let two operators give the same command at once."""
    # two operators read the same message
    words = ('rollout', 'abort', '--now', '--yes', '--json', '--reason', 'v2 knocks things over')
    both = [
        subprocess.Popen(
            [sys.executable, '-c', CODE, *words], stdout=subprocess.PIPE, env={**os.environ}
        )
        for _ in range(2)
    ]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert any('rollout: running -> rolled back' in each['changes'] for each in told)
    assert router_rig.get('split_percent') == 100


@pytest.mark.slow
def test_operators_roll_back_at_once_and_a_router_that_dies_is_reported(
    router_rig, operator, monkeypatch
):
    two_slots(router_rig, 'a')
    operator.does('rollout', 'start', '--plan', '50,100')
    router_rig.wait(lambda: phase(router_rig) == CanaryState.RUNNING, 'the first step')
    robot = router_rig.robot('witness')
    slots = [robot.round_trip(episode_id=f'before-{number}').slot for number in range(20)]
    assert set(slots) == {'a', 'b'}
    with watched() as lines:
        assert ': running: step 1 of 2' in next(lines)
        roll_back_twice(router_rig)
        # once the verb has ended, no new episode and no running one is on the candidate
        running = f'before-{slots.index("b")}'
        for episode in (*(f'after-{number}' for number in range(20)), running):
            assert robot.round_trip(episode_id=episode).slot == 'a', episode
        # the states of router and canary arrive in turn
        assert any('rollout: running -> rolled back' in line for line in islice(lines, 4))
    assert 'v2 knocks things over' in router_rig.watch.last[CanaryState].text

    assert 'a verdict bars' in operator.is_refused('rollout', 'start', 'steered', '--yes')
    assert 'lift the verdict' in (operator.does('rollout', 'resume') and operator.error)
    router_rig.wait(lambda: phase(router_rig) == CanaryState.RUNNING, 'it runs again')

    # the router dies while the operator reads the question
    monkeypatch.setattr(CONFIRM, lambda *_, **__: router_rig.kill('router'))
    assert operator('rollout', 'abort', '--yes', '--timeout-s', '3') == 3
    assert 'UNKNOWN: rollout abort was sent; /policy_router did not reply' in operator.error
    assert '50 % of new episodes to slot a' in operator.error
    # it was killed, and a frozen one looks the same
    assert f'{ROUTER} answered until' in operator.is_refused_within('1', 'rollout', 'status')


@pytest.mark.slow
@both_links
def test_a_directory_is_loaded_into_slot_b_first(router_rig, operator, monkeypatch, link):
    two_slots(router_rig, 'a')
    # as the router names it
    server = '/b/policy_server' if link == 'ros' else 'zenoh:/b/policy_server'
    before = router_rig.slot('b').policy
    with one_client(monkeypatch):
        folder = router_rig.steering('v3').folder
        outside = operator.is_refused('rollout', 'start', '/elsewhere/v3', '--yes')
        assert f'the policy_root of {server}: copy it there' in outside
        assert router_rig.slot('b').policy == before
        gone = f'{router_rig.folder}/gone'
        missing = operator.ends_with(4, 'rollout', 'start', gone, '--yes', '--timeout-s', '20')
        assert f'{server} serves nothing: it could not configure' in missing
        told = operator.does('rollout', 'start', f'{folder}?chunk=30', '--plan', '50,100')
        assert f'{server}: load ' in operator.error
        assert f'policy of slot b: {before} -> steered@' in told
        router_rig.wait(lambda: phase(router_rig) == CanaryState.RUNNING, 'the first step')
        router_rig.wait(lambda: router_rig.slot('b').policy != before, 'the new policy')
        # a verdict outlives its plan, and can be lifted then
        operator.does('rollout', 'abort')
        assert 'rollout: rolled back -> off' in operator.does('rollout', 'stop')
        assert 'a verdict bars' in operator.is_refused('rollout', 'start', '--yes')
        assert 'slot b: BARRED -> HEALTHY' in operator.does('rollout', 'resume')
        assert 'nothing to do: no rollout runs' in operator.does('rollout', 'stop')
        assert 'no rollout runs' in operator.is_refused('rollout', 'resume', '--yes')
        assert (router_rig.get('split_percent'), router_rig.get('canary.plan')) == (100, [])


@pytest.mark.slow
def test_slots_names_and_several_routers(router_rig, operator, monkeypatch):
    assert 'no router is found' in operator.is_refused_within('0.3', 'rollout', 'status')
    two_slots(router_rig, 'a')
    with one_client(monkeypatch):
        check_slots(router_rig, operator)
    with one_client(monkeypatch) as client:
        check_two_routers(router_rig, operator, client)


def check_slots(router_rig: RouterRig, operator: Operator) -> None:
    assert 'split to slot a: 100 % -> 80 %' in operator.does('split', '80')
    assert 'nothing to do: already 80 %' in operator.does('split', '80')
    assert 'PERCENT must be in [0, 100], got 140' in operator.ends_with(2, 'split', '140')
    assert "has no slot 'c'; it has a, b" in operator.is_refused('drain', 'c', '--yes')
    told = operator.does('drain', 'b', '--reason', 'service')
    assert 'slot b: HEALTHY -> DRAINED' in told and 'share of slot b: 20 % -> 0 %' in told
    assert 'drained already' in operator.does('drain', 'b')
    assert 'slot b: DRAINED -> HEALTHY' in operator.does('restore', 'b')
    assert 'did you mean policy_router?' in operator.is_refused_within(
        '1', 'split', '50', '--router', 'polcy_router', '--yes'
    )

    chunk = router_rig.robot().round_trip(episode_id='ep_42')
    assert chunk.status == Status.OK
    told = operator.does('outcome', 'ep_42', 'success', '--reason', 'on the shelf')
    assert 'ep_42 counts as success' in told and f'by {operator_name()}' in told
    assert 'will count episode ep_42 as success' in operator.error
    again = operator.prints('outcome', 'ep_42', 'success')
    assert 'ep_42, success: was reported before; nothing was changed' in again
    assert 'already counts as success' in operator.is_refused('outcome', 'ep_42', 'failure')
    assert "no episode 'ep_43'" in operator.is_refused('outcome', 'ep_43', 'failure')


def check_two_routers(router_rig: RouterRig, operator: Operator, client: FleetClient) -> None:
    servers = {name: f"['/{name[-1]}/policy_server']" for name in ('slot_a', 'slot_b')}
    router_rig.fleet.start('router_2', 'policy_router', namespace='/lab', **servers)
    other = '/lab/policy_router'
    router_rig.wait(lambda: {other, ROUTER} <= {*client.find_routers(other)}, 'both routers')
    refusal = operator.is_refused('split', '50', '--yes')
    assert f'2 routers run; add --router with one of {other}, {ROUTER}' in refusal
    assert '80 % -> 50 %' in operator.does('split', '50', '--router', 'policy_router')


def check_frozen(operator: Operator, words: tuple[str, ...]) -> None:
    """A verb names the router that hangs long before its search would have ended."""
    begin_s = time.monotonic()
    text = operator.is_refused_within('60', *words, '--yes')
    assert time.monotonic() - begin_s < 30
    assert f'{ROUTER} answered until' in text and 'Nothing was changed' in text
    assert '`lerobot-serve robot --all pause`' in text


@pytest.mark.slow
def test_an_emergency_verb_names_the_router_that_hangs_and_what_to_do(router_rig, operator):
    two_slots(router_rig, 'a1')
    operator.reads('rollout', 'status')
    router_rig.hang('router')
    try:
        for words in (('rollout', 'abort', '--now'), ('rollout', 'stop'), ('drain', 'a', '--now')):
            check_frozen(operator, words)
    finally:
        router_rig.go_on('router')
    router_rig.wait_for_health('healthy')
    operator.reads('rollout', 'status')
