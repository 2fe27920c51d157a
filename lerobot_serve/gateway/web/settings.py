# SPDX-License-Identifier: Apache-2.0
"""The settings of endpoints over HTTP are those of all endpoints."""

from lerobot_serve.gateway.door_parameters import EndpointSettings

WebSettings = EndpointSettings
