# SPDX-License-Identifier: Apache-2.0
"""A policy is replaced under open sessions, or the served one continues."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytest
from support.replacing import replace
from support.server.fake_policy import FakePolicy
from support.server.server_core_rig import ask, request
from support.server.swap_rig import NEW, OLD, SwapRig
from support.server.worker_rig import gives, HEADER, OBSERVATION, PREFIX, raises

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.schema import Flag, StateClass
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.runtime import memory, memory_reservation
from lerobot_serve.policies.runtime.loading_beside import (
    another_thread_loads,
    at_serving_priority,
    is_beside,
)
from lerobot_serve.policies.runtime.memory import MB, MemoryCapacity, NotEnoughMemory
from lerobot_serve.policies.runtime.memory_reservation import ReservationStore
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.messages import SwapState
from lerobot_serve.server.policy_swap import SwapRefused

CHANGED = Flag.POLICY_CHANGED


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Gives a rig whose inference thread runs; `served` are fields of the served policy."""
    rigs: list[SwapRig] = []

    def prepare(new: FakePolicy | None = None, **served: object) -> SwapRig:
        rig = SwapRig(tmp_path, **served)
        monkeypatch.setattr(registry, 'load', rig.load)
        rig.add('new', new or FakePolicy(fingerprint=NEW, **served))
        rigs.append(rig.__enter__())
        return rig

    yield prepare
    for rig in rigs:
        rig.__exit__()


@pytest.fixture
def closed(monkeypatch) -> list[str]:
    """The fingerprints of policies whose worker was closed, which grows."""
    noted, close = [], InferenceWorker.close

    def note_and_close(worker: InferenceWorker) -> None:
        noted.append(worker.description.fingerprint)
        close(worker)

    monkeypatch.setattr(InferenceWorker, 'close', note_and_close)
    return noted


def flags(chunk) -> int:
    return chunk.header.flags


def test_the_next_chunk_of_each_session_is_of_the_new_policy_and_says_so_once(make):
    rig = make()
    first, second = rig.served.open(1), rig.served.open(2)
    assert [flags(rig.ask(3, 1)), flags(rig.ask(3, 2))] == [Flag.NONE, Flag.NONE]
    assert rig.run() == (SwapState.DONE, f'{NEW} has replaced {OLD}')
    assert list(rig.core.sessions) == [first, second]
    chunks = [rig.ask(seq, number) for number in (1, 2) for seq in (4, 5, 6)]
    assert {chunk.policy for chunk in chunks} == {NEW}
    assert [flags(chunk) for chunk in chunks] == [CHANGED, 0, 0, CHANGED, 0, 0]
    assert rig.policies['new'].calls[-1].session_id == second.session_id


def test_who_comes_later_knows_the_new_policy_and_is_told_nothing(make):
    rig = make()
    rig.run()
    rig.served.open()
    chunk = rig.ask()
    assert (chunk.policy, flags(chunk)) == (NEW, Flag.NONE)


def test_all_that_tells_of_the_policy_tells_of_the_new_one(make):
    rig = make()
    rig.run()
    assert rig.statuses == [
        (SwapState.LOADING, OLD),
        (SwapState.LOADING, NEW),
        (SwapState.DONE, NEW),
    ]
    assert rig.folders == [rig.root / 'new']
    assert rig.observer.heard == [(OLD, NEW)]
    assert rig.served.statistics.swaps == {'done': 1}
    assert rig.core.description is rig.core.worker.description


def test_the_policy_is_told_before_its_first_chunk_leaves(make):
    """A status that comes after a chunk would let a router take the chunk for a mistake."""
    rig = make()
    rig.served.open()
    process, order = InferenceWorker.process, []

    def noted(worker, batch):
        order.append(('chunk', worker.description.fingerprint))
        return process(worker, batch)

    rig.on_swap_status = lambda: order.append(('status', rig.core.description.fingerprint))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InferenceWorker, 'process', noted)
        rig.run()
        rig.ask()
    assert order.index(('status', NEW)) < order.index(('chunk', NEW))


