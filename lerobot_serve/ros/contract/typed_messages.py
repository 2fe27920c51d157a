# SPDX-License-Identifier: Apache-2.0
"""
Convert observations and chunks to and from typed messages, for clients that do not stream. Pure;
any thread.
"""

from __future__ import annotations

from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import Observation as ObservationMessage


def observation_from_message(message: ObservationMessage) -> Observation:
    """Convert a typed message, with all checks of the data path. Raises Malformed."""
    return wire_observation.decode(serialize_message(message))


def message_from_observation(observation: Observation) -> ObservationMessage:
    """Return the typed message. Raises Unencodable."""
    return deserialize_message(wire_observation.encode(observation), ObservationMessage)


def chunk_from_message(message: ActionChunk) -> Chunk:
    """Convert a typed message, with all checks of the data path. Raises Malformed."""
    return wire_chunk.decode(serialize_message(message))


def message_from_chunk(chunk: Chunk) -> ActionChunk:
    """Return the typed message. Raises Unencodable."""
    return deserialize_message(wire_chunk.encode(chunk), ActionChunk)
