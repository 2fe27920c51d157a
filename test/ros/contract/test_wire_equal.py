# SPDX-License-Identifier: Apache-2.0
"""The bytes built by hand are those of the generated messages, and the numbers are the same."""

from __future__ import annotations

import array

from hypothesis import given
import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
from support.contract.cdr_walk import Walk
from support.contract.wire_examples import (
    a_chunk,
    an_observation,
    chunks,
    content,
    observations,
    patient,
)

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve_interfaces import msg

# written out here field by field: a helper of the package could hide a swap


def table(values: np.ndarray) -> msg.ActionArray:
    rows, columns = values.shape
    return msg.ActionArray(rows=rows, columns=columns, data=array.array('f', values.tobytes()))


def header(plain: Header) -> msg.RequestHeader:
    return msg.RequestHeader(
        seq=plain.seq,
        client_mono_ns=plain.client_mono_ns,
        session_epoch=plain.session_epoch,
        episode=plain.episode,
        schema_version=plain.schema_version,
        msg_type=plain.msg_type,
        flags=plain.flags,
    )


def extensions(plain: tuple) -> list[msg.Extension]:
    return [msg.Extension(key=e.key, value=array.array('B', bytes(e.value))) for e in plain]


def cameras(plain: tuple) -> list[msg.CameraImage]:
    return [
        msg.CameraImage(
            name=image.name,
            height=image.height,
            width=image.width,
            steps_back=image.steps_back,
            codec=int(image.codec),
            channels=image.channels,
            channel_bytes=image.channel_bytes,
            data=array.array('B', bytes(image.data)),
        )
        for image in plain
    ]


def typed_observation(plain: Observation) -> msg.Observation:
    return msg.Observation(
        header=header(plain.header),
        client_id=plain.client_id,
        episode_id=plain.episode_id,
        inference_delay_steps=plain.inference_delay_steps,
        queue_remaining_s=plain.queue_remaining_s,
        observation_steps=len(plain.state),
        task=plain.task,
        prefix_policy=plain.prefix_policy,
        prefix_model=table(plain.prefix_model),
        prefix_robot=table(plain.prefix_robot),
        state=array.array('f', plain.state.tobytes()),
        images=cameras(plain.images),
        extensions=extensions(plain.extensions),
    )


def typed_chunk(plain: Chunk) -> msg.ActionChunk:
    return msg.ActionChunk(
        header=header(plain.header),
        client_id=plain.client_id,
        episode_id=plain.episode_id,
        seed=plain.seed,
        queue_wait_ms=plain.queue_wait_ms,
        processing_ms=plain.processing_ms,
        inference_ms=plain.inference_ms,
        server_load=plain.server_load,
        superseded=plain.superseded,
        status=plain.status,
        status_text=plain.status_text,
        slot=plain.slot,
        policy=plain.policy,
        chunk_model=table(plain.model),
        chunk_robot=table(plain.robot),
        extensions=extensions(plain.extensions),
    )


def check(plain: Observation | Chunk, typed: object, wire: object) -> None:
    walk, raw = Walk(typed), serialize_message(typed)
    assert wire.encode(plain) == walk.data == walk.masked(raw)
    assert content(wire.decode(raw)) == content(plain)
    assert read_envelope(raw) == (plain.header, plain.client_id, plain.episode_id)
    back = deserialize_message(wire.encode(plain), type(typed))
    assert Walk(back).data == walk.data


@patient
@given(observations)
def test_an_observation_has_the_bytes_of_its_message(plain):
    check(plain, typed_observation(plain), wire_observation)


@patient
@given(chunks)
def test_a_chunk_has_the_bytes_of_its_message(plain):
    check(plain, typed_chunk(plain), wire_chunk)


def test_the_full_examples_have_the_bytes_of_their_messages():
    check(an_observation(), typed_observation(an_observation()), wire_observation)
    check(a_chunk(), typed_chunk(a_chunk()), wire_chunk)
