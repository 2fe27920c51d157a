# SPDX-License-Identifier: Apache-2.0
"""Policies behind the servers of others, over real sockets: replies and failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import threading

import numpy as np
import pytest
from support.policies.remote_peers import CONTRACTS, Exploit, Peer, PEERS, WITH_METADATA
from support.waiting import wait_until
import yaml

from benchmarks.harness.peer_classes import features
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest
from lerobot_serve.policies.remote.peer import (
    BadReply,
    PeerChanged,
    PeerError,
    PeerRefused,
    PeerTimeout,
    PeerUnavailable,
)
from lerobot_serve.policies.remote.policy import RemotePolicy

QUICK = {'predict_timeout_s': 0.3}
IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
EXPECTED = [[1 + i, 2 + i, 3 - i] for i in range(4)]


@pytest.fixture(params=PEERS)
def kind(request) -> str:
    if request.param == 'lerobot_async':
        pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    return request.param


class Rig:
    """A server in a thread, and the policy behind it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.peer: Peer = PEERS[kind]()
        self.policies: list[RemotePolicy] = []

    def load(
        self, changes: dict[str, object] | None = None, *, url: str = '', **options: object
    ) -> RemotePolicy:
        file = self.folder / 'contract.yaml'
        file.write_text(yaml.safe_dump(yaml.safe_load(CONTRACTS[self.kind]) | (changes or {})))
        path = f'{file},url={url or self.peer.url}'
        policy = registry.load(self.kind, LoadOptions(path, **options))
        self.policies.append(policy)
        return policy

    def end(self) -> None:
        for policy in self.policies:
            policy.close()
        self.peer.stop()


@pytest.fixture
def rig(kind, tmp_path) -> Iterator[Rig]:
    rig = Rig(kind, tmp_path)
    rig.peer.start()
    yield rig
    rig.end()


def asked(*state: float, task: str = 'lift the cube') -> PolicyRequest:
    values = np.array([state or (1, 2, 3)], np.float32)
    return PolicyRequest('robot', values, {'front': (IMAGE,)}, task=task, episode=7)


def chunk(policy: RemotePolicy) -> list:
    (prediction,) = policy.predict([asked()])
    return prediction.robot.tolist()


def test_state_images_and_actions_reach_their_names(rig):
    policy = rig.load()
    (prediction,) = policy.predict([asked(1, 2, 3)])
    assert prediction.robot.tolist() == EXPECTED
    assert prediction.robot.dtype == np.float32
    assert prediction.forward_ms == (7.5 if rig.kind == 'openpi' else None)
    (received,) = rig.peer.requests
    if rig.kind == 'groot':
        assert np.array_equal(received['video']['front_view'], IMAGE[None, None])
        assert received['state']['arm'].shape == (1, 1, 2)
        assert received['state']['arm'].dtype == np.float32
        assert received['language'] == {'annotation.task': [['lift the cube']]}
    elif rig.kind == 'lerobot_async':
        assert np.array_equal(received.observation['front'], IMAGE)
        assert received.observation['task'] == 'lift the cube' and received.must_go
        assert rig.peer.policy.pretrained_name_or_path == 'user/act'
        assert rig.peer.policy.lerobot_features == features(('a', 'b', 'c'), {'front': (4, 6, 3)})
        assert rig.peer.policy.actions_per_chunk == 4
    elif rig.kind == 'openpi':
        assert np.array_equal(received['observation']['front_view'], IMAGE)
        assert received['prompt'] == 'lift the cube'
    else:
        assert received['observation']['front_view'].startswith('/9j/')
        assert received['instruction'] == 'lift the cube'
        assert received['episode_id'] == 'robot/7'


def test_it_describes_what_the_operator_wrote(rig):
    description = rig.load().describe()
    assert description.policy_type == rig.kind
    assert description.state_names == ('a', 'b', 'c')
    assert (description.chunk_size, description.trained_fps) == (4, 20.0)
    assert description.batch_limit == 1 and not description.any_thread
    assert bool(description.notes) == (rig.kind not in WITH_METADATA)


