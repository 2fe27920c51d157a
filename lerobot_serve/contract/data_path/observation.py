# SPDX-License-Identifier: Apache-2.0
"""Encode and decode Observation.msg."""

from __future__ import annotations

from functools import lru_cache
import struct

from msgspec import field, Struct

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.cdr import CdrReader, CdrWriter, packed_part, Parts, Raw
from lerobot_serve.contract.data_path.header import (
    Envelope,
    Header,
    HEADER_LAYOUT,
    read_envelope_fields,
    write_envelope_fields,
)
from lerobot_serve.contract.data_path.message_parts import (
    ACTION_VALUES_LIMIT,
    find_extension,
    Image,
    NO_ACTIONS,
    read_actions,
    read_extensions,
    read_images,
    skip_actions,
    skip_images,
    write_actions,
    write_extensions,
    write_images,
)
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT, ID_LIMIT, TASK_LIMIT
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import MsgType

PROGRESS = struct.Struct('<IfI')


class Observation(Struct, frozen=True, eq=False):
    """One request; `state` has observation_steps rows, oldest first."""

    header: Header
    client_id: str
    episode_id: str
    state: Float32Array
    images: tuple[Image, ...] = ()
    task: str = ''
    inference_delay_steps: int = 0
    queue_remaining_s: float = 0.0
    prefix_policy: str = ''
    prefix_model: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    prefix_robot: Float32Array = field(default_factory=lambda: NO_ACTIONS)
    extensions: tuple[Extension, ...] = ()


def encode(observation: Observation) -> bytes:
    """Return the CDR bytes; each image is copied once. Raises Unencodable."""
    return bytes(encode_parts(observation))


def encode_parts(observation: Observation) -> Parts:
    """Return the CDR bytes as parts; no image is copied. Raises Unencodable."""
    if observation.state.ndim != 2 or not len(observation.state):
        raise Unencodable(
            f'state must be observations x values, got the shape {observation.state.shape}'
        )
    writer = CdrWriter()
    write_envelope_fields(
        writer, observation.header, observation.client_id, observation.episode_id
    )
    writer.pack(
        PROGRESS,
        observation.inference_delay_steps,
        observation.queue_remaining_s,
        len(observation.state),
        align=4,
    )
    writer.append_part(_texts(writer.phase, observation.task, observation.prefix_policy))
    write_actions(writer, observation.prefix_model, 'prefix_model')
    write_actions(writer, observation.prefix_robot, 'prefix_robot')
    writer.floats(observation.state, ACTION_VALUES_LIMIT, 'state')
    write_images(writer, observation.images)
    write_extensions(writer, observation.extensions)
    return writer.parts()


@lru_cache(maxsize=64)
def _texts(phase: int, task: str, prefix_policy: str) -> bytes:
    def write(writer: CdrWriter) -> None:
        writer.string(task, TASK_LIMIT)
        writer.string(prefix_policy, FINGERPRINT_LIMIT)

    return packed_part(phase, write)


def read_queue_remaining(raw: Raw) -> tuple[Envelope, float]:
    """
    Return the envelope of a request and the remaining queue of its robot, without decoding the
    rest. Raises Malformed.
    """
    reader = CdrReader(raw)
    start = read_envelope_fields(reader)
    _, queue_remaining_s, _ = reader.unpack(PROGRESS, align=4)
    return start, queue_remaining_s


def read_extension(raw: Raw, key: str) -> Uint8Array | None:
    """
    Return the bytes of the extension with this key, None without one, without decoding the rest.
    Raises Malformed.
    """
    reader = CdrReader(raw)
    *_, msg_type, _ = reader.unpack(HEADER_LAYOUT, align=8)
    check_type(msg_type)
    reader.skip_string(ID_LIMIT, 'client_id')
    reader.skip_string(ID_LIMIT, 'episode_id')
    reader.unpack(PROGRESS, align=4)
    reader.skip_string(TASK_LIMIT, 'task')
    reader.skip_string(FINGERPRINT_LIMIT, 'prefix_policy')
    skip_actions(reader, 'prefix_model')
    skip_actions(reader, 'prefix_robot')
    reader.skip(ACTION_VALUES_LIMIT, 'state', 4)
    skip_images(reader)
    return find_extension(reader, key)


def check_type(msg_type: int) -> None:
    if msg_type != MsgType.OBSERVATION:
        raise Malformed(
            'wrong_type', f'msg_type must be {MsgType.OBSERVATION:d} here, got {msg_type}'
        )


def decode(raw: Raw) -> Observation:
    """Return the request whose arrays are views of `raw`. Raises Malformed."""
    reader = CdrReader(raw)
    header, client_id, episode_id = read_envelope_fields(reader)
    check_type(header.msg_type)
    delay_steps, queue_remaining_s, steps = reader.unpack(PROGRESS, align=4)
    task = reader.string(TASK_LIMIT, 'task')
    prefix_policy = reader.string(FINGERPRINT_LIMIT, 'prefix_policy')
    prefix_model = read_actions(reader, 'prefix_model')
    prefix_robot = read_actions(reader, 'prefix_robot')
    state = reader.floats(ACTION_VALUES_LIMIT, 'state')
    if not steps or state.size % steps:
        raise Malformed(
            'wrong_shape', f'state: {state.size} values cannot be {steps} observations'
        )
    return Observation(
        header,
        client_id,
        episode_id,
        state=state.reshape(steps, -1),
        images=read_images(reader),
        task=task,
        inference_delay_steps=delay_steps,
        queue_remaining_s=queue_remaining_s,
        prefix_policy=prefix_policy,
        prefix_model=prefix_model,
        prefix_robot=prefix_robot,
        extensions=read_extensions(reader),
    )
