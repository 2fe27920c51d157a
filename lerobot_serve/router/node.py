"""
The node policy_router: towards robots a policy server, towards policy servers a client.

The thread `intake` peeks at a request, places its episode and publishes the same bytes to the
slot; `answers` sends the chunks back the same way. The thread `control` makes the calls that take
time: sessions are opened in both slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
import queue
import threading

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract import ask_from_request, drop_messages, refuse, reply_publisher
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.session_client import SessionClient
from lerobot_serve.router.drops import Drops
from lerobot_serve.router.messages import merge_replies, routing_decision
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sticky import Placement, StickyTable
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import peek
from lerobot_serve.wire.names import is_topic
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused, SessionAsk, Unreachable
from lerobot_serve_interfaces.msg import ActionChunk, Observation, RoutingDecision, ServerStatus
from lerobot_serve_interfaces.srv import CloseSession, OpenSession, ResetEpisode

CALL_TIMEOUT_S = 1.0
STATUS_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class Client:
    """One robot whose session is open in both slots."""

    ask: SessionAsk
    replies: Publisher


class PolicyRouter(Node):
    """See the module."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('policy_router', context=runtime.context)
        self._settings = ParameterServer(self, RouterParameters)
        parameters = self._settings.current
        self._sticky = StickyTable(parameters.remembered_episodes)
        self._robots: dict[str, Client] = {}
        self._policies = {'a': '', 'b': ''}
        self._drops = Drops()
        # the answers thread publishes while the executor may end a session
        self._publishing = threading.Lock()
        self._routed: Counter[str] = Counter()
        self._slots = {
            name: SessionClient(
                self,
                check_slot(name, server),
                lifespan_s=parameters.observation_lifespan_s,
                stop=runtime.stop,
                of_many=True,
            )
            for name, server in (('a', parameters.slot_a), ('b', parameters.slot_b))
        }
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._offer()
        for name, lane in (('intake', self._inbox), ('answers', self._answers)):
            runtime.thread(name, partial(lane.run, runtime.stop), lane.wake)
        runtime.thread('control', self._run_control, lambda: self._work.put(None))
        self.get_logger().info(
            f'{parameters.split_percent} % of the episodes to a ({parameters.slot_a}), the others '
            f'to b ({parameters.slot_b})'
        )

    def _offer(self) -> None:
        overridable = {'qos_overriding_options': qos.OVERRIDABLE}
        self._decisions = self.create_publisher(
            RoutingDecision, '~/routing', qos.DECISIONS, **overridable
        )
        self._status = self.create_publisher(ServerStatus, '~/status', qos.STATE, **overridable)
        self._inbox = Lane(
            self, Observation, '~/observation', qos.OBSERVATION_INBOX, self._on_observation
        )
        self._answers = Lane(self, ActionChunk, '~/action_chunk', qos.ACTION_CHUNK, self._on_chunk)
        # a group of their own: a callback that awaits must not keep the data path waiting
        waiting = ReentrantCallbackGroup()
        self.create_service(OpenSession, '~/open_session', self._on_open, callback_group=waiting)
        self.create_service(
            CloseSession, '~/close_session', self._on_close, callback_group=waiting
        )
        self.create_service(
            ResetEpisode, '~/reset_episode', self._on_reset, callback_group=waiting
        )
        self.create_timer(STATUS_PERIOD_S, self._on_timer)

    # data path: the threads intake and answers

    def _on_observation(self, raw: bytes) -> None:
        try:
            header, client_id, episode_id = peek(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        client = self._robots.get(client_id)
        if client is None or client.ask.session_epoch != header.session_epoch:
            self._drops.add('no_session')
            return
        placement = self._sticky.place(
            episode_id,
            f'{client_id}:{header.session_epoch}:{header.seq}',
            self._settings.current.split_percent,
        )
        self._slots[placement.slot].send(raw)
        self._routed[placement.slot] += 1
        if not placement.cached:
            self._publish_decision(client_id, episode_id, placement)

    def _on_chunk(self, raw: bytes) -> None:
        try:
            header, client_id, _ = peek(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        with self._publishing:
            client = self._robots.get(client_id)
            if client and client.ask.session_epoch == header.session_epoch:
                client.replies.publish(raw)
                return
        self._drops.add('no_client')

    def _publish_decision(self, client_id: str, episode_id: str, placement: Placement) -> None:
        self._decisions.publish(
            routing_decision(
                placement,
                stamp=self.get_clock().now().to_msg(),
                client_id=client_id,
                episode_id=episode_id,
                policy=self._policies[placement.slot],
                server=self._slots[placement.slot].server,
            )
        )
        if placement.degraded:
            self.get_logger().warning(
                f'{client_id!r} sends no episode_id: its requests are routed one by one',
                once=True,
            )

    # control, executor thread: hand over and await

    async def _on_open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        try:
            ask = ask_from_request(request)
            replies = reply_publisher(self, ask.reply_topic)
        except Refused as error:
            return self._refuse(response, error)
        try:
            reply = await self._later(lambda: self._open_both(ask))
        except Refused as error:
            self.destroy_publisher(replies)
            return self._refuse(response, error)
        with self._publishing:
            old = self._robots.get(ask.client_id)
            self._robots[ask.client_id] = Client(ask, replies)
            if old:
                self.destroy_publisher(old.replies)
        return reply

    def _refuse(self, response: OpenSession.Response, refused: Refused) -> OpenSession.Response:
        self._drops.add(f'refused_{refused.code.name.lower()}')
        return refuse(response, refused.code, str(refused))

    async def _on_close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        client = self._robots.get(request.client_id)
        if client is None or client.ask.session_epoch != request.session_epoch:
            response.text = f'{request.client_id!r} has no session of this epoch'
            return response
        with self._publishing:
            del self._robots[request.client_id]
            self.destroy_publisher(client.replies)
        await self._later(lambda: self._close_in(client.ask, list(self._slots)))
        response.closed = True
        return response

    async def _on_reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        texts = await self._later(lambda: self._reset_both(request))
        response.acknowledged, response.text = not texts, '; '.join(texts)
        return response

    def _later(self, work: Callable[[], object]) -> Future:
        """
        Run `work` in the control thread; the result or the exception comes through the future.
        """
        future = Future(executor=self.executor)

        def job() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            # the executor looks at the future only when it is awake
            self.executor.wake()

        self._work.put(job)
        return future

    # control thread

    def _run_control(self) -> None:
        while job := self._work.get():
            job()

    def _open_both(self, ask: SessionAsk) -> OpenSession.Response:
        """Open the session in both slots, or in none. Raises Refused."""
        asked = replace(ask, reply_topic=self._answers.topic_name)
        timeout_s = self._settings.current.open_timeout_s
        replies: dict[str, OpenSession.Response] = {}
        try:
            for name, slot in self._slots.items():
                replies[name] = slot.open(asked, timeout_s)
                self._policies[name] = replies[name].policy
            merged = merge_replies(replies['a'], replies['b'], self._inbox.topic_name)
        except (Refused, Unreachable) as error:
            self._close_in(asked, list(replies))
            code = error.code if isinstance(error, Refused) else Refusal.UNREACHABLE
            raise Refused(code, f'slot {name} ({slot.server}): {error}') from error
        for slot in self._slots.values():
            slot.wait_until_wired(self._both_answer, CALL_TIMEOUT_S)
        return merged

    def _both_answer(self) -> bool:
        return self._answers.publisher_count() >= len(self._slots)

    def _close_in(self, ask: SessionAsk, names: list[str]) -> None:
        for name in names:
            try:
                self._slots[name].close(ask, CALL_TIMEOUT_S)
            except Unreachable:
                self._drops.add('close_unreachable')

    def _reset_both(self, request: ResetEpisode.Request) -> list[str]:
        """Return what went wrong."""
        texts = []
        for name, slot in self._slots.items():
            try:
                reply = slot.reset(request, CALL_TIMEOUT_S)
            except Unreachable as error:
                texts.append(f'slot {name}: {error}')
            else:
                texts += [] if reply.acknowledged else [f'slot {name}: {reply.text}']
        return texts

    def _on_timer(self) -> None:
        self._status.publish(
            ServerStatus(
                stamp=self.get_clock().now().to_msg(),
                server=self.get_fully_qualified_name(),
                policy='|'.join(self._policies.values()),
                policy_type='router',
                state=ServerStatus.ACTIVE,
                text=f'requests to a: {self._routed["a"]}, to b: {self._routed["b"]}',
                active_sessions=len(self._robots),
                requests=self._routed.total(),
                drops=drop_messages(self._drops.counts()),
            )
        )


def check_slot(name: str, server: str) -> str:
    """Return the server's name. Raises UserError."""
    if not is_topic(server):
        raise UserError(f'slot_{name} must be the full name of a node, got {server!r}')
    return server


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_router`."""
    return run(PolicyRouter, arguments)


if __name__ == '__main__':
    raise SystemExit(main())
