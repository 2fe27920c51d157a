# SPDX-License-Identifier: Apache-2.0
"""
The door for GR00T's client: msgpack over ZeroMQ, with ping, get_modality_config, reset and
get_action. All of it runs on the event loop of the gateway.
"""
