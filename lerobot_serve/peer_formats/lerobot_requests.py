# SPDX-License-Identifier: Apache-2.0
"""
Write what LeRobot's AsyncInference server reads: the pickles of a policy config and of an
observation. No LeRobot or torch. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lerobot_serve.peer_formats.safe_pickle import writer
from lerobot_serve.peer_formats.safe_pickle.messages import MODULE

NEW_OBJECT = b'\x81'


def policy_config_pickle(fields: Mapping[str, Any]) -> bytes:
    """Return the pickle of a RemotePolicyConfig."""
    return _pickle(_record('RemotePolicyConfig', fields))


def observation_pickle(
    values: Mapping[str, Any], *, timestamp: float, timestep: int, must_go: bool
) -> bytes:
    """Return the pickle of a TimedObservation; images are arrays of uint8."""
    fields = {
        'timestamp': timestamp,
        'timestep': timestep,
        'observation': values,
        'must_go': must_go,
    }
    return _pickle(_record('TimedObservation', fields))


def _pickle(value: bytes) -> bytes:
    return b'\x80\x04' + value + b'.'


def _record(name: str, fields: Mapping[str, Any]) -> bytes:
    made = writer.name(MODULE, name) + writer.EMPTY_TUPLE + NEW_OBJECT
    return made + _value(fields) + writer.BUILD


def _value(value: Any) -> bytes:
    """Return the opcodes that build a plain value or an array of uint8."""
    if isinstance(value, Mapping):
        items = b''.join(_value(key) + _value(item) for key, item in value.items())
        return b'}' + writer.MARK + items + b'u'
    if isinstance(value, (list, tuple)):
        items = b''.join(map(_value, value))
        is_list = isinstance(value, list)
        return b']' + writer.MARK + items + b'e' if is_list else writer.MARK + items + b't'
    if isinstance(value, bool):
        return writer.TRUE if value else writer.FALSE
    if isinstance(value, str):
        return writer.text(value)
    if isinstance(value, int):
        return writer.integer(value)
    if isinstance(value, float):
        return writer.number(value)
    return _image(value)


def _image(image: Any) -> bytes:
    """Return what numpy writes for an array of uint8."""
    pixels = np.ascontiguousarray(image, np.uint8)
    order = writer.MARK + writer.integer(3) + writer.text('|') + writer.NONE * 3
    order += writer.integer(-1) * 2 + writer.integer(0) + writer.TUPLE
    kind = writer.name('numpy', 'dtype') + writer.text('u1') + writer.FALSE + writer.TRUE
    dtype = kind + writer.TUPLE3 + writer.REDUCE + order + writer.BUILD
    empty = writer.name('numpy', 'ndarray') + writer.integer(0) + writer.TUPLE1 + b'C\x01b'
    made = writer.name('numpy._core.multiarray', '_reconstruct') + empty + writer.TUPLE3
    data = b'\x8e' + writer.UINT64(pixels.nbytes) + pixels.tobytes()
    state = writer.MARK + writer.integer(1) + _value(pixels.shape) + dtype + writer.FALSE + data
    return made + writer.REDUCE + state + writer.TUPLE + writer.BUILD