def test_the_fingerprint_follows_metadata_and_word_but_not_the_address(rig):
    first = rig.load().describe().fingerprint
    assert first.startswith('two_hands@')
    assert rig.load({'predict_timeout_s': 9}).describe().fingerprint == first
    assert rig.load({'version': '2'}).describe().fingerprint != first
    assert rig.load(name='other').describe().fingerprint == first.replace('two_hands', 'other')
    other = PEERS[rig.kind]()
    other.start()
    try:
        assert rig.load(url=other.url).describe().fingerprint == first
        other.metadata = {**other.metadata, 'model': 'v2'}
        is_same = rig.load(url=other.url).describe().fingerprint == first
        assert is_same == (rig.kind not in WITH_METADATA)
    finally:
        other.stop()


@pytest.mark.parametrize('mode', ['nan', 'overflow'])
def test_what_is_not_finite_reaches_the_check_of_the_server(rig, mode):
    from lerobot_serve.contract.schema import Status
    from lerobot_serve.server.inference.worker import checked_prediction, InferenceFailed

    policy, rig.peer.mode = rig.load(), mode
    (prediction,) = policy.predict([asked()])
    verdict = checked_prediction(prediction, policy.describe())
    assert isinstance(verdict, InferenceFailed) and verdict.status == Status.NOT_FINITE


FAILURES = {
    'wrong_shape': (BadReply, 'must be 4 steps x [23] actions'),
    'missing': (BadReply, "no array 'hand'|must be 4 steps x 3"),
    'garbage': (BadReply, 'not|no msgpack|refused|pickle|opcode'),
    'huge': (BadReply, 'max_reply_mb'),
    'error': (PeerRefused, 'no such key'),
    'reset': (PeerUnavailable, 'server'),
}


@pytest.mark.parametrize('mode', FAILURES)
def test_a_bad_reply_is_a_typed_error_and_the_next_good_one_is_used(rig, mode):
    policy = rig.load(QUICK if mode == 'reset' and rig.kind == 'groot' else {})
    executed = Exploit.path = str(rig.folder / 'executed')
    error, text = FAILURES[mode]
    if rig.kind == 'groot' and mode == 'huge':
        # ZeroMQ ends the connection without a word
        error = PeerUnavailable
    if rig.kind == 'groot' and mode == 'reset':
        error = PeerTimeout
    rig.peer.mode = mode
    with pytest.raises(error, match=text) as refused:
        policy.predict([asked()])
    assert rig.peer.url in str(refused.value) and '\n' not in str(refused.value)
    if rig.kind == 'groot' and mode == 'reset':
        rig.peer.stop()
        rig.peer.start()
    assert not Path(executed).exists()
    rig.peer.mode = 'ok'
    wait_until(lambda: recovered(policy), 'a chunk')


@pytest.mark.parametrize('mode', ['silent', 'stale'])
def test_a_chunk_of_another_observation_or_none_is_refused(tmp_path, mode):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    rig = Rig('lerobot_async', tmp_path)
    rig.peer.start()
    try:
        policy, rig.peer.mode = rig.load(), mode
        with pytest.raises(BadReply, match=r'without actions|steps 0 to 3, the observation was 1'):
            policy.predict([asked()])
        rig.peer.mode = 'ok'
        # the server is asked to load the policy again
        wait_until(lambda: recovered(policy), 'a chunk')
        assert rig.peer.connects > 1
    finally:
        rig.end()


def recovered(policy: RemotePolicy) -> bool:
    try:
        return chunk(policy) == EXPECTED
    except PeerError:
        return False


def test_a_server_that_hangs_costs_one_timeout_and_then_nothing(rig):
    policy, rig.peer.mode = rig.load(QUICK), 'hang'
    with pytest.raises(PeerTimeout, match=r'no reply within predict_timeout_s \(0.3 s\)'):
        policy.predict([asked()])
    # the connection is given up: the next request does not wait for it
    with pytest.raises(PeerUnavailable, match='connecting again in the background'):
        policy.predict([asked()])


