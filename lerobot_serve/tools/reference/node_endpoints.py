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


# a service event has the requests and replies of its service, for bags
TABLE = """
edge_controller  publisher   ~/state                        msg/EdgeState
edge_controller  publisher   ~/executed_action              msg/ExecutedAction
edge_controller  publisher   ~/robot_file                   std_msgs/msg/String
edge_controller  publisher   /diagnostics                   diagnostic_msgs/msg/DiagnosticArray
edge_controller  subscriber  ~/action_chunk                 msg/ActionChunk
edge_controller  subscriber  episode_outcome                msg/EpisodeOutcome
edge_controller  service     ~/pause                        std_srvs/srv/Trigger
edge_controller  service     ~/resume                       std_srvs/srv/Trigger
edge_controller  service     ~/reset                        std_srvs/srv/Trigger
edge_controller  service     ~/reset_cage                   std_srvs/srv/Trigger
edge_controller  service     ~/take_over                    std_srvs/srv/Trigger
edge_controller  service     ~/hand_back                    std_srvs/srv/Trigger
edge_controller  action      ~/run_episode                  action/RunEpisode
policy_server    publisher   ~/status                       msg/ServerStatus
policy_server    publisher   ~/local/observation            msg/Observation
policy_server    publisher   ~/local/action_chunk           msg/ActionChunk
policy_server    publisher   ~/local/replies/action_chunk   msg/ActionChunk
policy_server    publisher   ~/open_session/_service_event  srv/OpenSession_Event
policy_server    subscriber  ~/observation                  msg/Observation
policy_server    subscriber  ~/shadow_observation           msg/Observation
policy_server    service     ~/open_session                 srv/OpenSession
policy_server    service     ~/close_session                srv/CloseSession
policy_server    service     ~/reset_episode                srv/ResetEpisode
policy_server    service     ~/get_status                   srv/GetStatus
policy_server    service     ~/swap_policy                  srv/SwapPolicy
policy_server    service     ~/capture                      std_srvs/srv/Trigger
policy_server    service     ~/change_state                 lifecycle_msgs/srv/ChangeState
policy_server    service     ~/get_state                    lifecycle_msgs/srv/GetState
policy_server    action      ~/predict_chunk                action/PredictChunk
policy_router    publisher   ~/status                       msg/ServerStatus
policy_router    publisher   ~/state                        msg/RouterState
policy_router    publisher   ~/routing                      msg/RoutingDecision
policy_router    publisher   ~/canary                       msg/CanaryState
policy_router    publisher   ~/shadow_summary               msg/ShadowSummary
policy_router    publisher   ~/shadow_divergence            msg/ShadowDivergence
policy_router    publisher   ~/local/observation            msg/Observation
policy_router    publisher   ~/local/action_chunk           msg/ActionChunk
policy_router    publisher   ~/local/replies/action_chunk   msg/ActionChunk
policy_router    publisher   ~/open_session/_service_event  srv/OpenSession_Event
policy_router    publisher   /diagnostics                   diagnostic_msgs/msg/DiagnosticArray
policy_router    subscriber  ~/observation                  msg/Observation
policy_router    subscriber  ~/outcome                      msg/EpisodeOutcome
policy_router    service     ~/open_session                 srv/OpenSession
policy_router    service     ~/close_session                srv/CloseSession
policy_router    service     ~/reset_episode                srv/ResetEpisode
policy_router    service     ~/get_status                   srv/GetStatus
policy_router    service     ~/control_slot                 srv/ControlSlot
policy_router    service     ~/report_outcome               srv/ReportOutcome
policy_router    service     ~/change_state                 lifecycle_msgs/srv/ChangeState
policy_router    service     ~/get_state                    lifecycle_msgs/srv/GetState
policy_router    action      ~/predict_chunk                action/PredictChunk
recorder         publisher   recorded_episodes              msg/RecordedEpisode
learner          publisher   ~/state                        msg/LearnerState
learner          publisher   policy_versions                msg/PolicyVersion
learner          subscriber  recorded_episodes              msg/RecordedEpisode
learner          subscriber  /policy_router/canary          msg/CanaryState
learner          service     ~/start_round                  std_srvs/srv/Trigger
learner          service     ~/pause                        std_srvs/srv/Trigger
learner          service     ~/resume                       std_srvs/srv/Trigger
sim_robot        publisher   episode_outcome                msg/EpisodeOutcome
"""


def _endpoint(line: str) -> NodeEndpoint:
    node, kind, name, type_name = line.split()
    is_own = type_name.count('/') == 1
    full = f'{INTERFACE_PACKAGE}/{type_name}' if is_own else type_name
    return NodeEndpoint(node, Endpoint[kind.upper()], name, full)


NODE_ENDPOINTS = tuple(map(_endpoint, TABLE.strip().splitlines()))
