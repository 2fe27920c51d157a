# SPDX-License-Identifier: Apache-2.0
"""Checks ROS, packages, middleware, shared memory and limits of a machine. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lerobot_serve.requirements import (
    BASE_PACKAGES,
    FOR_DATASETS,
    FOR_POLICIES,
    FROM_ROS,
    install_command,
    missing_from_ros,
)
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning
from lerobot_serve.tools.doctor.machine import FileSystemSpace, MachineFacts, PROFILE_VARIABLES

DISTRIBUTIONS = ('jazzy', 'kilted')
FOR_LEROBOT = ('lerobot', 'tokenizers', 'torchvision', 'transformers', *FOR_DATASETS)
# optional package -> what is missing without it
MISSING_EFFECTS = {
    'aiohttp': 'no dashboard, and a gateway without HTTP and openpi',
    'argcomplete': 'no shell completion of verbs and options',
    'cryptography': 'no keys for the Zenoh link can be made',
    'google': 'a gateway without the door of PolicyService',
    'grpc': 'a gateway without the doors of LeRobot and PolicyService',
    'grpc_health': 'a gateway without the door of PolicyService',
    'grpc_reflection': 'a gateway without the door of PolicyService',
    'huggingface_hub': 'policies of the Hugging Face hub cannot be downloaded',
    'lz4': 'bags cannot be recorded or read',
    'mcap': 'bags cannot be recorded or read',
    'msgpack': 'a gateway without the doors of openpi and GR00T',
    'onnxruntime': 'policy servers cannot run ONNX programs',
    'psycopg': 'the routers of a site cannot share one state (state_url)',
    'rerun': 'bags and robots cannot be shown in Rerun',
    'rich': 'the demo has no live view',
    'zmq': 'a gateway without the door of GR00T',
    'zenoh': 'no link over Zenoh (link:=zenoh)',
    'zstandard': 'bags cannot be recorded or read',
}
# 7400 + 250 ports per domain; Linux uses 32768 to 60999 for outgoing connections
DOMAIN_LIMIT, OUTGOING_DOMAINS = 232, range(102, 215)
RANGES = ('SUBNET', 'SYSTEM_DEFAULT')
MIB = 1 << 20
# of a command line that is shown
COMMAND_CHARS = 80
# sizes in the profile of this package: shared-memory segment of a node, socket buffers
SEGMENT_BYTES, BUFFER_BYTES = 8 * MIB, 4 * MIB
NODES_NEEDED, NODES_WANTED = 4, 16
FILES_NEEDED, FILES_WANTED = 256, 1024


@dataclass(frozen=True, slots=True)
class MiddlewareFacts:
    """
    Middleware of this process: `large_message_warning` when large messages may be lost, `error`
    when ROS did not start.
    """

    name: str = ''
    large_message_warning: str = ''
    error: str = ''


def check_environment(
    machine: MachineFacts, middleware: MiddlewareFacts, kind: str
) -> list[Finding]:
    """Run all checks; `kind` is that of the policy, empty without a policy."""
    return [
        ros(machine, middleware.error),
        *packages(machine.missing, kind),
        domain(machine.variables.get('ROS_DOMAIN_ID', '')),
        discovery(machine.variables),
        *middleware_findings(middleware),
        profile(machine),
        shared_memory(machine.shared_memory),
        receive_queues(machine.deaf),
        network_buffers(machine),
        open_files(machine),
    ]


def ros(machine: MachineFacts, error: str) -> Finding:
    name, distribution = 'ROS', machine.variables.get('ROS_DISTRO', '')
    source = 'source the setup.bash of ROS 2 and of this workspace'
    if missing := machine.missing.intersection(FROM_ROS):
        return failure(name, *missing_from_ros(missing))
    if error:
        return failure(name, f'ROS does not start: {error}', f'fix the error, or {source}')
    if not distribution:
        return warning(name, 'ROS starts, but ROS_DISTRO is not set', source)
    if distribution not in DISTRIBUTIONS:
        return warning(
            name,
            f'{distribution}; this package is tested with {" and ".join(DISTRIBUTIONS)}',
            f'install ROS 2 {DISTRIBUTIONS[0]}, or run `make test` with yours',
        )
    return ok(name, f'{distribution}, Python {machine.python}')


def packages(missing: frozenset[str], kind: str) -> list[Finding]:
    """Check the Python packages; a robot needs no torch."""
    needed = [*BASE_PACKAGES]
    needed += FOR_POLICIES if kind else ()
    needed += FOR_LEROBOT if kind == 'lerobot' else ()
    found = [
        failure(f'package {name}', 'is not installed here', install_command(name))
        for name in needed
        if name in missing
    ]
    found += [
        warning(f'package {name}', f'is missing: {lost}', install_command(name))
        for name, lost in MISSING_EFFECTS.items()
        if name in missing
    ]
    if found:
        return found
    without = sorted(missing - {*needed, *FROM_ROS})
    optional = f'; not installed, not needed here: {", ".join(without)}' if without else ''
    return [ok('packages', f'all required packages are installed{optional}')]


def domain(text: str) -> Finding:
    name = 'ROS_DOMAIN_ID'
    change = 'export ROS_DOMAIN_ID=N with an N from 0 to 101, the same on all machines'
    if not text:
        return ok(name, 'not set: domain 0, shared with all nodes on this network that set none')
    if not (text.isascii() and text.strip().isdigit()) or int(text) > DOMAIN_LIMIT:
        return failure(name, f'must be a number from 0 to {DOMAIN_LIMIT}, got {text!r}', change)
    if int(text) in OUTGOING_DOMAINS:
        return warning(
            name,
            f'{text}: the system also uses the ports of this domain for other connections',
            change,
        )
    return ok(name, text)


def discovery(variables: Mapping[str, str]) -> Finding:
    """Check whether nodes on other machines are discovered, in the order in which ROS decides."""
    name, reach = 'discovery', variables.get('ROS_AUTOMATIC_DISCOVERY_RANGE', '')
    peers = variables.get('ROS_STATIC_PEERS', '')
    ignored = ', and ROS_STATIC_PEERS is ignored' if peers else ''
    if variables.get('ROS_DISCOVERY_SERVER'):
        return discovery_server(variables)
    if variables.get('ROS_LOCALHOST_ONLY') == '1':
        return only_this_machine('ROS_LOCALHOST_ONLY', '1', ignored)
    if reach == 'OFF':
        return failure(
            name,
            f'ROS_AUTOMATIC_DISCOVERY_RANGE is OFF: nodes do not discover each other{ignored}',
            'unset ROS_AUTOMATIC_DISCOVERY_RANGE, or set it to LOCALHOST and list the machines in '
            'ROS_STATIC_PEERS',
        )
    if peers:
        return ok(name, f'static peers: {peers}')
    if reach == 'LOCALHOST':
        return only_this_machine('ROS_AUTOMATIC_DISCOVERY_RANGE', reach)
    if reach and reach not in RANGES:
        return warning(
            name,
            f'ROS_AUTOMATIC_DISCOVERY_RANGE is {reach!r}, which is not a valid value: ROS takes '
            'LOCALHOST',
            'set it to SUBNET, LOCALHOST or OFF, or unset it',
        )
    return ok(name, 'nodes in the same network are discovered')


def only_this_machine(variable: str, value: str, ignored: str = '') -> Finding:
    return warning(
        'discovery',
        f'{variable} is {value}: robots and servers on other machines are not discovered{ignored}',
        f'unset {variable}, unless all nodes run on this machine',
    )


def discovery_server(variables: Mapping[str, str]) -> Finding:
    """Check whether an operator sees all topics of a discovery server."""
    name, server = 'discovery', variables['ROS_DISCOVERY_SERVER']
    if variables.get('ROS_SUPER_CLIENT', '').upper() in ('TRUE', '1'):
        return ok(name, f'by the discovery server {server}')
    return warning(
        name,
        f'by the discovery server {server}, which reports only topics in use on this machine: '
        'record, doctor and rqt do not see the others',
        'export ROS_SUPER_CLIENT=TRUE on machines of operators',
    )


def middleware_findings(middleware: MiddlewareFacts) -> list[Finding]:
    """Check the middleware and its handling of large messages."""
    name, large = 'middleware', 'large messages'
    if middleware.error:
        return [skipped(name, 'ROS does not start'), skipped(large, 'ROS does not start')]
    if 'fastrtps' not in middleware.name:
        return [
            warning(
                name,
                middleware.large_message_warning or f'{middleware.name} is in use',
                'export RMW_IMPLEMENTATION=rmw_fastrtps_cpp on all machines, or measure yours: '
                'make bench in the source tree',
            ),
            skipped(large, f'unknown for {middleware.name}'),
        ]
    if middleware.large_message_warning:
        found, _, how = middleware.large_message_warning.partition('. ')
        use = (
            'use the Fast DDS profile of this package, config/fastdds.xml '
            '(config/fastdds_3.xml from Kilted on)'
        )
        return [ok(name, middleware.name), failure(large, found, how or use)]
    return [
        ok(name, middleware.name),
        ok(large, f'the shared-memory segment has {SEGMENT_BYTES // MIB} MiB or more'),
    ]


def profile(machine: MachineFacts) -> Finding:
    """Check the profile that Fast DDS reads; it ignores a missing file silently."""
    name = 'profile of Fast DDS'
    given = {
        key: machine.variables[key] for key in PROFILE_VARIABLES if machine.variables.get(key)
    }
    for variable, file in given.items():
        if file in machine.missing_profiles:
            return failure(
                name,
                f'{variable} names {file}, which cannot be read',
                f'unset {variable} to use the profile of this package, or correct the path',
            )
    if not given:
        return ok(name, 'of this package')
    return ok(name, ', '.join(f'{file} ({variable})' for variable, file in given.items()))


def shared_memory(space: FileSystemSpace | None) -> Finding:
    name = 'shared memory'
    enlarge = 'enlarge it: sudo mount -o remount,size=1G /dev/shm, or docker run --shm-size=1g'
    if space is None:
        return failure(name, 'there is no /dev/shm', 'mount it: docker run --shm-size=1g')
    if not space.writable:
        return failure(
            name, '/dev/shm cannot be written to', 'sudo chmod 1777 /dev/shm, or remount it'
        )
    nodes = space.free_bytes // SEGMENT_BYTES
    free, total = space.free_bytes // MIB, space.total_bytes // MIB
    found = f'{free} of {total} MiB are free, room for {nodes} nodes'
    clean = 'remove segments of ended processes: fastdds shm clean; or '
    if nodes < NODES_NEEDED:
        return failure(name, found, f'{clean}{enlarge}')
    if nodes < NODES_WANTED:
        return warning(name, found, f'{clean}{enlarge}')
    return ok(name, found)


def receive_queues(deaf: Mapping[int, str]) -> Finding:
    """Check that no process of this user is deaf."""
    name = 'receive queues'
    if not deaf:
        return ok(name, 'none is blocked')
    listed = '; '.join(f'{number}: {command[:COMMAND_CHARS]}' for number, command in deaf.items())
    return failure(
        name,
        f'processes hear nothing since one was killed that sent to them: {listed}',
        'start them again',
    )


def network_buffers(machine: MachineFacts) -> Finding:
    """Check that the kernel allows the buffers of the profile."""
    name = 'network buffers'
    limits = {
        'net.core.rmem_max': machine.receive_buffer_bytes,
        'net.core.wmem_max': machine.send_buffer_bytes,
    }
    known = {key: value for key, value in limits.items() if value is not None}
    small = {key: value for key, value in known.items() if value < BUFFER_BYTES}
    if small:
        values = ', '.join(f'{key} is {value}' for key, value in small.items())
        return warning(
            name,
            f'{values}: bursts of images from other machines are lost',
            f'sudo sysctl -w {" ".join(f"{key}={BUFFER_BYTES}" for key in small)}, and the same '
            'in /etc/sysctl.d; in a container, on its host',
        )
    if not known:
        return skipped(name, 'not available on this system')
    return ok(name, f'the kernel allows {BUFFER_BYTES // MIB} MiB and more')


def open_files(machine: MachineFacts) -> Finding:
    """Check the limit of open files; `ulimit -n`."""
    name, limit = 'open files', machine.open_files
    if limit is None:
        return ok(name, 'no limit')
    most = machine.open_files_allowed
    raised = FILES_WANTED if most is None else max(FILES_WANTED, min(most, 65536))
    how = f'ulimit -n {raised}; for services LimitNOFILE={raised} in the unit of systemd'
    found = f'{limit} open files allowed (ulimit -n)'
    if limit < FILES_NEEDED:
        return failure(name, found, how)
    if limit < FILES_WANTED:
        return warning(name, f'{found}; a router of a fleet needs more', how)
    return ok(name, found)
