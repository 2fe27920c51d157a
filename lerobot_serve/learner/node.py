# SPDX-License-Identifier: Apache-2.0
"""
The node learner: wires the learner to ROS. It is off the path of actions.

The executor thread deposits announced episodes and states of the canary, and waits for the short
answer to a service; the thread `rounds` runs the learner and publishes. Work happens in child
processes of low priority.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
import socket
import time

from msgspec.structs import replace

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.types import Time
from lerobot_serve.errors import UserError
from lerobot_serve.experience.recorded_episode import decode_recorded
from lerobot_serve.learner.memory import Memory
from lerobot_serve.learner.metrics import collect
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.learner.rounds.learner import Learner
from lerobot_serve.learner.rounds.requests import Command
from lerobot_serve.learner.rounds.settings import LearnerSettings
from lerobot_serve.learner.step_process import StepProcess
from lerobot_serve.learner.trainers.trainer_file import BUILTIN, read_trainer_file
from lerobot_serve.learner.versions import announcement, canary_news
from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.node.trigger_services import create_trigger_services
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.state_folder import FolderLock, ros_home, state_path
from lerobot_serve.telemetry.http_endpoint import start_endpoint
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.manifest import read_manifest
from lerobot_serve.versions.store import VersionStore
from lerobot_serve_interfaces.msg import CanaryState, LearnerState, PolicyVersion, RecordedEpisode

NAME = 'learner'
VERSIONS_FOLDER = 'lerobot_serve/versions'


class LearnerNode(SteadyClockNode):
    """See the module. Built in the main thread."""

    sim_time_refusal = 'the schedule and the budget of a learner run on the steady clock'

    def __init__(self, runtime: NodeRuntime) -> None:
        """Raises UserError and ParameterError, before anything is announced."""
        super().__init__(NAME, context=runtime.context)
        parameters = NodeParameters(self, LearnerParameters)
        self._settings = learner_settings(parameters.current, self.get_fully_qualified_name())
        name = self.get_fully_qualified_name()
        self._lock = FolderLock(self._settings.folder, name, 'folder')
        if self._lock.fault:
            raise UserError(self._lock.fault)
        self._memory = Memory(self._settings.folder)
        self._check_parent()
        self._states = self.create_publisher(
            LearnerState, '~/state', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._versions = self.create_publisher(
            PolicyVersion, 'policy_versions', qos.VERSIONS, qos_overriding_options=qos.OVERRIDABLE
        )
        self.learner = Learner(
            self._settings,
            self._memory,
            StepProcess,
            self,
            time.monotonic,
        )
        parameters.on_change(self._on_change)
        self._subscribe(parameters.current)
        create_trigger_services(
            self,
            {each.value: partial(self.learner.requests.call, each) for each in Command},
        )
        self._endpoint = start_endpoint(
            parameters.current,
            lambda: collect(self.learner.shown, self.learner.ended),
            keys='',
            why_not_ready=str,
            why_not_alive=runtime.why_not_alive,
        )
        self._runtime = runtime
        runtime.on_started(self._start)

    def _check_parent(self) -> None:
        """Raise ParameterError when no round could ever begin."""
        if self._settings.parent is None and not self._memory.versions():
            raise ParameterError(
                'parent is empty and this learner has published no version yet; set it to a '
                'version of the store, or to the full path of the folder of a policy'
            )

    def _subscribe(self, parameters: LearnerParameters) -> None:
        self.create_subscription(
            RecordedEpisode,
            'recorded_episodes',
            self._on_episode,
            qos.RECORDED_EPISODES,
            raw=True,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        if parameters.router:
            self.create_subscription(
                CanaryState, f'{parameters.router}/canary', self._on_canary, qos.STATE, raw=True
            )

    # main thread, once the executor spins

    def _start(self) -> None:
        self._runtime.thread('rounds', self.learner.run, self.learner.stop)

    # executor thread

    def _on_episode(self, raw: bytes) -> None:
        try:
            self.learner.requests.put(decode_recorded(raw))
        except Malformed as error:
            self.learner.requests.put(error)

    def _on_canary(self, raw: bytes) -> None:
        try:
            news = canary_news(decode(records.CanaryState, raw))
        except Malformed as error:
            self.get_logger().warning(f'a state of the canary is refused: {error}')
            return
        if news:
            self.learner.requests.put(news)

    def _on_change(self, parameters: LearnerParameters) -> None:
        self.learner.live = parameters
        self.learner.requests.wake()

    # the thread `rounds`

    def on_state(self, shown: records.LearnerState) -> None:
        now = self.get_clock().now().to_msg()
        stamp, name = Time(now.sec, now.nanosec), self.get_fully_qualified_name()
        self._states.publish(encode(replace(shown, stamp=stamp, learner=name)))

    def on_version(self, version_id: str) -> None:
        folder = self._settings.store / version_id
        try:
            manifest = read_manifest(folder)
        except VersionError as error:
            self.get_logger().warning(f'{version_id} is not announced: {error}')
            return
        sources = str(self._settings.store), *self._settings.parameters.sources
        self._versions.publish(encode(announcement(manifest, sources)))

    def log_info(self, text: str) -> None:
        self.get_logger().info(text)

    def log_warning(self, text: str) -> None:
        self.get_logger().warning(text)

    def destroy_node(self) -> None:
        if self._endpoint:
            self._endpoint.close()
        self._lock.release()
        super().destroy_node()


def learner_settings(parameters: LearnerParameters, node: str) -> LearnerSettings:
    """Return what is fixed at start. Raises ParameterError, UserError."""
    if parameters.trainer != BUILTIN:
        read_trainer_file(Path(parameters.trainer))
    store = VersionStore.make(Path(parameters.store or ros_home() / VERSIONS_FOLDER).expanduser())
    return LearnerSettings(
        folder=state_path(parameters.folder, node),
        store=store.folder,
        host=socket.gethostname(),
        parent=parent_folder(parameters.parent, store),
        parameters=parameters,
    )


def parent_folder(given: str, store: VersionStore) -> Path | None:
    """Return the folder of the parameter `parent`; None for none. Raises ParameterError."""
    if not given:
        return None
    if given.startswith(('/', '~')):
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise ParameterError(f'parent must be a folder or a version, {folder} is not a folder')
        return folder
    try:
        return store.path(store.entry(given).id)
    except UserError as error:
        raise ParameterError(f'parent: {error}') from None


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `learner`."""
    return run(LearnerNode, arguments, NodeCommand(NAME, LearnerParameters))


if __name__ == '__main__':
    raise SystemExit(main())
