# SPDX-License-Identifier: Apache-2.0
"""
Which topics, services and actions each node has, for the reference and for the test of the
commands in the documents. Plain data; test/ros/docs/test_offers.py compares it with running nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

INTERFACE_PACKAGE = 'lerobot_serve_interfaces'


class Endpoint(Enum):
    """How it is offered; the value is what the reference says of it."""

    TELLS = 'told by'
    TAKES = 'taken by'
    SERVICE = 'service of'
    ACTION = 'action of'


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """`name` begins with ~/ below the node, with nothing below its namespace, with / nowhere."""

    node: str
    way: Endpoint
    name: str
    type: str

    def full_name(self, node: str) -> str:
        """Return its name at a node that is named in full, like /robot_1/edge_controller."""
        if self.name.startswith('~/'):
            return f'{node}/{self.name[2:]}'
        return self.name if self.name.startswith('/') else f'{node.rpartition("/")[0]}/{self.name}'


def _offers(node: str, way: Endpoint, names: dict[str, str]) -> tuple[NodeEndpoint, ...]:
    return tuple(NodeEndpoint(node, way, name, kind) for name, kind in names.items())


def _ours(folder: str, names: dict[str, str]) -> dict[str, str]:
    return {name: f'{INTERFACE_PACKAGE}/{folder}/{kind}' for name, kind in names.items()}


SESSIONS = {
    '~/open_session': 'OpenSession',
    '~/close_session': 'CloseSession',
    '~/reset_episode': 'ResetEpisode',
    '~/get_status': 'GetStatus',
}
# what was asked and answered, so that a bag has it
SERVICE_EVENTS = {'~/open_session/_service_event': f'{INTERFACE_PACKAGE}/srv/OpenSession_Event'}
DIAGNOSTICS = {'/diagnostics': 'diagnostic_msgs/msg/DiagnosticArray'}
TRIGGER = 'std_srvs/srv/Trigger'
LIFECYCLE = {
    '~/change_state': 'lifecycle_msgs/srv/ChangeState',
    '~/get_state': 'lifecycle_msgs/srv/GetState',
}
NODE_ENDPOINTS = (
    *_offers(
        'edge_controller',
        Endpoint.TELLS,
        _ours('msg', {'~/state': 'EdgeState', '~/executed_action': 'ExecutedAction'})
        | DIAGNOSTICS,
    ),
    *_offers(
        'edge_controller',
        Endpoint.TAKES,
        _ours('msg', {'~/action_chunk': 'ActionChunk', 'episode_outcome': 'EpisodeOutcome'}),
    ),
    *_offers(
        'edge_controller',
        Endpoint.SERVICE,
        {f'~/{name}': TRIGGER for name in ('pause', 'resume', 'reset', 'reset_cage')},
    ),
    *_offers('edge_controller', Endpoint.ACTION, _ours('action', {'~/run_episode': 'RunEpisode'})),
    *_offers(
        'policy_server',
        Endpoint.TELLS,
        _ours('msg', {'~/status': 'ServerStatus'}) | SERVICE_EVENTS,
    ),
    *_offers(
        'policy_server',
        Endpoint.TAKES,
        _ours('msg', {'~/observation': 'Observation', '~/shadow_observation': 'Observation'}),
    ),
    *_offers(
        'policy_server',
        Endpoint.SERVICE,
        _ours('srv', SESSIONS) | {'~/capture': TRIGGER} | LIFECYCLE,
    ),
    *_offers(
        'policy_server', Endpoint.ACTION, _ours('action', {'~/predict_chunk': 'PredictChunk'})
    ),
    *_offers(
        'policy_router',
        Endpoint.TELLS,
        _ours(
            'msg',
            {
                '~/status': 'ServerStatus',
                '~/state': 'RouterState',
                '~/routing': 'RoutingDecision',
                '~/canary': 'CanaryState',
                '~/shadow_summary': 'ShadowSummary',
                '~/shadow_divergence': 'ShadowDivergence',
            },
        )
        | SERVICE_EVENTS
        | DIAGNOSTICS,
    ),
    *_offers(
        'policy_router',
        Endpoint.TAKES,
        _ours('msg', {'~/observation': 'Observation', '~/outcome': 'EpisodeOutcome'}),
    ),
    *_offers(
        'policy_router',
        Endpoint.SERVICE,
        _ours(
            'srv',
            {**SESSIONS, '~/control_slot': 'ControlSlot', '~/report_outcome': 'ReportOutcome'},
        )
        | LIFECYCLE,
    ),
    *_offers(
        'policy_router', Endpoint.ACTION, _ours('action', {'~/predict_chunk': 'PredictChunk'})
    ),
    *_offers('sim_robot', Endpoint.TELLS, _ours('msg', {'episode_outcome': 'EpisodeOutcome'})),
)
