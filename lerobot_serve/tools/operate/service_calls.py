# SPDX-License-Identifier: Apache-2.0
"""
Call the services of routers, servers and robots, by a node that an executor spins.

The thread of a client calls; every call has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.serialization import serialize_message
from std_srvs.srv import Trigger

from lerobot_serve.contract import records
from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.ros.contract.service_call import (
    call_service,
    ServiceCallFailed,
    wait_until_discovered,
)
from lerobot_serve.tools.operate.outcome import NotReached, ResultUnknown
from lerobot_serve_interfaces.msg import EpisodeOutcome
from lerobot_serve_interfaces.srv import ControlSlot, GetStatus, ReportOutcome, SwapPolicy

SWAP_SERVICE = 'swap_policy'
# of finding out whether a node has discovered a client; a command is sent then all the same
DISCOVERED_S = 1.0
# a second call does nothing more; a second resume would end what another operator paused
IDEMPOTENT_TRIGGERS = frozenset({'pause'})


class ServiceCalls:
    """
    Each call raises NotReached when nothing was sent, ResultUnknown without a reply. `timeout_s`
    limits finding the service, and the call.
    """

    def __init__(self, node: Node, timeout_s: float) -> None:
        self._node, self.timeout_s = node, timeout_s

    def control_slot(
        self,
        router: str,
        command: str,
        *,
        slot: str = '',
        at_once: bool = False,
        reason: str,
        split_percent: int = 0,
        plan: Sequence[str] = (),
        limit_s: float | None = None,
    ) -> tuple[bool, str]:
        """
        Run a command of ControlSlot, given by the name of its constant. `limit_s`: that of finding
        the service, and of the call, where `router` may be none.
        """
        request = ControlSlot.Request(
            command=getattr(ControlSlot.Request, command),
            slot=slot,
            move_running_episodes=at_once,
            reason=encodable_text(reason),
            split_percent=split_percent,
            plan=list(plan),
        )
        reply = self._call(ControlSlot, f'{router}/control_slot', request, limit_s)
        return reply.success, reply.text

    def report_outcome(
        self, router: str, episode_id: str, outcome: str, text: str
    ) -> tuple[bool, str]:
        """Report the outcome of an episode, the word of a constant of EpisodeOutcome."""
        message = EpisodeOutcome(
            stamp=self._node.get_clock().now().to_msg(),
            episode_id=episode_id,
            outcome=int(records.EpisodeOutcome.Outcome.named(outcome)),
            score=float('nan'),
            # a text of a command line, whose bytes may be of another encoding
            text=text.encode('utf-8', 'replace').decode(),
        )
        request = ReportOutcome.Request(outcome=message)
        reply = self._call(ReportOutcome, f'{router}/report_outcome', request)
        return reply.accepted, reply.text

    def trigger(self, node: str, service: str) -> tuple[bool, str]:
        """Call a std_srvs/Trigger service of a node."""
        idempotent = service in IDEMPOTENT_TRIGGERS
        reply = self._call(Trigger, f'{node}/{service}', Trigger.Request(), idempotent=idempotent)
        return reply.success, reply.message

    def get_parameters(self, node: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of parameters."""
        request = GetParameters.Request(names=list(names))
        service = f'{node}/get_parameters'
        values = self._call(GetParameters, service, request, idempotent=True).values
        found = (parameter_value_to_python(value) for value in values)
        return dict(zip(names, found, strict=False))

    def set_parameters(self, node: str, values: Mapping[str, object]) -> str:
        """Set parameters, all or none; return why they are rejected, empty when they are set."""
        request = SetParametersAtomically.Request(
            parameters=[_parameter(name, value) for name, value in values.items()]
        )
        service = f'{node}/set_parameters_atomically'
        reply = self._call(SetParametersAtomically, service, request, idempotent=True)
        return '' if reply.result.successful else reply.result.reason

    def lifecycle_state(self, node: str) -> str:
        """Return the label of the lifecycle state, for example 'active'."""
        reply = self._call(GetState, f'{node}/get_state', GetState.Request(), idempotent=True)
        label: str = reply.current_state.label
        return label

    def change_state(self, node: str, transition: str, timeout_s: float) -> bool:
        """Run a lifecycle transition; return whether it succeeded."""
        request = ChangeState.Request()
        request.transition.label = transition
        reply = self._call(ChangeState, f'{node}/change_state', request, timeout_s)
        success: bool = reply.success
        return success

    def server(self, node: str) -> ServerStatus:
        """Return the state of a policy server."""
        service = f'{node}/get_status'
        reply = self._call(GetStatus, service, GetStatus.Request(), idempotent=True)
        return decode(ServerStatus, serialize_message(reply.status))

    def swap_policy(self, node: str, path: str) -> tuple[bool, str]:
        """Begin to replace the policy of a server; return whether it loads, and a text."""
        request = SwapPolicy.Request(policy_path=path)
        reply = self._call(SwapPolicy, f'{node}/{SWAP_SERVICE}', request)
        return reply.accepted, reply.text

    def swap_servers(self) -> list[str]:
        """Return the policy servers that are discovered now and can swap their policy."""
        found = (name for name, _ in self._node.get_service_names_and_types())
        return sorted(
            name.removesuffix(f'/{SWAP_SERVICE}') for name in found if name.endswith(SWAP_SERVICE)
        )

    def _call(
        self,
        kind: type,
        service: str,
        request: Any,
        timeout_s: float | None = None,
        *,
        idempotent: bool = False,
    ) -> Any:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            # a state names a server over Zenoh with its link; its services are those of ROS 2
            client = self._node.create_client(kind, node_name(service))
        except NameValidationException as error:
            # its further lines point at the place in the name
            reason = str(error).partition('\n')[0].rstrip(':')
            raise NotReached(f'{service} is not a name of a service ({reason})') from error
        try:
            if not client.wait_for_service(timeout_sec=min(limit_s, self.timeout_s)):
                raise NotReached(f'{service} is not available; nothing was sent')
            if not idempotent:
                wait_until_discovered(self._node, client, min(limit_s, DISCOVERED_S))
            return call_service(client, request, limit_s, idempotent=idempotent)
        except UnicodeEncodeError as error:
            raise NotReached(f'{error.object!r} is not UTF-8 text; nothing was sent') from error
        except ServiceCallFailed as error:
            raise ResultUnknown(str(error)) from error
        finally:
            self._node.destroy_client(client)


def _parameter(name: str, value: object) -> Any:
    """Return the message of a parameter; a list is one of texts."""
    kind = Parameter.Type.STRING_ARRAY if isinstance(value, list) else None
    return Parameter(name, kind, value).to_parameter_msg()
