# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve gate` on recordings: figures, outcomes, verdicts and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.replacing import replace
from support.tools.bag_rig import write
from support.tools.replay_rig import answered, as_messages, episodes, OTHER_SHAPE, SHAPE

from lerobot_serve.contract.codec import encode as as_cdr
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import decode, encode
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.canary.gate_record import read_record
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION, OUTCOME
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.replay.in_process_server import InProcessServer

ROBOT = """
name: arm
fps: 30
state:
  - topic: joint_states
    type: sensor_msgs/JointState
    joints: [joint_0, joint_1, joint_2]
    field: position
    max_age_s: 0.1
cameras: {}
actions:
  joint_0.pos: {joint: joint_0, min: -9, max: 9, max_step: 9}
  joint_1.pos: {joint: joint_1, min: -9, max: 9, max_step: 9}
  joint_2.pos: {joint: joint_2, min: -9, max: 9, max_step: 9}
command: {topic: commands, type: std_msgs/Float64MultiArray}
"""


def outcome_message(episode_id: str, outcome: int, number: int) -> BagMessage:
    word = EpisodeOutcome.Outcome(outcome)
    raw = as_cdr(EpisodeOutcome(client_id='', episode_id=episode_id, outcome=word))
    return BagMessage('/judge/episode_outcome', OUTCOME, 10**6 + number, raw)


def without_id(raw: bytes) -> bytes:
    return wire_observation.encode(replace(wire_observation.decode(raw), episode_id=''))


@pytest.fixture
def robot(tmp_path) -> Path:
    file = tmp_path / 'robot.yaml'
    file.write_text(ROBOT)
    return file


@pytest.fixture
def gate(tmp_path, robot, capsys):
    """
    Run the verb on bags, or on a bag of messages or of requests with their replies; both policies
    are SHAPE, and the limits are those of the robot, unless it is said otherwise. Return its exit
    status and the record.
    """

    def run(recorded, *words, parent: str = SHAPE, limits: bool = True) -> tuple[int, dict]:
        if not isinstance(recorded[0], Path):
            is_pairs = not isinstance(recorded[0], BagMessage)
            messages = as_messages(recorded) if is_pairs else recorded
            recorded = [write(tmp_path / f'bag_{len(words)}', messages, every=5)]
        # the latency of a policy of microseconds is that of the machine
        given = ['--kind', 'null', '--json', '--latency-ratio', '1000', '--candidate', SHAPE]
        given += ['--parent', parent] if parent else []
        given += ['--robot', str(robot)] if limits else []
        status = main(['gate', *map(str, recorded), *given, *map(str, words)])
        out, err = capsys.readouterr()
        assert out, err
        return status, json.loads(out)

    return run


def row_of(record: dict, name: str) -> dict:
    return next(row for row in record['gates'] if row['name'] == name)


def state_of(record: dict, name: str) -> str:
    return row_of(record, name)['state']


def test_a_policy_passes_against_itself(tmp_path, gate):
    status, record = gate(answered(episodes(30)), '--records', tmp_path / 'g')
    assert (status, record['verdict'], record['episodes']) == (0, 'passed', 30)
    (path,) = (tmp_path / 'g').iterdir()
    kept = read_record(path)
    assert (kept.verdict, kept.requests, len(kept.recordings)) == ('passed', 120, 64)


def test_without_limits_of_the_robot_nothing_is_admitted(gate):
    status, record = gate(answered(episodes(30)), limits=False)
    assert (status, record['verdict']) == (3, 'refused')
    assert state_of(record, 'cage') == 'unmeasured'
    assert '--robot FILE' in record['text']


def test_replies_of_a_shadow_drive_no_robot_and_ask_nothing_twice(gate):
    """The parent drives and the candidate is its shadow; then the candidate drives alone."""
    asked = episodes(60)
    old, new = answered(asked[:120], path=OTHER_SHAPE), answered(asked)
    messages = as_messages([*old, *new[120:]])
    for number, (asked_for, reply) in enumerate(new[:120]):
        at = 10**5 + 2 * number
        messages.append(BagMessage('/rehearsal/shadow_observation', OBSERVATION, at, asked_for))
        messages.append(BagMessage('/policy_router/replies/shadow', CHUNK, at + 1, reply))
    messages += [outcome_message(f'episode_{n}', 1, n) for n in range(60)]
    _, record = gate(messages, parent=OTHER_SHAPE)
    assert (record['requests'], record['episodes']) == (240, 60)
    success = row_of(record, 'success')
    assert 'candidate 100 % of 30, parent 100 % of 30' in success['text']