def test_no_error_after_the_switch_ends_the_new_policy(make, closed):
    rig = make()
    rig.served.open()

    def fail(*_: object) -> None:
        raise RuntimeError('the context is invalid')

    rig.on_swap_status = rig.on_swapped = fail
    assert rig.run() == (SwapState.DONE, f'{NEW} has replaced {OLD}')
    assert closed == [OLD]
    assert rig.ask().policy == NEW
    logged = ' '.join(rig.logged)
    assert 'status of the swap was not published: RuntimeError: the context is inv' in logged
    assert 'a report of the swap failed' in logged


def test_a_prefix_of_the_old_policy_is_not_used(make):
    rig = make(supports_rtc=True)
    rig.served.open(wants_rtc=True)
    rig.ask()
    rig.run()

    def ask_with(policy: str, seq: int):
        observation = replace(
            OBSERVATION,
            header=replace(HEADER, seq=seq),
            prefix_model=PREFIX,
            prefix_robot=PREFIX,
            prefix_policy=policy,
        )
        return rig.ask_raw(wire_observation.encode(observation))

    calls = rig.policies['new'].calls
    assert flags(ask_with(OLD, 4)) == CHANGED | Flag.PREFIX_IGNORED
    assert calls[-1].prefix_model.size == 0
    assert flags(ask_with(OLD, 5)) == Flag.PREFIX_IGNORED
    assert flags(ask_with(NEW, 6)) == Flag.NONE
    assert calls[-1].prefix_model.size


def test_a_request_that_waits_meanwhile_is_answered_by_the_new_policy(make):
    """The prefix is judged when the policy runs, not when the request came."""
    rig = make(supports_rtc=True)
    rig.served.open(wants_rtc=True)
    began, go_on = threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        assert go_on.wait(30)

    def load() -> FakePolicy:
        rig.served.request_queue.submit_job(block)
        assert began.wait(30)
        observation = replace(
            OBSERVATION, prefix_model=PREFIX, prefix_robot=PREFIX, prefix_policy=OLD
        )
        assert rig.core.enqueue(wire_observation.encode(observation), 0) is None
        return FakePolicy(fingerprint=NEW, supports_rtc=True)

    rig.policies['new'] = load
    swapping = threading.Thread(target=rig.swap.begin, args=('new',))
    swapping.start()
    assert began.wait(30)
    queue = rig.served.request_queue
    while not queue._jobs:
        assert swapping.is_alive()
        threading.Event().wait(0.001)
    go_on.set()
    swapping.join(30)
    chunk = rig.chunks.get(timeout=30)
    assert (chunk.policy, flags(chunk)) == (NEW, CHANGED | Flag.PREFIX_IGNORED)


def test_an_error_is_no_news_of_the_policy(make):
    answers = [raises(RuntimeError('once')), FakePolicy().stay]
    rig = make(FakePolicy(lambda asked: answers[0](asked), fingerprint=NEW))
    answers.reverse()
    rig.served.open()
    rig.run()
    answers.reverse()
    assert (flags(rig.ask(3)), rig.served.drops['policy_error']) == (Flag.NONE, 1)
    answers.reverse()
    assert [flags(rig.ask(seq)) for seq in (4, 5)] == [CHANGED, Flag.NONE]


def test_swapping_back_is_told_too(make):
    rig = make()
    rig.served.open()
    rig.add('old', FakePolicy(fingerprint=OLD))
    assert rig.run('new')[0] is SwapState.DONE
    assert flags(rig.ask(4)) == CHANGED
    assert rig.run('old')[0] is SwapState.DONE
    chunk = rig.ask(5)
    assert (chunk.policy, flags(chunk)) == (OLD, CHANGED)
    # twice between two chunks: for the client nothing has changed
    rig.run('new')
    rig.run('old')
    assert flags(rig.ask(6)) == Flag.NONE


