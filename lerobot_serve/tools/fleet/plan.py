# SPDX-License-Identifier: Apache-2.0
"""
Turn a fleet file into the processes to start, each with its checked parameters.

Reads policy folders, robot files and what is shipped by name only to find them. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from typing import Any

from lerobot_serve.contract.names import OVER_ROS
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.errors import UserError
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import build_parameters, parameter_specs, ParameterError
from lerobot_serve.ros_home import expanded
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.fleet.fleet_file import FleetFile, Place
from lerobot_serve.tools.fleet.parameter_file import flattened
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.fleet.ros_arguments import (
    check_log_level,
    check_namespace,
    check_token,
)
from lerobot_serve.tools.fleet.sections.dashboard import dashboard_process, read_folders
from lerobot_serve.tools.fleet.sections.learner import learner_values
from lerobot_serve.tools.fleet.sections.loop import loop_process
from lerobot_serve.tools.fleet.sections.recorder import recorder_process
from lerobot_serve.tools.fleet.shipped import policy_of, ROBOTS, shipped_or_path

__all__ = ['FleetProcess', 'Stage', 'fleet_plan']

SECTIONS = (
    *('servers', 'router', 'gateway', 'robots', 'dashboard', 'record', 'learner', 'loop'),
    *('namespace', 'log_level'),
)
SERVER_KEYS = ('policy', 'slot', 'replicas')
ROBOT_KEYS = ('robot', 'simulated', 'simulation', 'local')
LOCAL_KEYS = ('policy',)
SLOTS = ('prod', 'a', 'b', 'shadow')
PATHS = ('_file', '_keys', '_folder', '_root', '.mapping')
MOST_REPLICAS, MOST_ROBOTS = 64, 200
PARAMETERS: dict[str, type[Any]] = {
    'policy_server': ServerParameters,
    'policy_router': RouterParameters,
    'gateway': GatewayParameters,
    'sim_robot': SimParameters,
    'edge_controller': EdgeParameters,
    'learner': LearnerParameters,
}


@dataclass(frozen=True, slots=True)
class _Server:
    """One replica, before the router is known."""

    process: FleetProcess
    slot: str


def fleet_plan(file: FleetFile, folder: Path) -> tuple[FleetProcess, ...]:
    """
    Return the processes in the order of their start; paths are relative to `folder`. Raises
    UserError with the place in the file.
    """
    return _Planner(file, folder).plan()


class _Planner:
    """Builds the plan of one file."""

    def __init__(self, file: FleetFile, folder: Path) -> None:
        self._file, self._folder = file, folder
        file.check_keys((), file.content, SECTIONS)
        self._namespace = self._checked_text('namespace', check_namespace)
        self._log_level = self._checked_text('log_level', check_log_level)

    def plan(self) -> tuple[FleetProcess, ...]:
        servers = list(self._servers())
        router = self._router(servers) if 'router' in self._file.content else None
        names = [router.node] if router else [server.process.node for server in servers]
        robots = list(self._robots(names, router))
        processes = [server.process for server in servers]
        processes += [router] if router else []
        if 'gateway' in self._file.content:
            processes.append(self._gateway(names))
        processes += robots
        if 'dashboard' in self._file.content:
            folders = read_folders(processes)
            processes.append(dashboard_process(self._file, self._absolute, folders))
        if 'record' in self._file.content:
            processes.append(recorder_process(self._file, self._absolute, self._namespace))
        if 'learner' in self._file.content:
            processes.append(self._learner(processes))
        if 'loop' in self._file.content:
            processes.append(loop_process(self._file, self._absolute, processes, self._namespace))
        planned = tuple(sorted(processes, key=lambda process: process.stage))
        self._check_names(planned)
        return planned

    def _checked_text(self, key: str, check: Any) -> str:
        value = self._file.content.get(key)
        if value is None:
            return ''
        text = self._file.text((key,), value)
        try:
            return str(check(key, text))
        except UserError as error:
            raise self._file.error((key,), str(error)) from None

    def _check_names(self, planned: tuple[FleetProcess, ...]) -> None:
        if all(process.stage in (Stage.DASHBOARD, Stage.RECORDER) for process in planned):
            raise self._file.error((), 'names no process; add servers, router or robots')
        for name, count in Counter(process.name for process in planned).items():
            if count > 1:
                raise self._file.error((), f'{name} names {count} processes; rename one')

    # servers

    def _servers(self) -> Iterator[_Server]:
        section = self._file.section(('servers',), self._file.content.get('servers'))
        for name, given in section.items():
            place = ('servers', name)
            self._check_token(place, name)
            yield from self._replicas(place, name, self._file.section(place, given))

    def _replicas(self, place: Place, name: str, given: dict[str, Any]) -> Iterator[_Server]:
        values = self._values(place, given, 'policy_server', SERVER_KEYS, {'count': 'replicas'})
        slot = given.get('slot', 'prod')
        if slot not in SLOTS:
            raise self._file.error(
                (*place, 'slot'), f'must be one of {", ".join(SLOTS)}, got {slot!r}'
            )
        count = self._file.whole(
            (*place, 'replicas'), given.get('replicas', 1), low=1, high=MOST_REPLICAS
        )
        values = self._policy(place, given) | values
        # a shadow is a server beside the slots
        values['slot'] = 'prod' if slot == 'shadow' else slot
        for index in range(count):
            own = name if count == 1 else f'{name}_{index + 1}'
            process = self._process(
                place, own, Stage.SERVER, 'policy_server', own, _ports(values, index)
            )
            yield _Server(process, slot)

    def _policy(self, place: Place, given: dict[str, Any]) -> dict[str, Any]:
        if 'policy' not in given:
            if not ({'policy_path', 'policy_kind'} & given.keys()):
                raise self._file.error(place, 'has no policy; add `policy: FOLDER`')
            return {}
        here = (*place, 'policy')
        text = self._file.text(here, given['policy'])
        try:
            return dict(policy_of(text, self._folder))
        except UserError as error:
            raise self._file.error(here, str(error)) from None

    # the router

    def _router(self, servers: list[_Server]) -> FleetProcess:
        place = ('router',)
        given = self._file.section(place, self._file.content['router'])
        values = self._values(place, given, 'policy_router', ())
        return self._process(
            place, 'router', Stage.ROUTER, 'policy_router', '', self._slots(servers) | values
        )

    def _slots(self, servers: list[_Server]) -> dict[str, Any]:
        """Return the parameters of the router that name its servers."""
        by_slot: dict[str, list[str]] = {}
        for server in servers:
            by_slot.setdefault(server.slot, []).append(server.process.node)
        shadows = by_slot.pop('shadow', [])
        if len(shadows) > 1:
            raise self._file.error(('servers',), f'only one may have slot shadow, got {shadows}')
        if 'prod' in by_slot and len(by_slot) > 1:
            raise self._file.error(
                ('servers',),
                'slot prod serves all episodes, so none may have slot a or b; give all servers '
                'slot a or b',
            )
        if len(by_slot.keys() & {'a', 'b'}) == 1 and not self._names_slot(by_slot):
            missing = 'b' if 'a' in by_slot else 'a'
            raise self._file.error(
                ('servers',), f'none has slot {missing}; omit slot with one version of a policy'
            )
        slots = {f'slot_{slot}': tuple(names) for slot, names in by_slot.items()}
        return slots | ({'shadow_server': shadows[0]} if shadows else {})

    def _names_slot(self, by_slot: dict[str, list[str]]) -> bool:
        """Return whether the router itself names the servers of the slot that has none."""
        missing = 'slot_b' if 'a' in by_slot else 'slot_a'
        return missing in (self._file.content['router'] or {})

    # the learner

    def _learner(self, planned: list[FleetProcess]) -> FleetProcess:
        place = ('learner',)
        given = self._file.section(place, self._file.content['learner'])
        values = self._values(place, given, 'learner', ())
        values = learner_values(values, self._absolute, planned, self._namespace)
        return self._process(place, 'learner', Stage.LEARNER, 'learner', '', values)

    # the gateway

    def _gateway(self, servers: list[str]) -> FleetProcess:
        """Return the gateway; its callers reach the router of the file, or its only server."""
        place = ('gateway',)
        given = self._file.section(place, self._file.content['gateway'])
        values = self._values(place, given, 'gateway', ())
        if 'server' not in values and servers:
            if len(servers) > 1:
                raise self._file.error(
                    place,
                    f'reaches one server, and the file has {len(servers)} without a router; add '
                    '`router:`, or `server: /NAME/policy_server`',
                )
            values['server'] = servers[0]
        return self._process(place, 'gateway', Stage.GATEWAY, 'gateway', '', values)

    # robots

    def _robots(self, servers: list[str], router: FleetProcess | None) -> Iterator[FleetProcess]:
        section = self._file.section(('robots',), self._file.content.get('robots'))
        clients: dict[str, Place] = {}
        for index, (place, name, given) in enumerate(self._named_robots(section)):
            self._check_token(place, name)
            self._check_client_id(clients, place, name, given)
            yield from self._robot(place, name, given, index, servers, router)

    def _check_client_id(
        self, clients: dict[str, Place], place: Place, name: str, given: dict[str, Any]
    ) -> None:
        """Raise UserError for a client_id of two robots, which would end each other's sessions."""
        client_id = str(given.get('client_id') or name)
        here = (*place, 'client_id') if given.get('client_id') else place
        if before := clients.get(client_id):
            lines = f'{self._file.line(before)} and {self._file.line(here)}'
            raise self._file.error(
                here, f'{client_id} names two robots (lines {lines}); give each a client_id'
            )
        clients[client_id] = here

    def _named_robots(
        self, section: dict[str, Any]
    ) -> Iterator[tuple[Place, str, dict[str, Any]]]:
        """Yield place, name and keys of each robot, of both forms of the section."""
        if section.keys() & {'count', *ROBOT_KEYS}:
            given = {key: value for key, value in section.items() if key != 'count'}
            place = ('robots', 'count')
            count = self._file.whole(place, section.get('count', 1), low=1, high=MOST_ROBOTS)
            for index in range(count):
                yield ('robots',), f'robot_{index + 1}', given
            return
        for name, keys in section.items():
            yield ('robots', name), name, self._file.section(('robots', name), keys)

    def _robot(
        self,
        place: Place,
        name: str,
        given: dict[str, Any],
        index: int,
        servers: list[str],
        router: FleetProcess | None,
    ) -> Iterator[FleetProcess]:
        values = self._values(place, given, 'edge_controller', ROBOT_KEYS)
        if servers and 'servers' not in values:
            values['servers'] = tuple(servers)
        if 'local' in given:
            local = self._local(place, name, given, index)
            yield local
            # tried last, and left with the next episode that finds one before it
            values['servers'] = (*values.get('servers', ()), f'{OVER_ROS}{local.node}')
        if self._simulated(place, given):
            yield self._simulation(place, name, given, index, router)
        if 'robot' in given:
            values['robot_file'] = self._robot_file(place, given)
        yield self._process(
            place, name, Stage.ROBOT, 'edge_controller', name, _ports(values, index)
        )

    def _local(self, place: Place, name: str, given: dict[str, Any], index: int) -> FleetProcess:
        """Return the policy server of a robot of its own."""
        here = (*place, 'local')
        keys = self._file.section(here, given['local'])
        if 'slot' in keys:
            raise self._file.error((*here, 'slot'), 'is of servers of a router; remove it')
        values = self._policy(here, keys)
        values |= self._values(here, keys, 'policy_server', LOCAL_KEYS)
        return self._process(
            here, f'{name}.local', Stage.SERVER, 'policy_server', name, _ports(values, index)
        )

    def _simulated(self, place: Place, given: dict[str, Any]) -> bool:
        simulated = given.get('simulated', False)
        if not isinstance(simulated, bool):
            raise self._file.error(
                (*place, 'simulated'), f'must be true or false, got {simulated!r}'
            )
        if simulated and 'robot' in given:
            raise self._file.error(
                (*place, 'robot'), 'is of a real robot; remove it, or simulated: true'
            )
        if 'simulation' in given and not simulated:
            raise self._file.error((*place, 'simulation'), 'needs simulated: true')
        if not simulated and not given.keys() & {'robot', 'robot_file'}:
            raise self._file.error(
                place, 'has no robot; add `robot: FILE.yaml`, or `simulated: true`'
            )
        return simulated

    def _simulation(
        self,
        place: Place,
        name: str,
        given: dict[str, Any],
        index: int,
        router: FleetProcess | None,
    ) -> FleetProcess:
        here = (*place, 'simulation')
        values: dict[str, Any] = {'seed': index}
        if router:
            values['outcome_topic'] = f'{router.node}/outcome'
        keys = self._file.section(here, given.get('simulation'))
        values |= self._values(here, keys, 'sim_robot', ())
        return self._process(here, f'{name}.sim', Stage.SIMULATION, 'sim_robot', name, values)

    def _robot_file(self, place: Place, given: dict[str, Any]) -> str:
        here = (*place, 'robot')
        if 'robot_file' in given:
            raise self._file.error(here, 'and robot_file name one thing twice; remove one')
        text = self._file.text(here, given['robot'])
        try:
            return str(shipped_or_path('robot file', text, self._folder, ROBOTS))
        except UserError as error:
            raise self._file.error(here, str(error)) from None

    # of all

    def _check_token(self, place: Place, name: str) -> None:
        try:
            check_token('a name', name)
        except UserError as error:
            raise self._file.error(place, str(error)) from None

    def _values(
        self,
        place: Place,
        given: dict[str, Any],
        executable: str,
        own: tuple[str, ...],
        meant: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the parameters of a section, checked one by one. Raises UserError."""
        specs = {spec.name: spec for spec in parameter_specs(PARAMETERS[executable])}
        for key in given.keys() & (meant or {}).keys():
            raise self._file.error((*place, key), f'is not known here; did you mean {meant[key]}?')  # type: ignore[index]
        named = dict(flattened({k: v for k, v in given.items() if k not in own}))
        self._file.check_keys(place, named, [*own, *specs])
        values = {}
        for name, value in named.items():
            try:
                values[name] = self._absolute(name, specs[name].check(value))
            except ParameterError as error:
                here = (*place, *(name.split('.') if name not in given else [name]))
                raise self._file.error(here, str(error)) from None
        return values

    def _absolute(self, name: str, value: Any) -> Any:
        """Return the value; a relative path begins at the folder of the fleet file."""
        if not isinstance(value, str) or not value or not name.endswith(PATHS):
            return value
        try:
            # without `..`: a server compares policy_root with the path of its policy
            return normpath((self._folder / expanded(value)).absolute())
        except RuntimeError:
            # ~ of a user who does not exist
            raise ParameterError(f'{name} is no path of a user of this machine: {value}') from None

    def _process(
        self,
        place: Place,
        name: str,
        stage: Stage,
        executable: str,
        namespace: str,
        values: dict[str, Any],
    ) -> FleetProcess:
        """Return the process; its values are checked together. Raises UserError."""
        try:
            build_parameters(PARAMETERS[executable], values)
        except ParameterError as error:
            raise self._file.error(place, str(error)) from None
        inner = '/'.join(filter(None, [self._namespace, namespace]))
        return FleetProcess(name, stage, executable, inner, values, self._log_level)


def _ports(values: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the values of one of several equal processes: each has a metrics_port of its own."""
    port = values.get('metrics_port', 0)
    return {**values, 'metrics_port': port + index} if port else dict(values)
