# SPDX-License-Identifier: Apache-2.0
"""Policy servers as a router's control thread meets them: they open sessions, refuse or hang."""

from __future__ import annotations

from types import SimpleNamespace

from msgspec.structs import replace

from lerobot_serve.contract.records import GetStatusResponse, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool
from lerobot_serve.router.sessions.manager import SessionManager
from support.router.contexts import make_context
from support.router.dispatch_rig import policy_of, Rig, ROUTING

OPEN_TIMEOUT_S = ROUTING.open_session_timeout_s
SINGLE = {'a': ('/a1',), 'b': ('/b1',)}
THREE = {'prod': ('/p1', '/p2', '/p3')}


class FakeReplica:
    """A client of a server. `refuses` is how it refuses; who hangs answers no call."""

    def __init__(self, server: str) -> None:
        self.server, self.topic = server, f'/router/replies{server}'
        self.sessions: dict[str, OpenSessionRequest] = {}
        self.refuses: Refusal | None = None
        self.hangs, self.wired = False, True
        self.action_names = ('x', 'y')
        self.policy = policy_of(server[1:2])
        self.resets: list[object] = []
        # what it was called for, and how long that kept a caller waiting
        self.calls: list[str] = []
        self.waited_s = 0.0

    def open(self, ask: OpenSessionRequest, timeout_s: float) -> SimpleNamespace:
        self._answer('open', timeout_s)
        assert ask.reply_topic == self.topic
        if self.refuses is not None:
            raise SessionRefused(self.refuses, f'refused: {self.refuses.name}')
        self.sessions[ask.client_id] = ask
        return SimpleNamespace(server=self.server, policy=self.policy)

    def close(self, ask: OpenSessionRequest, timeout_s: float) -> None:
        self._answer('close', timeout_s)
        known = self.sessions.get(ask.client_id)
        if known and known.session_epoch == ask.session_epoch:
            del self.sessions[ask.client_id]

    def reset(self, request: object, timeout_s: float) -> SimpleNamespace:
        self._answer('reset', timeout_s)
        self.resets.append(request)
        return SimpleNamespace(acknowledged=True, text='')

    def status(self, timeout_s: float) -> GetStatusResponse:
        self._answer('status', timeout_s)
        return GetStatusResponse(
            state_names=('x', 'y'),
            action_names=self.action_names,
            observation_steps=1,
            observation_stride_steps=1,
        )

    def session_request_for(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        return replace(session_request, reply_topic=self.topic)

    def wait_until_matched(self, timeout_s: float) -> bool:
        return self.wired

    def restart(self) -> None:
        """What it had is gone."""
        self.sessions.clear()
        self.hangs, self.wired, self.refuses = False, True, None

    def _answer(self, call: str, timeout_s: float) -> None:
        self.calls.append(call)
        if self.hangs:
            self.waited_s += timeout_s
            raise ServerUnreachable(f'{self.server} did not answer within {timeout_s:g} s')


class ControlRig(Rig):
    """A rig with a control thread's work; the caller is the control thread."""

    def __init__(self, *arguments, **more) -> None:
        super().__init__(*arguments, **more)
        self.clients = {name: FakeReplica(name) for name in self.replicas}
        self.callers = ReplicaCallPool(self.clients)
        self.told: list[str] = []
        context = make_context(self, self.told)
        self.control = SessionManager(self.table, self.callers, self.drops, self.outside, context)

    def poll(self) -> None:
        """One round, as once a second."""
        self.control.check_replicas()
        self.control.maintain_sessions()

    def poll_until_probed(self) -> None:
        """Rounds until no probe is under way."""
        self.poll()
        for probe in tuple(self.callers._probes.values()):
            if probe:
                probe.exception()
        self.poll()

    def sessions(self) -> dict[str, list[str]]:
        """Return who has sessions where, as the servers say."""
        return {name: sorted(client.sessions) for name, client in self.clients.items()}

    def places(self) -> dict[str, list[str]]:
        """Return the same as the router says."""
        places: dict[str, list[str]] = {name: [] for name in self.replicas}
        for robot in self.robots:
            for servers in robot.places.values():
                for server in servers:
                    places[server].append(robot.request.client_id)
        return {name: sorted(clients) for name, clients in places.items()}


def places_of(rig: ControlRig, name: str = 'robot') -> dict[str, tuple[str, ...]]:
    return rig.robots.current(name).places