@pytest.mark.parametrize(('has_ids', 'count'), [(True, 15), (False, 30)])
def test_recordings_with_the_same_names_are_all_counted(tmp_path, gate, has_ids, count):
    """An episode with an id is one in all of them; without ids each recording has its own."""
    requests = episodes(15) if has_ids else list(map(without_id, episodes(15)))
    bags = [
        write(tmp_path / name / 'bag', as_messages(answered(requests)), every=5)
        for name in ('monday', 'tuesday')
    ]
    _, record = gate(bags)
    assert (record['episodes'], record['requests']) == (count, 120)


def test_an_episode_in_two_sessions_is_one(gate):
    requests = [*episodes(30), *episodes(30, epoch=2)]
    _, record = gate(answered(requests))
    assert (record['episodes'], record['requests']) == (30, 240)


def test_the_jump_from_the_measured_position_counts(robot, gate):
    """The parent's chunks begin 1 rad from where the robot is, and are smooth in themselves."""
    robot.write_text(robot.read_text().replace('max_step: 9', 'max_step: 0.05'))
    pairs = []
    for asked, reply in answered(episodes(15)):
        chunk = decode(reply)
        moved = replace(chunk, robot=chunk.robot + 1, model=chunk.model + 1, policy='other@1')
        pairs.append((asked, encode(moved)))
    _, record = gate(pairs, parent='')
    cage = row_of(record, 'cage')
    assert 'would change 100 % of the parent' in cage['text']


@pytest.mark.parametrize('is_policy', [False, True])
def test_a_slow_request_counts_only_if_it_is_slow_again(gate, monkeypatch, is_policy):
    """A machine that does something else for a moment does not make a policy slow."""
    pairs, reply_to = answered(episodes(30)), InProcessServer.reply_to
    seen: dict[InProcessServer, set[bytes]] = {}
    slow: set[bytes] = set()

    def timed_reply(server, raw, info, **named):
        chunk = reply_to(server, raw, info, **named)
        assert chunk.status == Status.OK
        is_again = raw in seen.setdefault(server, set())
        seen[server].add(raw)
        # the first is the candidate; every tenth of its requests is slow
        is_candidate = server is next(iter(seen))
        if is_candidate and not is_again and len(seen[server]) % 10 == 1:
            slow.add(raw)
        is_slow = is_candidate and raw in slow and (is_policy or not is_again)
        return replace(chunk, inference_ms=400.0 if is_slow else 1.0)

    monkeypatch.setattr(InProcessServer, 'reply_to', timed_reply)
    _, record = gate(pairs, '--latency-ratio', 1.5)
    assert state_of(record, 'latency') == ('failed' if is_policy else 'passed')
    assert row_of(record, 'latency')['value'] == (80.0 if is_policy else 0.2)


def test_a_person_overrides_performance_with_a_reason(gate):
    pairs, strict = answered(episodes(30)), ('--similarity', 1.0, '--latency-ratio', 0.0)
    status, record = gate(pairs, *strict)
    assert (status, record['verdict']) == (3, 'held')
    status, record = gate(pairs, *strict, '--override', 'latency', '--reason', 'a slow day')
    assert (status, record['verdict']) == (0, 'overridden')
    ((name, reason, by),) = record['overrides']
    assert (name, reason) == ('latency', 'a slow day')
    assert '@' in by


@pytest.mark.parametrize(
    ('words', 'status', 'said'),
    [
        (('--override', 'cage', '--reason', 'x'), 2, 'safety gate and cannot be overridden'),
        (('--override', 'memories', '--reason', 'x'), 2, 'the performance gates are success'),
        (('--override', 'memory'), 2, '--override needs --reason'),
        (('--similarity', '7'), 2, '--similarity must be in [0, 1]'),
        (('--cage-percent', '100'), 2, 'may only be stricter than 2, got 100'),
        (('--parent', 'joints=4,chunk=5,cameras=,fps=30'), 2, 'cannot replace each other'),
        (('--robot', 'nowhere.yaml', '--parent', SHAPE), 1, 'nowhere.yaml'),
        ((), 1, 'name its parent: --parent DIR'),
    ],
)
def test_what_is_not_possible_says_what_is(tmp_path, capsys, words, status, said):
    bag = write(tmp_path / 'bag', as_messages(answered(episodes(2))), every=5)
    found = main(['gate', str(bag), '--kind', 'null', '--candidate', SHAPE, *words])
    err = capsys.readouterr().err
    assert said in err
    assert 'Traceback' not in err
    assert found == status
