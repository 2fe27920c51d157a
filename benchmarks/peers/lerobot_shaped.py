# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's remote inference, imitated: each an own process.

    python -m benchmarks.peers.lerobot_shaped server HOST PORT
    python -m benchmarks.peers.lerobot_shaped client HOST PORT SOCKET

Its package with this server is in no release for this Python, so this is its wire and its threads
written anew, without its checks of a schema: MessagePack maps of typed tensors and pictures over
Zenoh without shared memory. The server's main thread looks for requests and for finished replies
each 2 ms, a worker runs the policy; the client reads the envelope of a reply before the whole.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from queue import Empty, Queue
import threading
import time
from typing import Any

import msgpack
import numpy as np

from benchmarks.peers.peer_process import (
    Address,
    CAMERA_PREFIX,
    CHUNK_ROWS,
    Frames,
    JOINTS,
    LOST,
    run,
    single_robot,
    Trip,
)
from benchmarks.peers.zenoh_end import endpoint, ZenohEnd
from lerobot_serve.zenoh.settings import common_configuration

PACKAGES = ('eclipse-zenoh', 'msgpack')
TYPE = '__lerobot_type__'
SESSION = 'lerobot/inference/v1/deployments/bench/instances/0/sessions/0'
OBSERVED, ACTED = f'{SESSION}/obs', f'{SESSION}/act'
STATE = 'observation.state'
PUMP_S, POLL_S, ANSWER_S = 0.002, 0.02, 5.0
# by the names of its parts
Message = dict[str, Any]


def encode(message_type: str, request_id: str, body: dict[str, Any]) -> bytes:
    """Return a message; arrays of bytes are pictures, others tensors."""
    envelope = {
        'version': 1,
        'message_type': message_type,
        'instance_id': '0',
        'session_id': '0',
        'generation': 0,
        'request_id': request_id,
        'body': encoded(body),
    }
    return msgpack.packb(envelope, use_bin_type=True)


def encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: encoded(each) for name, each in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    record = {'dtype': value.dtype.name, 'shape': list(value.shape), 'data': value.tobytes()}
    if value.dtype == np.uint8:
        return {TYPE: 'rgb', 'encoding': 'raw', 'channel_order': 'RGB', **record}
    if not np.isfinite(value).all():
        raise ValueError('a tensor is not finite')
    return {TYPE: 'tensor', 'endianness': 'little', **record}


def decode(raw: bytes) -> Message:
    """Return a message with arrays of its own."""
    envelope = unpacked(raw)
    return {**envelope, 'body': decoded(envelope['body'])}


def unpacked(raw: bytes) -> Message:
    return msgpack.unpackb(raw, strict_map_key=True, object_pairs_hook=unique)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError('a name stands twice')
    return found


def decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if TYPE not in value:
        return {name: decoded(each) for name, each in value.items()}
    array = np.frombuffer(value['data'], value['dtype']).reshape(value['shape'])
    if array.dtype != np.uint8 and not np.isfinite(array).all():
        raise ValueError('a tensor is not finite')
    return array.copy()


def configuration(**endpoints: tuple[str, ...]) -> str:
    """Return a session with LeRobot's settings; all else is Zenoh's own."""
    shared_memory = {'transport': {'shared_memory': {'enabled': False}}}
    return json.dumps(common_configuration('peer', **endpoints) | shared_memory)


def serve(address: Address) -> None:
    """Serve until a signal."""
    requests: Queue[bytes] = Queue(1)
    commands: Queue[Message] = Queue(8)
    replies: Queue[Message] = Queue()
    settings = configuration(listen=(endpoint(address),))
    end = ZenohEnd(settings, OBSERVED, ACTED, requests.put_nowait)
    threading.Thread(target=work, args=(commands, replies), daemon=True).start()
    while True:
        with contextlib.suppress(Empty):
            commands.put(decode(requests.get_nowait()))
        with contextlib.suppress(Empty):
            reply = replies.get_nowait()
            end.put(encode('action', reply['request_id'], reply['body']))
        time.sleep(PUMP_S)


def work(commands: Queue[Message], replies: Queue[Message]) -> None:
    """Run the policy, which answers at once."""
    while True:
        asked = commands.get()
        body = asked['body']
        chunk = body['features'][STATE] + np.zeros((CHUNK_ROWS, 1), np.float32)
        known = {name: body[name] for name in ('observation_id', 'task', 'task_version')}
        body = {**known, 'canonical_actions': chunk, 'execution_steps': CHUNK_ROWS}
        replies.put({'request_id': asked['request_id'], 'body': body})


def connect(address: Address) -> Trip:
    """Return what makes one trip. Raises TimeoutError when the server does not come up."""
    replies: Queue[bytes] = Queue(4)
    settings = configuration(connect=(endpoint(address),))
    end = ZenohEnd(settings, ACTED, OBSERVED, replies.put_nowait)
    end.wait_until_heard()
    numbers = itertools.count()

    def trip(pictures: Frames) -> float | str:
        request_id = str(next(numbers))
        begin_ns = time.perf_counter_ns()
        end.put(encode('observation', request_id, observation(request_id, pictures)))
        chunk = reply_to(request_id, replies)
        took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        return LOST if chunk is None or chunk.shape != (CHUNK_ROWS, JOINTS) else took_ms

    return trip


def observation(request_id: str, pictures: Frames) -> dict[str, Any]:
    """Return what a robot sends."""
    named = {CAMERA_PREFIX + name: frame for name, frame in pictures.items()}
    return {
        'observation_id': request_id,
        'capture_time': time.monotonic(),
        'task': '',
        'task_version': 0,
        'features': {**named, STATE: np.zeros(JOINTS, np.float32)},
    }


def reply_to(request_id: str, replies: Queue[bytes]) -> np.ndarray | None:
    """Return the chunk for a request, None when none came within ANSWER_S."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Empty):
            raw = replies.get(timeout=POLL_S)
            if unpacked(raw)['request_id'] == request_id:
                return decode(raw)['body']['canonical_actions']
    return None


if __name__ == '__main__':
    raise SystemExit(run(PACKAGES, serve, {'client': single_robot(connect)}))