def test_a_server_that_was_restarted_is_connected_again_before_it_is_used(rig):
    policy, connects = rig.load(), rig.peer.connects
    assert chunk(policy) == EXPECTED
    rig.peer.stop()
    rig.peer.start()
    wait_until(lambda: recovered(policy), 'a chunk')
    assert rig.peer.connects > connects


def test_a_server_that_dies_is_missed_at_once_and_found_again(rig):
    policy = rig.load()
    rig.peer.stop()
    wait_until(lambda: not recovered(policy), 'the end of the connection')
    with pytest.raises(PeerUnavailable, match='connecting again'):
        policy.predict([asked()])
    rig.peer.start()
    wait_until(lambda: recovered(policy), 'the server is back')


@pytest.mark.parametrize('kind', WITH_METADATA)
def test_a_server_that_returns_with_another_policy_is_refused_until_the_first_is_back(rig):
    policy = rig.load()
    rig.peer.stop()
    before, rig.peer.metadata = rig.peer.metadata, {**rig.peer.metadata, 'model': 'v2'}
    rig.peer.start()
    wait_until(lambda: 'serves another policy' in error_of(policy), 'the refusal')
    rig.peer.stop()
    rig.peer.metadata = before
    rig.peer.start()
    wait_until(lambda: recovered(policy), 'the first policy is back')


def error_of(policy: RemotePolicy) -> str:
    try:
        policy.predict([asked()])
    except PolicyError as error:
        return str(error)
    return ''


@pytest.mark.parametrize('kind', WITH_METADATA)
def test_only_the_named_metadata_identify_the_policy(kind, tmp_path):
    rig = Rig(kind, tmp_path)
    rig.peer.metadata = {**rig.peer.metadata, 'model': 'v1', 'uptime_s': 1}
    rig.peer.start()
    try:
        policy = rig.load({'metadata_keys': ['model']})
        rig.peer.stop()
        rig.peer.metadata = {**rig.peer.metadata, 'uptime_s': 2}
        rig.peer.start()
        wait_until(lambda: recovered(policy), 'the server is back')
        with pytest.raises(PeerChanged, match="has no 'checkpoint'"):
            rig.load({'metadata_keys': ['checkpoint']})
    finally:
        rig.end()


def test_it_is_not_loaded_without_a_server(rig):
    rig.peer.stop()
    with pytest.raises(PeerUnavailable, match=f'{rig.kind} server {rig.peer.url}') as refused:
        rig.load()
    # at once, not only at the timeout
    assert not isinstance(refused.value, PeerTimeout)


def test_it_is_not_loaded_when_the_server_says_nothing(rig):
    rig.peer.mode = 'mute'
    with pytest.raises(PeerTimeout, match=r'no connection within connect_timeout_s \(0.3 s\)'):
        rig.load({'connect_timeout_s': 0.3})


def test_the_key_in_the_file_is_sent_and_a_wrong_one_is_refused(rig):
    rig.peer.mode = 'unauthorized'
    key = rig.folder / 'key.txt'
    key.touch(mode=0o600)
    key.write_text('wrong\n')
    with pytest.raises(PeerRefused, match=r'401|Unauthorized'):
        rig.load({'api_key_file': 'key.txt'})
    key.write_text('k\n')
    assert chunk(rig.load({'api_key_file': 'key.txt'})) == EXPECTED
    key.chmod(0o644)
    with pytest.raises(PolicyError, match='chmod 600'):
        rig.load({'api_key_file': 'key.txt'})


def test_a_closed_policy_refuses_and_leaves_no_thread(rig):
    policy = rig.load()
    assert any(thread.name == 'remote peer' for thread in threading.enumerate())
    policy.close()
    policy.close()
    with pytest.raises(PeerUnavailable, match='closed'):
        policy.predict([asked()])
    assert not any(thread.name == 'remote peer' for thread in threading.enumerate())