def test_the_hidden_state_ends_with_its_policy(make):
    pytest.importorskip('lerobot_serve.policies.synthetic.recurrent')
    from lerobot_serve.policies.synthetic.recurrent import RecurrentPolicy

    rig = make(state_class=StateClass.RECURRENT)
    rig.policies['new'] = RecurrentPolicy(rig.policies['new'].describe(), 10)
    rig.policies['new'] = (lambda policy: lambda: policy)(rig.policies['new'])
    rig.served.open()
    rig.ask(3)
    rig.run()
    continued = replace(HEADER, seq=4, flags=Flag.NONE)
    raw = wire_observation.encode(replace(OBSERVATION, header=continued))
    assert flags(rig.ask_raw(raw)) == CHANGED | Flag.STATE_LOST
    assert rig.served.drops['state_lost'] == 1


def test_the_old_policy_is_freed_and_what_it_held_is_released(make):
    rig = make()
    released = []
    old = weakref.ref(rig.served.policy)
    rig.core.worker._on_close = lambda: released.append(threading.current_thread().name)
    rig.served.policy = rig.served.worker = None
    rig.run()
    assert old() is None
    assert len(released) == 1
    assert released[0] != threading.current_thread().name


def test_the_statistics_begin_with_the_new_policy_at_the_switch(make):
    rig = make()
    rig.served.open()
    rig.ask()
    assert rig.served.statistics.percentile_ms('inference', 50) > 0
    rig.run()
    assert rig.served.statistics.percentile_ms('inference', 50) == 0
    assert rig.served.statistics.chunks == 1


# it fails


def fail(error: Exception):
    def load():
        raise error

    return load


FAILURES = {
    'loader': (fail(PolicyError('no such file; copy it')), 'no such file; copy it'),
    'other package': (fail(RuntimeError('a bug')), 'a bug'),
    'contract': (FakePolicy(fingerprint=NEW, chunk_size=99), 'chunk size'),
    'not finite': (
        FakePolicy(gives(np.full((4, 3), np.nan, np.float32)), fingerprint=NEW),
        'fails on an empty observation',
    ),
    'memory': (fail(NotEnoughMemory('it needs 9 MB')), 'it needs 9 MB; or load it replica by rep'),
    'long name': (FakePolicy(fingerprint='x' * 300), 'is over 256 bytes'),
}


@pytest.mark.parametrize('name', FAILURES)
def test_when_it_cannot_be_served_the_old_one_goes_on(make, name, closed):
    policy, text = FAILURES[name]
    rig = make(policy)
    rig.served.open()
    state, text_of_state = rig.run()
    assert state is SwapState.FAILED
    assert text_of_state.startswith(f'{OLD} continues: ')
    assert text in text_of_state
    chunk = rig.ask()
    assert (chunk.policy, flags(chunk)) == (OLD, Flag.NONE)
    assert rig.served.statistics.swaps == {'failed': 1}
    assert rig.observer.heard[0][0] == 'failed'
    assert rig.folders == []
    # what was loaded is closed, what is served is not
    assert OLD not in closed
    # and it may be tried again
    rig.policies['new'] = FakePolicy(fingerprint=NEW)
    assert rig.run()[0] is SwapState.DONE


def test_memory_is_reserved_beside_that_of_the_served_policy(make, monkeypatch):
    rig = make()
    rig.served.open()
    asked = []

    def reserve(options, **_):
        asked.append(options)
        raise NotEnoughMemory('9 MB are missing')

    monkeypatch.setattr(memory_reservation, 'reserve', reserve)
    state, text = rig.run()
    assert state is SwapState.FAILED
    assert 'replica by replica' in text
    assert asked[0].path == str(rig.root / 'new')
    assert rig.policies['new'].calls == []


