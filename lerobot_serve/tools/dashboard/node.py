# SPDX-License-Identifier: Apache-2.0
"""
The node dashboard: wires the states of a fleet to the page.

The thread `poll` reads states and owns the document; `parameters` reads parameters; `robots` reads
what single robots do; `http` owns viewers and connections; threads of a pool run commands and
whatever of a request takes long.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import contextlib
from functools import partial
import os
import socket
import sys
import time
import traceback

from lerobot_serve import __version__
from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.access.token_file import open_tokens, Tokens
from lerobot_serve.errors import UserError
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.dashboard.command_runner import CommandRunner
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument, Json
from lerobot_serve.tools.dashboard.document.fleet_recorder import FleetRecorder
from lerobot_serve.tools.dashboard.document.incidents import instant
from lerobot_serve.tools.dashboard.evidence import Captures, Explanations
from lerobot_serve.tools.dashboard.http.application import Application, CommandsRoute, Sources
from lerobot_serve.tools.dashboard.http.guards import NOT_PRIVATE, Page, read_page
from lerobot_serve.tools.dashboard.http.server import HttpServer
from lerobot_serve.tools.dashboard.ros.fleet_poll import FleetPoll, ParameterReader
from lerobot_serve.tools.dashboard.ros.fleet_topics import FleetTopics
from lerobot_serve.tools.dashboard.ros.robot_feeds import RobotFeeds
from lerobot_serve.tools.dashboard.ros.zenoh_feed import ZenohFeed
from lerobot_serve.tools.dashboard.settings import DashboardSettings
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve.zenoh.settings import ZenohSettings

# reading parameters ends within the time that the runtime waits for a thread
READ_LIMIT_S, THREADS = 2.0, 24
NAME = 'dashboard'


class DashboardNode(SteadyClockNode):
    """See the module. Built in the main thread."""

    sim_time_refusal = 'a dashboard measures how long ago it heard of a robot'

    def __init__(
        self,
        runtime: NodeRuntime,
        settings: DashboardSettings,
        zenoh: ZenohSettings | None = None,
    ) -> None:
        """Raises UserError when the server cannot listen or a file cannot be used."""
        page, tls, tokens = read_page(), settings.tls(), open_tokens(settings.tokens)
        super().__init__(
            NAME, context=runtime.context, enable_rosout=False, start_parameter_services=False
        )
        # its subscriptions are polled; no executor spins it
        self._sources = SteadyClockNode(
            f'_lerobot_serve_dashboard_{os.getpid()}',
            context=runtime.context,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._settings, self._tokens = settings, tokens
        is_private = tls is not None or is_loopback_address(settings.address)
        self._document = FleetDocument(
            site_row(is_private=is_private), int(time.monotonic() * 1000)
        )
        self._recorder = FleetRecorder(self._document)
        self._threads = ThreadPoolExecutor(THREADS, 'request')
        self._explanations = Explanations(settings.trace_folder)
        self._captures = Captures(settings.capture_folder)
        feed = ZenohFeed(zenoh) if zenoh else None
        self._feeds = RobotFeeds(
            runtime.context,
            self._robot,
            lambda robot, heard: self.http.call(self._application.on_heard, robot, heard),
            feed,
        )
        self._parameters = ParameterReader(
            lambda: FleetClient(READ_LIMIT_S, node=self, operator=NAME)
        )
        self._poll = FleetPoll(
            FleetTopics(self._sources),
            self._recorder,
            self._parameters,
            lambda turn: self.http.call(self._application.on_turn, turn),
            lambda: self._application.viewer_count,
        )
        self._application = self._build_application(page, is_private, tls is not None)
        self.http = HttpServer(
            self._application, settings.address, settings.port, partial(_fail, runtime), tls
        )
        self.http.start()
        self._start_threads(runtime)
        print_address(settings, self.http.port, tokens, is_tls=tls is not None)

    def _build_application(self, page: Page, is_private: bool, is_tls: bool) -> Application:
        runner = CommandRunner(
            self._recorder,
            # of a person; any thread but the executor's
            lambda operator, limit_s: FleetClient(limit_s, node=self, operator=operator),
            self.get_logger().info,
            self._poll.deposit_outcome,
            self._poll.deposit_loading,
        )
        commands = CommandsRoute(
            self._tokens, runner.run, self._threads, is_private=is_private, is_tls=is_tls
        )
        sources = Sources(
            evidence=self._evidence,
            requests=self._feeds.requests,
            want_robots=self._feeds.want,
            explain=self._explain,
            captures=self._captures,
        )
        return Application(
            page,
            self._document.newest,
            host_names(self._settings),
            sources,
            commands,
            self._threads,
        )

    def _start_threads(self, runtime: NodeRuntime) -> None:
        runtime.on_close(self._explanations.close)
        runtime.on_close(self.http.close)
        runtime.on_close(partial(self._threads.shutdown, wait=False, cancel_futures=True))
        runtime.thread('poll', partial(self._poll.run, runtime.stop))
        runtime.thread('parameters', partial(self._parameters.run, runtime.stop))
        runtime.thread('robots', partial(self._feeds.run, runtime.stop), self._feeds.wake)

    def _robot(self, node: str) -> RobotView | None:
        """Return the newest state of a robot; None while it is not heard of. Thread `robots`."""
        with contextlib.suppress(UserError):
            robot = self._recorder.robot(node)
            return None if robot.is_silent else robot
        return None

    def _evidence(self, router: str) -> Json | None:
        found = self._recorder.evidence(router)
        return found.as_json() if found else None

    def _explain(self, number: str) -> Json | None:
        """Return the explanation and the captures of an incident. A thread of the pool; blocks."""
        place = self._recorder.incident_place(number)
        if place is None:
            return None
        return {
            'id': number,
            'explanation': self._explanations.explain(number, place),
            'captures': self._captures.of_incident(place),
        }

    def destroy_node(self) -> None:
        self._sources.destroy_node()
        super().destroy_node()


def _fail(runtime: NodeRuntime, error: Exception) -> None:
    """End the process with status 1: a page that is not served must not look alive."""
    traceback.print_exception(error)
    runtime.failure = runtime.failure or error
    runtime.stop_requested.set()


def site_row(*, is_private: bool) -> Json:
    """Return what the page shows about the dashboard itself."""
    return {
        'domain': int(os.environ.get('ROS_DOMAIN_ID') or 0),
        'host': socket.gethostname(),
        'version': __version__,
        'started': instant(),
        'can_act': is_private,
        'why_not': '' if is_private else NOT_PRIVATE,
    }


def host_names(settings: DashboardSettings) -> frozenset[str]:
    """Return the names under which the page is opened; addresses are always allowed."""
    own = ('localhost', socket.gethostname(), socket.getfqdn(), settings.address)
    return frozenset(name.lower() for name in (*own, *settings.host_name))


def print_address(settings: DashboardSettings, port: int, tokens: Tokens, *, is_tls: bool) -> None:
    """Print where the page is: with the token where only this person reads it."""
    host = f'[{settings.address}]' if ':' in settings.address else settings.address
    address = f'{"https" if is_tls else "http"}://{host}:{port}/'
    if settings.print_token or sys.stdout.isatty():
        name = tokens.names[0]
        print(f'{address}#token={tokens.token_of(name)}  (acts as {name})', flush=True)
    else:
        print(f'{address}  (tokens to act: {settings.tokens})', flush=True)
