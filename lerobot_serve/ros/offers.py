"""
Which topics, services and actions each node has, for the reference and for the test of the
commands in the documents. Plain data; test/ros/test_offers.py compares it with running nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

OURS = 'lerobot_serve_interfaces'


class Way(Enum):
    """How it is offered; the value is what the reference says of it."""

    TELLS = 'told by'
    TAKES = 'taken by'
    SERVICE = 'service of'
    ACTION = 'action of'


@dataclass(frozen=True, slots=True)
class Offer:
    """`name` begins with ~/ below the node, with nothing below its namespace, with / nowhere."""

    node: str
    way: Way
    name: str
    type: str

    def full_name(self, node: str) -> str:
        """Return its name at a node that is named in full, like /robot_1/edge_controller."""
        if self.name.startswith('~/'):
            return f'{node}/{self.name[2:]}'
        return self.name if self.name.startswith('/') else f'{node.rpartition("/")[0]}/{self.name}'


def _offers(node: str, way: Way, names: dict[str, str]) -> tuple[Offer, ...]:
    return tuple(Offer(node, way, name, kind) for name, kind in names.items())


def _ours(folder: str, names: dict[str, str]) -> dict[str, str]:
    return {name: f'{OURS}/{folder}/{kind}' for name, kind in names.items()}


SESSIONS = {
    '~/open_session': 'OpenSession',
    '~/close_session': 'CloseSession',
    '~/reset_episode': 'ResetEpisode',
    '~/get_status': 'GetStatus',
}
# what was asked and answered, so that a bag has it
CALLS = {'~/open_session/_service_event': f'{OURS}/srv/OpenSession_Event'}
DIAGNOSTICS = {'/diagnostics': 'diagnostic_msgs/msg/DiagnosticArray'}
TRIGGER = 'std_srvs/srv/Trigger'
LIFECYCLE = {
    '~/change_state': 'lifecycle_msgs/srv/ChangeState',
    '~/get_state': 'lifecycle_msgs/srv/GetState',
}
OFFERS = (
    *_offers(
        'edge_controller',
        Way.TELLS,
        _ours('msg', {'~/state': 'EdgeState', '~/executed_action': 'ExecutedAction'})
        | DIAGNOSTICS,
    ),
    *_offers(
        'edge_controller',
        Way.TAKES,
        _ours('msg', {'~/action_chunk': 'ActionChunk', 'episode_outcome': 'EpisodeOutcome'}),
    ),
    *_offers(
        'edge_controller',
        Way.SERVICE,
        {f'~/{name}': TRIGGER for name in ('pause', 'resume', 'reset', 'reset_cage')},
    ),
    *_offers('edge_controller', Way.ACTION, _ours('action', {'~/run_episode': 'RunEpisode'})),
    *_offers('policy_server', Way.TELLS, _ours('msg', {'~/status': 'ServerStatus'}) | CALLS),
    *_offers(
        'policy_server',
        Way.TAKES,
        _ours('msg', {'~/observation': 'Observation', '~/shadow_observation': 'Observation'}),
    ),
    *_offers(
        'policy_server',
        Way.SERVICE,
        _ours('srv', SESSIONS) | {'~/capture': TRIGGER} | LIFECYCLE,
    ),
    *_offers('policy_server', Way.ACTION, _ours('action', {'~/predict_chunk': 'PredictChunk'})),
    *_offers(
        'policy_router',
        Way.TELLS,
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
        | CALLS
        | DIAGNOSTICS,
    ),
    *_offers(
        'policy_router',
        Way.TAKES,
        _ours('msg', {'~/observation': 'Observation', '~/outcome': 'EpisodeOutcome'}),
    ),
    *_offers(
        'policy_router',
        Way.SERVICE,
        _ours(
            'srv',
            {**SESSIONS, '~/control_slot': 'ControlSlot', '~/report_outcome': 'ReportOutcome'},
        )
        | LIFECYCLE,
    ),
    *_offers('policy_router', Way.ACTION, _ours('action', {'~/predict_chunk': 'PredictChunk'})),
    *_offers('sim_robot', Way.TELLS, _ours('msg', {'episode_outcome': 'EpisodeOutcome'})),
)
