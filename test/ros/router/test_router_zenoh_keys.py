# SPDX-License-Identifier: Apache-2.0
"""A router and its replica over Zenoh with keys: real processes, TLS and access control."""

from __future__ import annotations

from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE


def test_a_replica_serves_the_router_that_has_a_key(router_rig, tmp_path):
    site, endpoint = Keys(tmp_path / 'keys'), f"['tls/localhost:{free_port()}']"
    router = site.add('router', '/policy_router')
    server = site.add('server', '/a/policy_server')
    router_rig.server('a', 'a', zenoh_listen=endpoint, zenoh_site=SITE, zenoh_keys=server)
    router_rig.server('b', 'b')
    router_rig.fleet.start(
        'router',
        'policy_router',
        slot_a="['zenoh:/a/policy_server']",
        slot_b="['/b/policy_server']",
        zenoh_connect=endpoint,
        zenoh_site=SITE,
        zenoh_keys=router,
        discovery_timeout_s=20.0,
    )
    router_rig.wait_for_health('healthy')
    robot = router_rig.robot()
    robot.episode_id = router_rig.episode('a')
    assert robot.round_trip(episode_id=router_rig.episode('a')).slot == 'a'
