# SPDX-License-Identifier: Apache-2.0
"""
The door for openpi's client: msgpack over a websocket.

    frames.py          frames of the websocket, read into one buffer
    observation.py     a message -> PredictionRequest, by names and layout from YAML
    connection.py      one client: its bytes, turns, bounds, the end
    conversation.py    what is said on a connection, its replies, and where its episodes begin
    door.py            the aiohttp application, and the upgrade to a websocket

peer_formats/ reads the messages. aiohttp reads the HTTP part of each connection; after the upgrade
it passes the bytes to frames.py, which takes a third of the CPU of its own websocket reader for
pictures.
"""
