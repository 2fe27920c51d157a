# SPDX-License-Identifier: Apache-2.0
"""
Turn a fleet file into the processes to start, each with its checked parameters.

Reads policy folders, robot files and what is shipped by name only to find them. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, UNSET, UnsetType

from lerobot_serve.contract.names import OVER_ROS
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.fleet.fleet_file import (
    flattened,
    FleetFile,
    Place,
    Section,
)
from lerobot_serve.tools.fleet.process import check_namespace, check_token, FleetProcess, Stage
from lerobot_serve.tools.fleet.sections import (
    dashboard_process,
    learner_values,
    LocalKeys,
    loop_process,
    NoKeys,
    recorder_process,
    RobotCount,
    RobotKeys,
    ServerKeys,
)
from lerobot_serve.tools.fleet.shipped import policy_of, ROBOTS, shipped_or_path

PATHS = ('_file', '_keys', '_folder', '_root', '.mapping')
# executable -> when it starts, and its parameters
NODES: dict[str, tuple[Stage, type[Any]]] = {
    'policy_server': (Stage.SERVER, ServerParameters),
    'policy_router': (Stage.ROUTER, RouterParameters),
    'gateway': (Stage.GATEWAY, GatewayParameters),
    'sim_robot': (Stage.SIMULATION, SimParameters),
    'edge_controller': (Stage.ROBOT, EdgeParameters),
    'learner': (Stage.LEARNER, LearnerParameters),
}
Group = dict[str, Any]
T = TypeVar('T', bound=Struct)
# one replica with its slot, before the router is known
Server = tuple[FleetProcess, str]


def fleet_plan(text: str, name: str, folder: Path) -> tuple[FleetProcess, ...]:
    """
    Return the processes of a fleet file in the order of their start; paths are relative to
    `folder`. Raises UserError with the place in the file, which is called `name`.
    """
    return _Planner(FleetFile(name, text, folder)).plan()


class _Planner:
    """Builds the plan of one file."""

    def __init__(self, file: FleetFile) -> None:
        self._file, self._sections = file, file.sections()
        with file.at(('namespace',)):
            self._namespace = check_namespace('namespace', self._sections.namespace or '')

    def plan(self) -> tuple[FleetProcess, ...]:
        file, sections = self._file, self._sections
        servers = list(self._servers())
        router = self._router(servers, sections.router) if sections.router is not UNSET else None
        names = [router.node] if router else [process.node for process, _ in servers]
        robots = list(self._robots(names, router))
        processes = [process for process, _ in servers]
        processes += [router] if router else []
        if sections.gateway is not UNSET:
            processes.append(self._gateway(names, sections.gateway))
        processes += robots
        if sections.dashboard is not UNSET:
            processes.append(dashboard_process(file, sections.dashboard, processes))
        if sections.record is not UNSET:
            processes.append(recorder_process(file, sections.record, self._namespace))
        if sections.learner is not UNSET:
            processes.append(self._learner(processes, sections.learner))
        if sections.loop is not UNSET:
            processes.append(loop_process(file, sections.loop, processes, self._namespace))
        planned = tuple(sorted(processes, key=lambda process: process.stage))
        self._check_names(planned)
        return planned

    def _check_names(self, planned: tuple[FleetProcess, ...]) -> None:
        if all(process.stage in (Stage.DASHBOARD, Stage.RECORDER) for process in planned):
            raise self._file.error((), 'names no process; add servers, router or robots')
        for name, count in Counter(process.name for process in planned).items():
            if count > 1:
                raise self._file.error((), f'{name} names {count} processes; rename one')

    # servers

    def _servers(self) -> Iterator[Server]:
        for name, given in (self._sections.servers or {}).items():
            place = ('servers', name)
            self._check_token(place, name)
            yield from self._replicas(place, name, given)

    def _replicas(self, place: Place, name: str, given: Group | None) -> Iterator[Server]:
        if 'count' in (given or ()):
            text = "unknown field 'count'; did you mean replicas?"
            raise self._file.error(place, text, ('count',))
        keys, values = self._values(place, given, 'policy_server', ServerKeys)
        values = self._policy(place, keys.policy, values) | values
        # a shadow is a server beside the slots
        values['slot'] = 'prod' if keys.slot == 'shadow' else keys.slot
        for index in range(keys.replicas):
            own = name if keys.replicas == 1 else f'{name}_{index + 1}'
            process = self._process(place, own, 'policy_server', own, _ports(values, index))
            yield process, keys.slot

    def _policy(self, place: Place, policy: str | UnsetType, values: Group) -> dict[str, str]:
        if policy is not UNSET:
            with self._file.at((*place, 'policy')):
                return policy_of(policy, self._file.folder)
        if not {'policy_path', 'policy_kind'} & values.keys():
            raise self._file.error(place, 'has no policy; add `policy: FOLDER`')
        return {}

    # the router

    def _router(self, servers: list[Server], given: Group | None) -> FleetProcess:
        place = ('router',)
        _, values = self._values(place, given, 'policy_router', NoKeys)
        values = self._slots(servers, given or {}) | values
        return self._process(place, 'router', 'policy_router', '', values)

    def _slots(self, servers: list[Server], given: Group) -> Group:
        """Return the parameters of the router, which has these, that name its servers."""
        by_slot: dict[str, list[str]] = {}
        for process, slot in servers:
            by_slot.setdefault(slot, []).append(process.node)
        shadows = by_slot.pop('shadow', [])
        if len(shadows) > 1:
            raise self._file.error(('servers',), f'only one may have slot shadow, got {shadows}')
        if 'prod' in by_slot and len(by_slot) > 1:
            raise self._file.error(
                ('servers',),
                'slot prod serves all episodes, so none may have slot a or b; give all servers '
                'slot a or b',
            )
        if len(by_slot.keys() & {'a', 'b'}) == 1:
            missing = 'b' if 'a' in by_slot else 'a'
            # the router itself may name the servers of the other slot
            if f'slot_{missing}' not in given:
                raise self._file.error(
                    ('servers',),
                    f'none has slot {missing}; omit slot with one version of a policy',
                )
        slots = {f'slot_{slot}': tuple(names) for slot, names in by_slot.items()}
        return slots | ({'shadow_server': shadows[0]} if shadows else {})

    # the learner

    def _learner(self, planned: list[FleetProcess], given: Group | None) -> FleetProcess:
        place = ('learner',)
        _, values = self._values(place, given, 'learner', NoKeys)
        values = learner_values(self._file, values, planned, self._namespace)
        return self._process(place, 'learner', 'learner', '', values)

    # the gateway

    def _gateway(self, servers: list[str], given: Group | None) -> FleetProcess:
        """Return the gateway; its callers reach the router of the file, or its only server."""
        place = ('gateway',)
        _, values = self._values(place, given, 'gateway', NoKeys)
        if 'server' not in values and servers:
            if len(servers) > 1:
                raise self._file.error(
                    place,
                    f'reaches one server, and the file has {len(servers)} without a router; add '
                    '`router:`, or `server: /NAME/policy_server`',
                )
            values['server'] = servers[0]
        return self._process(place, 'gateway', 'gateway', '', values)

    # robots

    def _robots(self, servers: list[str], router: FleetProcess | None) -> Iterator[FleetProcess]:
        clients: dict[str, Place] = {}
        for index, (place, name, given) in enumerate(self._named_robots()):
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

    def _named_robots(self) -> Iterator[tuple[Place, str, Group]]:
        """Yield place, name and keys of each robot, of both forms of the section."""
        place, section = ('robots',), self._sections.robots or {}
        if section.keys() & {'count', *RobotKeys.__struct_fields__}:
            given = {key: value for key, value in section.items() if key != 'count'}
            for index in range(self._file.load(RobotCount, section, place).count):
                yield place, f'robot_{index + 1}', given
            return
        for name, keys in self._file.load(dict[str, Section], section, place).items():
            yield ('robots', name), name, keys or {}

    def _robot(
        self,
        place: Place,
        name: str,
        given: Group,
        index: int,
        servers: list[str],
        router: FleetProcess | None,
    ) -> Iterator[FleetProcess]:
        keys, values = self._values(place, given, 'edge_controller', RobotKeys)
        self._check_robot(place, keys, values)
        if servers and 'servers' not in values:
            values['servers'] = tuple(servers)
        if keys.local is not UNSET:
            local = self._local(place, name, keys.local, index)
            yield local
            # tried last, and left with the next episode that finds one before it
            values['servers'] = (*values.get('servers', ()), f'{OVER_ROS}{local.node}')
        if keys.simulated:
            yield self._simulation(place, name, keys.simulation or {}, index, router)
        if keys.robot is not UNSET:
            with self._file.at((*place, 'robot')):
                file = shipped_or_path('robot file', keys.robot, self._file.folder, ROBOTS)
            values['robot_file'] = str(file)
        yield self._process(place, name, 'edge_controller', name, _ports(values, index))

    def _local(self, place: Place, name: str, given: Group | None, index: int) -> FleetProcess:
        """Return the policy server of a robot of its own."""
        here = (*place, 'local')
        if 'slot' in (given or ()):
            raise self._file.error((*here, 'slot'), 'is of servers of a router; remove it')
        keys, values = self._values(here, given, 'policy_server', LocalKeys)
        values = self._policy(here, keys.policy, values) | values
        return self._process(here, f'{name}.local', 'policy_server', name, _ports(values, index))

    def _check_robot(self, place: Place, keys: RobotKeys, values: Group) -> None:
        """Raise UserError for keys that do not fit together."""
        if keys.simulated and keys.robot:
            raise self._file.error(
                (*place, 'robot'), 'is of a real robot; remove it, or simulated: true'
            )
        if keys.simulation is not UNSET and not keys.simulated:
            raise self._file.error((*place, 'simulation'), 'needs simulated: true')
        if not (keys.simulated or keys.robot or 'robot_file' in values):
            raise self._file.error(
                place, 'has no robot; add `robot: FILE.yaml`, or `simulated: true`'
            )
        if keys.robot and 'robot_file' in values:
            raise self._file.error(
                (*place, 'robot'), 'and robot_file name one thing twice; remove one'
            )

    def _simulation(
        self, place: Place, name: str, given: Group, index: int, router: FleetProcess | None
    ) -> FleetProcess:
        here = (*place, 'simulation')
        values: Group = {'seed': index}
        if router:
            values['outcome_topic'] = f'{router.node}/outcome'
        values |= self._values(here, given, 'sim_robot', NoKeys)[1]
        return self._process(here, f'{name}.sim', 'sim_robot', name, values)

    # of all

    def _check_token(self, place: Place, name: str) -> None:
        with self._file.at(place):
            check_token('a name', name)

    def _values(
        self, place: Place, given: Group | None, executable: str, own: type[T]
    ) -> tuple[T, Group]:
        """Return the own keys of a section, and its parameters. Raises UserError."""
        keys = self._file.load(own, given, place)
        names = own.__struct_fields__
        specs = {spec.name: spec for spec in parameter_specs(NODES[executable][1])}
        rest = {key: value for key, value in (given or {}).items() if key not in names}
        values = {}
        for name, value in flattened(rest):
            key = tuple(name.split('.')) if name not in rest else (name,)
            if value == {} and any(spec.startswith(f'{name}.') for spec in specs):
                # a group without a parameter
                continue
            self._file.check_field(place, key, [*names, *specs])
            here = (*place, *key)
            with self._file.at(here):
                values[name] = specs[name].check(value)
            if name.endswith(PATHS) and values[name]:
                values[name] = self._file.path(here, values[name])
        return keys, values

    def _process(
        self,
        place: Place,
        name: str,
        executable: str,
        namespace: str,
        values: dict[str, Any],
    ) -> FleetProcess:
        """Return the process; its values are checked together. Raises UserError."""
        stage, kind = NODES[executable]
        with self._file.at(place):
            build_parameters(kind, values)
        inner = '/'.join(filter(None, [self._namespace, namespace]))
        return FleetProcess(name, stage, executable, inner, values, self._sections.log_level or '')


def _ports(values: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the values of one of several equal processes: each has a metrics_port of its own."""
    port = values.get('metrics_port', 0)
    return {**values, 'metrics_port': port + index} if port else dict(values)
