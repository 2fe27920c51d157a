# SPDX-License-Identifier: Apache-2.0
"""
The topics, services and actions of each node, for the reference and for the test of the commands
in the documents. Plain data; test/ros/docs/test_offers.py compares it with running nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

INTERFACE_PACKAGE = 'lerobot_serve_interfaces'


class Endpoint(Enum):
    """Kind of an endpoint; the value is the text of the reference."""

    PUBLISHER = 'published by'
    SUBSCRIBER = 'subscribed by'
    SERVICE = 'service of'
    ACTION = 'action of'


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """
    An endpoint; `name` is relative to the node with ~/, absolute with /, else relative to the
    namespace.
    """

    node: str
    kind: Endpoint
    name: str
    type: str

    def full_name(self, node: str) -> str:
        """
        Return the full name of the endpoint; `node` is the full name of its node, like
        /robot_1/edge_controller.
        """
        if self.name.startswith('~/'):
            return f'{node}/{self.name[2:]}'
        return self.name if self.name.startswith('/') else f'{node.rpartition("/")[0]}/{self.name}'


def _endpoints(node: str, kind: Endpoint, names: dict[str, str]) -> tuple[NodeEndpoint, ...]:
    return tuple(NodeEndpoint(node, kind, name, type_name) for name, type_name in names.items())


def _own_types(folder: str, names: dict[str, str]) -> dict[str, str]:
    return {name: f'{INTERFACE_PACKAGE}/{folder}/{kind}' for name, kind in names.items()}


SESSIONS = {
    '~/open_session': 'OpenSession',
    '~/close_session': 'CloseSession',
    '~/reset_episode': 'ResetEpisode',
    '~/get_status': 'GetStatus',
}
# requests and replies of the service, for bags
SERVICE_EVENTS = {'~/open_session/_service_event': f'{INTERFACE_PACKAGE}/srv/OpenSession_Event'}
DIAGNOSTICS = {'/diagnostics': 'diagnostic_msgs/msg/DiagnosticArray'}
TRIGGER = 'std_srvs/srv/Trigger'
LIFECYCLE = {
    '~/change_state': 'lifecycle_msgs/srv/ChangeState',
    '~/get_state': 'lifecycle_msgs/srv/GetState',
}
NODE_ENDPOINTS = (
    *_endpoints(
        'edge_controller',
        Endpoint.PUBLISHER,
        _own_types('msg', {'~/state': 'EdgeState', '~/executed_action': 'ExecutedAction'})
        | {'~/robot_file': 'std_msgs/msg/String'}
        | DIAGNOSTICS,
    ),
    *_endpoints(
        'edge_controller',
        Endpoint.SUBSCRIBER,
        _own_types('msg', {'~/action_chunk': 'ActionChunk', 'episode_outcome': 'EpisodeOutcome'}),
    ),
    *_endpoints(
        'edge_controller',
        Endpoint.SERVICE,
        {
            f'~/{name}': TRIGGER
            for name in ('pause', 'resume', 'reset', 'reset_cage', 'take_over', 'hand_back')
        },
    ),
    *_endpoints(
        'edge_controller', Endpoint.ACTION, _own_types('action', {'~/run_episode': 'RunEpisode'})
    ),
    *_endpoints(
        'policy_server',
        Endpoint.PUBLISHER,
        _own_types('msg', {'~/status': 'ServerStatus'}) | SERVICE_EVENTS,
    ),
    *_endpoints(
        'policy_server',
        Endpoint.SUBSCRIBER,
        _own_types('msg', {'~/observation': 'Observation', '~/shadow_observation': 'Observation'}),
    ),
    *_endpoints(
        'policy_server',
        Endpoint.SERVICE,
        _own_types('srv', SESSIONS | {'~/swap_policy': 'SwapPolicy'})
        | {'~/capture': TRIGGER}
        | LIFECYCLE,
    ),
    *_endpoints(
        'policy_server', Endpoint.ACTION, _own_types('action', {'~/predict_chunk': 'PredictChunk'})
    ),
    *_endpoints(
        'policy_router',
        Endpoint.PUBLISHER,
        _own_types(
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
    *_endpoints(
        'policy_router',
        Endpoint.SUBSCRIBER,
        _own_types('msg', {'~/observation': 'Observation', '~/outcome': 'EpisodeOutcome'}),
    ),
    *_endpoints(
        'policy_router',
        Endpoint.SERVICE,
        _own_types(
            'srv',
            {**SESSIONS, '~/control_slot': 'ControlSlot', '~/report_outcome': 'ReportOutcome'},
        )
        | LIFECYCLE,
    ),
    *_endpoints(
        'policy_router', Endpoint.ACTION, _own_types('action', {'~/predict_chunk': 'PredictChunk'})
    ),
    *_endpoints(
        'recorder',
        Endpoint.PUBLISHER,
        _own_types('msg', {'recorded_episodes': 'RecordedEpisode'}),
    ),
    *_endpoints(
        'learner',
        Endpoint.PUBLISHER,
        _own_types('msg', {'~/state': 'LearnerState', 'policy_versions': 'PolicyVersion'}),
    ),
    *_endpoints(
        'learner',
        Endpoint.SUBSCRIBER,
        _own_types(
            'msg',
            {'recorded_episodes': 'RecordedEpisode', '/policy_router/canary': 'CanaryState'},
        ),
    ),
    *_endpoints(
        'learner',
        Endpoint.SERVICE,
        {f'~/{name}': TRIGGER for name in ('start_round', 'pause', 'resume')},
    ),
    *_endpoints(
        'sim_robot', Endpoint.PUBLISHER, _own_types('msg', {'episode_outcome': 'EpisodeOutcome'})
    ),
)
