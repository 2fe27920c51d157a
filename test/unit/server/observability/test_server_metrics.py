# SPDX-License-Identifier: Apache-2.0
"""The server's metrics: each family moves, and their number is bounded."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
import pytest
from support.golden import listed
from support.paths import REPOSITORY
from support.replacing import replace
from support.server.server_core_rig import request, Rig
from support.server.session_rig import RULES
from support.server.worker_rig import gives, raises, ROWS

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import Prediction
from lerobot_serve.quotas import parse_quotas
from lerobot_serve.server.messages import ServerState
from lerobot_serve.server.observability.metrics import (
    collect,
    ServerSnapshot,
    start_endpoint,
    why_not_ready,
)
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.telemetry.http_endpoint import FunctionCollector
from lerobot_serve_interfaces.msg import ServerStatus

PREFIX = 'lerobot_serve_server_'
AGREED = REPOSITORY / 'test' / 'golden' / 'metrics' / 'server.txt'
EVERYTHING = {line.split()[0].removeprefix(PREFIX) for line in AGREED.read_text().splitlines()}
OF_SOME_POLICIES = {
    'recurrent_state_hits',
    'recurrent_state_misses',
    'cache_hits',
    'cache_misses',
    'denoising_steps',
}
OF_A_POLICY = {'in_flight_requests', 'quota_refused', 'sessions', 'max_sessions', 'load_ratio'}
Families = dict[str, Metric]


def families(rig: Rig) -> Families:
    """Return what is told, by name without what they all begin with."""
    found = list(collect(rig.core, rig.statistics, 'b'))
    assert all(family.name.startswith(PREFIX) for family in found)
    named = {family.name.removeprefix(PREFIX): family for family in found}
    assert len(named) == len(found)
    return named


def values(family: Metric) -> dict[tuple, float]:
    return {(s.name.removeprefix(PREFIX), *s.labels.values()): s.value for s in family.samples}


def all_values(rig: Rig) -> dict[tuple, float]:
    return {key: value for f in families(rig).values() for key, value in values(f).items()}


def moved(before: Families, after: Families) -> set[str]:
    return {name for name in after if values(before[name]) != values(after[name])}


def remembering(asked) -> Prediction:
    """Find a hidden state unless the episode begins, or the request is of robot_2."""
    lost = asked.session_id.startswith('robot_2')
    return Prediction(ROWS, ROWS, state_lost=lost, state_found=not lost)


def exercised(**changes: object) -> tuple[Families, Families]:
    """Return the families of a server before and after everything has happened once."""
    rig = Rig(remembering, **changes)
    before = families(rig)
    for number in (1, 2):
        rig.open(number)
    for number in (1, 1, 2):
        rig.core.enqueue(request(number), time.monotonic_ns())
        rig.statistics.record_latency(0.02)
    rig.step()
    rig.step()
    rig.core.enqueue(b'', 0)
    rig.core.apply_parameters(replace(RULES, max_sessions=7))
    rig.core.enqueue(request(1), time.monotonic_ns())
    rig.core.quotas.apply(parse_quotas(['robot *: 0.001 requests/s']), 1.0)
    for _ in range(2):
        rig.core.enqueue(request(1), time.monotonic_ns())
    rig.statistics.record_swap('done')
    rig.statistics.record_cache(hits=2, misses=1)
    rig.statistics.record_batch_start(time.monotonic_ns() - 10**9)
    return before, families(rig)


def test_every_family_moves():
    before, after = exercised(
        state_class=StateClass.RECURRENT, denoise_steps=10, embedding_cache_bytes=1
    )
    assert set(after) == EVERYTHING
    assert moved(before, after) == EVERYTHING


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(golden):
    _, after = exercised(
        state_class=StateClass.RECURRENT, denoise_steps=10, embedding_cache_bytes=1
    )
    golden.holds('metrics/server.txt', listed(after.values()))


def test_a_policy_has_no_family_that_it_could_not_move():
    before, after = exercised()
    assert set(after) == EVERYTHING - OF_SOME_POLICIES
    assert moved(before, after) == set(after)


def test_a_server_without_a_policy_tells_what_it_counted():
    found = {f.name.removeprefix(PREFIX) for f in collect(None, ServerStatistics(), 'prod')}
    assert found == EVERYTHING - OF_SOME_POLICIES - OF_A_POLICY


def test_what_the_trace_lost_is_a_drop_too():
    found = collect(None, ServerStatistics(), 'prod', {'trace_overflow': 2})
    (drops,) = (family for family in found if family.name == f'{PREFIX}dropped')
    (sample,) = drops.samples
    assert (sample.labels['reason'], sample.value) == ('trace_overflow', 2)


def test_the_values_are_those_that_were_counted():
    rig = Rig(remembering, state_class=StateClass.RECURRENT, denoise_steps=10)
    for number in (1, 2):
        rig.open(number)
    for number in (1, 1, 2):
        rig.core.enqueue(request(number), 0)
    assert all_values(rig)['in_flight_requests', 'b'] == 2
    rig.step()
    rig.step()
    rig.statistics.record_latency(0.02)
    told = all_values(rig)
    assert told['requests_total', 'b'] == 3
    assert told['chunks_total', 'b'] == 2
    assert told['requests_superseded_total', 'b'] == 1
    assert (
        told['recurrent_state_hits_total', 'b'],
        told['recurrent_state_misses_total', 'b'],
    ) == (1, 1)
    assert told['denoising_steps_total', 'b'] == 20
    assert told['dropped_total', 'b', 'state_lost'] == 1
    assert told['in_flight_requests', 'b'] == 0
    assert (told['sessions', 'b'], told['max_sessions', 'b']) == (2, 100)
    assert told['reply_latency_seconds_count', 'b'] == 1
    assert told['reply_latency_seconds_sum', 'b'] == 0.02
    assert told['reply_latency_seconds_bucket', 'b', '0.01'] == 0
    assert told['reply_latency_seconds_bucket', 'b', '0.025'] == 1
    assert told['inference_seconds_sum', 'b'] == pytest.approx(0.002)
    assert (told['batch_size_count', 'b'], told['batch_size_sum', 'b']) == (2, 2)


def test_images_are_counted_by_what_the_cache_of_the_policy_had():
    rig = Rig(embedding_cache_bytes=1)
    rig.statistics.record_swap('done')
    rig.statistics.record_cache(hits=2, misses=1)
    rig.statistics.record_cache(hits=1, misses=0)
    told = all_values(rig)
    assert (told['cache_hits_total', 'b'], told['cache_misses_total', 'b']) == (3, 1)


def test_a_batch_counts_as_one_pass_and_by_its_size():
    rig = Rig()
    batching = {'scheduler': 'dynamic_batching', 'max_batch_delay_ms': 0.0}
    rig.core.apply_parameters(replace(RULES, max_sessions=100, **batching))
    for number in range(3):
        rig.open(number)
        rig.core.enqueue(request(number), 0)
    rig.step()
    told = all_values(rig)
    assert (told['batch_size_count', 'b'], told['batch_size_sum', 'b']) == (1, 3)
    assert told['batch_size_bucket', 'b', '2.0'] == 0
    assert told['batch_size_bucket', 'b', '4.0'] == 1
    assert told['inference_seconds_count', 'b'] == 3


def test_what_fails_is_a_drop_and_no_chunk():
    rig = Rig(raises(ValueError()))
    rig.open()
    rig.core.enqueue(request(), 0)
    rig.step()
    told = all_values(rig)
    assert told['dropped_total', 'b', 'policy_error'] == 1
    assert told['chunks_total', 'b'] == told['inference_seconds_count', 'b'] == 0


def test_robots_and_episodes_make_no_series():
    rig = Rig(gives(ROWS))
    for number in range(3):
        rig.open(number)
        rig.core.enqueue(request(number), 0)
        rig.step()
    few = set(all_values(rig))
    for number in range(3, 60):
        rig.open(number)
        rig.core.enqueue(request(number, episode=number), 0)
        rig.step()
    assert set(all_values(rig)) == few


def test_prometheus_can_read_it():
    rig, registry = Rig(), CollectorRegistry()
    registry.register(FunctionCollector(lambda: collect(rig.core, rig.statistics, 'prod')))
    page = generate_latest(registry).decode()
    assert 'lerobot_serve_server_requests_total{slot="prod"} 0.0' in page


def test_ready_is_active_with_a_policy():
    core = Rig().core
    active = ServerState(ServerStatus.ACTIVE)
    assert why_not_ready(ServerSnapshot(core, active)) == ''
    assert why_not_ready(ServerSnapshot(None, active)) == 'not active: '
    for state in (ServerStatus.INACTIVE, ServerStatus.DRAINING, ServerStatus.FAILED):
        assert why_not_ready(ServerSnapshot(core, ServerState(state, 'why'))) == 'not active: why'


def test_no_endpoint_unless_it_is_wanted():
    assert (
        start_endpoint(
            ServerParameters(), ServerStatistics(), lambda: pytest.fail('asked'), dict, str
        )
        is None
    )