@pytest.mark.parametrize(('size_mb', 'fits'), [(30, True), (40, False)])
def test_both_policies_count_for_the_share_of_the_memory(
    make, monkeypatch, tmp_path, size_mb, fits
):
    """Of 100 MB seven tenths may be declared; 40 and 30 fit, 40 and 40 do not."""
    runtime = tmp_path / 'runtime'
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(runtime))
    room = MemoryCapacity('this machine', 100 * MB, 100 * MB)
    monkeypatch.setattr(memory, 'host_memory', lambda: room)
    rig = make()
    rig.parameters = replace(rig.parameters, memory_margin_mb=0)
    for name, declared_mb in (('old', 40), ('new', size_mb)):
        (rig.root / name).mkdir(exist_ok=True)
        with (rig.root / name / 'program.onnx').open('wb') as file:
            file.truncate(declared_mb * MB)
    served = memory_reservation.reserve(LoadOptions(str(rig.root / 'old')))
    served.on_loaded()
    rig.core.worker._on_close = served.release
    state, text = rig.run()
    assert (state is SwapState.DONE) == fits
    if not fits:
        assert 'declares 40 MB and the policies' in text
        assert 'or load it replica by replica' in text
    # what is declared at the end is that of the served policy
    (held,) = ReservationStore(memory_reservation.HOST).entries()
    assert held.what == str(rig.root / ('new' if fits else 'old'))


def test_the_policy_that_is_served_is_no_change(make):
    rig = make(FakePolicy(fingerprint=OLD))
    rig.served.open()
    assert rig.run() == (SwapState.DONE, f'{OLD} is served already; nothing was changed')
    assert flags(rig.ask()) == Flag.NONE
    assert rig.core.worker is rig.served.worker
    assert rig.folders == []


def test_a_session_that_requires_the_old_policy_keeps_it(make):
    rig = make(FakePolicy(fingerprint='other@2'))
    rig.served.open(1, policy=OLD)
    rig.served.open(2, policy='pick')
    rig.served.open(3)
    state, text = rig.run()
    assert state is SwapState.FAILED
    assert 'robot_1, robot_2 required pick@1' in text
    assert rig.policies['new'].calls == []


def test_a_session_that_requires_it_and_comes_while_it_is_warmed_up_keeps_it_too(make):
    def predict(asked):
        if asked.session_id == 'warm-up' and not len(rig.core.sessions):
            rig.served.open(policy=OLD)
        return FakePolicy().stay(asked)

    rig = make(FakePolicy(predict, fingerprint=NEW))
    state, text = rig.run()
    assert (state, 'robot_1 required pick@1' in text) == (SwapState.FAILED, True)
    assert rig.ask().policy == OLD


def test_after_the_switch_who_requires_the_old_policy_is_refused(make):
    rig = make()
    rig.run()
    with pytest.raises(SessionRefused, match='policy mismatch'):
        rig.served.open(policy=OLD)
    assert rig.core.open(ask(policy=NEW), 0)[0]


@pytest.mark.parametrize('gone', [False, True])
def test_a_server_that_stops_to_serve_meanwhile_swaps_nothing(make, gone, closed):
    def predict(asked):
        rig.inactive_reason = 'draining: the server is draining'
        if gone:
            rig.core = None
        return FakePolicy().stay(asked)

    rig = make(FakePolicy(predict, fingerprint=NEW))
    core = rig.core
    rig.on_swap_status = lambda: None
    assert rig.run()[0] is SwapState.FAILED
    # what was loaded in vain holds nothing any more
    assert closed == [NEW]
    assert 'has stopped to serve meanwhile (draining' in rig.swap.status.text
    rig.core = core
    assert core.description.fingerprint == OLD


def test_a_server_that_shuts_down_swaps_nothing(make):
    def predict(asked):
        rig.served.request_queue.close()
        return FakePolicy().stay(asked)

    rig = make(FakePolicy(predict, fingerprint=NEW))
    state, text = rig.run()
    assert (state, 'shutting down' in text) == (SwapState.FAILED, True)
    assert rig.core.description.fingerprint == OLD


# it is not begun


def test_only_a_server_that_serves_can_swap(make):
    rig = make()
    rig.inactive_reason = 'inactive: activate the node'
    with pytest.raises(SwapRefused, match=r'does not serve \(inactive: activate the node\)'):
        rig.swap.begin('new')
    assert rig.swap.status.state is SwapState.NONE
    assert rig.statuses == []


