# SPDX-License-Identifier: Apache-2.0
"""A Zenoh router between links of ours without keys: it needs a region for each of them."""

from __future__ import annotations

import json
from unittest.mock import patch

import zenoh

from lerobot_serve.zenoh import link as link_module
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import common_configuration, configuration, ZenohSettings


def open_hub(endpoint: str, regions: tuple[str, ...]) -> zenoh.Session:
    """Return a Zenoh router that forwards between these regions, as the one of a hub's keys."""
    south = [{'filters': [{'region_names': [region]}]} for region in regions]
    config = common_configuration('router', listen=(endpoint,)) | {'gateway': {'south': south}}
    return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


def open_in_region(region: str, settings: ZenohSettings) -> ZenohLink:
    """Return a link of one region; those with keys have that of their certificate."""

    def with_region(given: ZenohSettings) -> str:
        return json.dumps(json.loads(configuration(given)) | {'region_name': region})

    with patch.object(link_module, 'configuration', with_region):
        return ZenohLink(settings)
