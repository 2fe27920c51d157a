# SPDX-License-Identifier: Apache-2.0
"""The bytes of one observation in each protocol of a gateway, in the names of the policy. Pure."""

from __future__ import annotations

import base64
import json
import time

import numpy as np
import simplejpeg

from benchmarks.harness import peer_classes
from benchmarks.peers.peer_process import (
    CAMERA_PREFIX,
    CHUNK_ROWS,
    Frames,
    JOINT_NAMES,
    JOINTS,
    JPEG_QUALITY,
)
from lerobot_serve.contract.services.policy_service import Image, Observation
from lerobot_serve.peer_formats.msgpack_arrays import pack_groot, pack_openpi
from lerobot_serve.peer_formats.safe_pickle import write_observation, write_policy_config

# the length is in the byte, in 2 bytes after it, or in 8
MASKED, BINARY, SHORT, MEDIUM = 0x80, 0x82, 126, 1 << 16
NO_MASK = bytes(4)
UPGRADE = (
    b'GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
    b'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n'
)


def openpi(image: Frames) -> bytes:
    pictures = {CAMERA_PREFIX + name: frame for name, frame in image.items()}
    return pack_openpi({**pictures, **dict.fromkeys(JOINT_NAMES, 0.0), 'prompt': ''})


def websocket_frame(payload: bytes) -> bytes:
    """Return a frame of a client, with a mask that changes nothing."""
    size = len(payload)
    if size < SHORT:
        length = bytes((MASKED | size,))
    elif size < MEDIUM:
        length = bytes((MASKED | SHORT,)) + size.to_bytes(2, 'big')
    else:
        length = bytes((MASKED | SHORT + 1,)) + size.to_bytes(8, 'big')
    return bytes((BINARY,)) + length + NO_MASK + payload


def jpeg_text(frame: np.ndarray) -> str:
    """Return a picture as JSON has it, compressed."""
    data = simplejpeg.encode_jpeg(frame, quality=JPEG_QUALITY, colorspace='RGB')
    return base64.b64encode(data).decode()


def http(image: Frames, client_id: str) -> bytes:
    """Return a whole request, with pictures as JPEG; clients with one id would be one caller."""
    images = {CAMERA_PREFIX + name: jpeg_text(frame) for name, frame in image.items()}
    content = {'episode_id': 'bench', 'state': [0.0] * JOINTS, 'images': images}
    body = json.dumps({'client_id': client_id, **content}).encode()
    head = (
        'POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n'
        f'Content-Length: {len(body)}\r\n\r\n'
    )
    return head.encode() + body


def groot(image: Frames) -> bytes:
    observation = {
        'video': {name: frame[None, None] for name, frame in image.items()},
        'state': {name: np.zeros((1, 1, 1), np.float32) for name in JOINT_NAMES},
        'language': {'task': [['']]},
    }
    return pack_groot({'endpoint': 'get_action', 'data': {'observation': observation}})


def policy_service(image: Frames) -> bytes:
    images = [
        Image(name=name, data=frame.tobytes(), height=frame.shape[0], width=frame.shape[1])
        for name, frame in image.items()
    ]
    observation = Observation(features=[0.0] * JOINTS, images=images)
    return bytes(observation.SerializeToString())


def policy_config(image: Frames) -> bytes:
    """Return the pickle of a RemotePolicyConfig."""
    cameras = {name: frame.shape for name, frame in image.items()}
    return write_policy_config(
        {
            'policy_type': 'act',
            'pretrained_name_or_path': 'bench',
            'lerobot_features': peer_classes.features(JOINT_NAMES, cameras),
            'actions_per_chunk': CHUNK_ROWS,
            'device': 'cpu',
            'rename_map': {},
        }
    )


def lerobot(image: Frames, timestep: int) -> bytes:
    """Return the pickle of a TimedObservation."""
    raw = {**dict.fromkeys(JOINT_NAMES, 0.0), **image, 'task': ''}
    return write_observation(raw, timestamp=time.time(), timestep=timestep, must_go=True)