def test_one_swap_at_a_time(make):
    refused = []

    def predict(asked):
        try:
            rig.swap.begin('new')
        except SwapRefused as error:
            refused.append(str(error))
        return FakePolicy().stay(asked)

    rig = make(FakePolicy(predict, fingerprint=NEW))
    assert rig.run()[0] is SwapState.DONE
    assert 'beside pick@1; wait until ServerStatus.swap says how it ends' in refused[0]


def test_without_a_root_nothing_is_loaded(make):
    rig = make()
    rig.parameters = replace(rig.parameters, policy_root='')
    with pytest.raises(SwapRefused, match='policy_root is empty'):
        rig.swap.begin('new')


def test_a_policy_that_is_configured_forgets_the_last_swap(make):
    rig = make()
    rig.run()
    rig.swap.reset()
    assert rig.swap.status.state is SwapState.NONE


def test_loading_gives_way_to_serving_and_leaves_the_interpreter_as_it_was(make):
    before_s, during_s = sys.getswitchinterval(), []

    def predict(asked):
        during_s.append(sys.getswitchinterval())
        return FakePolicy().stay(asked)

    rig = make(FakePolicy(predict, fingerprint=NEW))
    rig.swap._start_thread = lambda name, target: run_in_thread(target)
    rig.run()
    assert during_s[0] < before_s
    assert sys.getswitchinterval() == before_s


def test_threads_that_stay_with_the_new_policy_keep_the_priority_of_serving(make):
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def load() -> FakePolicy:
        loading.append(niceness())
        staying.append(at_serving_priority(niceness))
        # the threads of the served policy are no matter of the swap
        serving.append(rig.served.request_queue.run_job(lambda: at_serving_priority(niceness)))
        return FakePolicy(fingerprint=NEW)

    loading, staying, serving = [], [], []
    rig = make()
    rig.policies['new'] = load
    rig.swap._start_thread = lambda name, target: run_in_thread(target)
    assert rig.run()[0] is SwapState.DONE
    assert staying == serving == [niceness()]
    assert loading == [max(10, niceness())]


def test_served_requests_are_known_to_run_beside_a_load(make):
    seen = []

    def load() -> FakePolicy:
        there = rig.served.request_queue.run_job(another_thread_loads)
        seen.append((another_thread_loads(), is_beside(), there))
        return FakePolicy(fingerprint=NEW)

    rig = make()
    rig.policies['new'] = load
    rig.run()
    assert seen == [(False, True, True)]
    assert not another_thread_loads() and not is_beside()


def run_in_thread(target) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join(30)


# the thread that receives a request


def test_a_request_is_not_served_where_it_arrives_once_the_policy_wants_its_own_thread(make):
    rig = make(FakePolicy(fingerprint=NEW, any_thread=False), any_thread=True)
    rig.served.open()
    queue = rig.served.request_queue
    take = queue.take_if_idle

    def take_after_a_swap(queued):
        # the switch comes between the question whether the policy is quick and the answer
        queue.take_if_idle = take
        rig.run()
        wait_until_idle(queue)
        return take(queued)

    wait_until_idle(queue)
    queue.take_if_idle = take_after_a_swap
    arrival = rig.core.enqueue(request(1), 0, may_serve=True)
    if arrival:
        # the inference thread would wait for it
        queue.give_back()
    assert arrival is None
    assert rig.chunks.get(timeout=30).policy == NEW


def wait_until_idle(queue) -> None:
    assert queue.wait_until_idle(30)


def test_garbage_of_a_refused_policy_is_freed(make):
    rig = make()
    rig.policies['new'] = lambda: FakePolicy(fingerprint=NEW, chunk_size=99)
    made = []
    load = rig.policies['new']
    rig.policies['new'] = lambda: made.append(weakref.ref(policy := load())) or policy
    rig.run()
    gc.collect()
    assert made[0]() is None
