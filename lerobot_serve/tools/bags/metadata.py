# SPDX-License-Identifier: Apache-2.0
"""
The file metadata.yaml of a bag folder, which `ros2 bag` requires, with QoS profiles and the
definitions of types. Any thread.

A definition is the .msg file of a type and those of all types it refers to, each after a line of
80 equals signs and its name; that of a service event, which has no file, is built from its .srv
file. With this text a reader can decode the messages of a bag without the packages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
import re
from typing import Any

import msgspec
from msgspec import Struct
import yaml

SECOND_NS = 10**9
# an unlimited duration in rmw [ns]
INFINITE_NS = (1 << 63) - 1


class Duration(Struct, frozen=True):
    """A duration as a bag has it."""

    sec: int
    nsec: int

    @classmethod
    def of_ns(cls, nanoseconds: int) -> Duration:
        return cls(*divmod(min(nanoseconds, INFINITE_NS), SECOND_NS))


INFINITE = Duration.of_ns(INFINITE_NS)


class OfferedProfile(Struct, frozen=True):
    """
    The profile of a publisher as a bag has it, in the terms of rmw: keep_last, reliable,
    transient_local.
    """

    history: str = 'keep_last'
    depth: int = 10
    reliability: str = 'reliable'
    durability: str = 'volatile'
    deadline: Duration = INFINITE
    lifespan: Duration = INFINITE
    liveliness: str = 'automatic'
    liveliness_lease_duration: Duration = INFINITE
    avoid_ros_namespace_conventions: bool = False


@lru_cache(maxsize=1024)
def profiles_as_yaml(profiles: tuple[OfferedProfile, ...]) -> str:
    """
    Return the profiles in the format of the channel of a bag; a recorder of episodes writes the
    same ones again for each of them.
    """
    return str(yaml.safe_dump(msgspec.to_builtins(profiles), sort_keys=False))


def profiles_from_yaml(text: str) -> tuple[OfferedProfile, ...]:
    """Return the profiles of a channel; the default one for a text that cannot be read."""
    try:
        return msgspec.convert(yaml.safe_load(text), tuple[OfferedProfile, ...])
    except (yaml.YAMLError, ValueError, msgspec.ValidationError):
        return (OfferedProfile(),)


METADATA_FILE = 'metadata.yaml'
METADATA_ROOT = 'rosbag2_bagfile_information'
# version of ROS 2 Jazzy
VERSION = 9


@dataclass(frozen=True, slots=True)
class BagTopic:
    """
    One topic of a bag; `encoding` and `definition` are the result of type_definition.
    """

    name: str
    type: str
    encoding: str = ''
    definition: str = ''
    profiles: tuple[OfferedProfile, ...] = field(default=(OfferedProfile(),))
    type_hash: str = ''


@dataclass(slots=True)
class BagContents:
    """The contents of a bag: topics, their message counts, and the period of reception."""

    topics: dict[str, BagTopic]
    counts: dict[str, int]
    first_ns: int | None = None
    last_ns: int = 0

    def add(self, topic: str, stamp_ns: int) -> None:
        """Count one message."""
        self.counts[topic] += 1
        self.first_ns = stamp_ns if self.first_ns is None else min(self.first_ns, stamp_ns)
        self.last_ns = max(self.last_ns, stamp_ns)

    @property
    def messages(self) -> int:
        return sum(self.counts.values())


def bag_information(contents: BagContents, files: Sequence[str], distro: str) -> dict[str, Any]:
    """Return the content of the file, without its root."""
    first_ns = contents.first_ns or 0
    times = {
        'duration': {'nanoseconds': max(0, contents.last_ns - first_ns)},
        'starting_time': {'nanoseconds_since_epoch': first_ns},
        'message_count': contents.messages,
    }
    topics = [_topic(topic, contents.counts[name]) for name, topic in contents.topics.items()]
    in_file = {
        'starting_time': times['starting_time'],
        'duration': times['duration'],
        'message_count': contents.messages,
    }
    return {
        'version': VERSION,
        'storage_identifier': 'mcap',
        **times,
        'topics_with_message_count': topics,
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': list(files),
        'files': [{'path': file, **in_file} for file in files],
        'custom_data': {},
        'ros_distro': distro,
    }


def as_yaml(content: dict[str, Any]) -> str:
    """Return the YAML without aliases, for readability."""
    return str(yaml.dump(content, Dumper=_PlainDumper, sort_keys=False))


# libyaml takes a sixth of the time; PyYAML may be built without it
_SafeDumper: Any = getattr(yaml, 'CSafeDumper', yaml.SafeDumper)


class _PlainDumper(_SafeDumper):  # type: ignore[misc] # PyYAML has no types
    def ignore_aliases(self, data: object) -> bool:
        return True


def _topic(topic: BagTopic, count: int) -> dict[str, Any]:
    return {
        'topic_metadata': {
            'name': topic.name,
            'type': topic.type,
            'serialization_format': 'cdr',
            'offered_qos_profiles': msgspec.to_builtins(topic.profiles),
            'type_description_hash': topic.type_hash,
        },
        'message_count': count,
    }


ENCODING = 'ros2msg'
UNKNOWN = 'unknown'
SEPARATOR = '=' * 80
# names of a service event and of its halves; names of messages have no underscore
EVENT = 'Event'
HALVES = ('Request', 'Response')
PRIMITIVE = frozenset(
    (
        *('bool', 'byte', 'char', 'string', 'wstring', 'float32', 'float64'),
        *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)),
    )
)
# type, bound of a string, array; name; a constant continues with =
FIELD = re.compile(
    r'\s*([A-Za-z][A-Za-z0-9_/]*)(<=\d+)?(\[[^\]]*\])?\s+[A-Za-z]\w*\s*(?P<rest>.*)'
)

FindShare = Callable[[str], Path]


def type_definition(type_name: str, find_share: FindShare) -> tuple[str, str]:
    """
    Return the encoding and the text of a type such as std_msgs/msg/String, or of the events of a
    service such as std_srvs/srv/Empty_Event.

    `find_share` returns the share folder of a package and raises LookupError if it is not
    installed. A missing type has the encoding UNKNOWN and no text.
    """
    try:
        package, _, name = type_name.split('/')
        return ENCODING, _full_definition(f'{package}/{name}', find_share)
    except (LookupError, ValueError, OSError):
        return UNKNOWN, ''


def _full_definition(root: str, find_share: FindShare) -> str:
    text = _read(root, find_share)
    parts, seen = [text], {root}
    # depth first: a type precedes the types it refers to
    waiting = referenced_types(text, root)[::-1]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = _read(name, find_share)
        parts.append(f'{SEPARATOR}\nMSG: {name}\n{text}')
        waiting += referenced_types(text, name)[::-1]
    return '\n'.join(parts)


def _read(name: str, find_share: FindShare) -> str:
    package, _, kind = name.partition('/')
    service, _, part = kind.rpartition('_')
    if part == EVENT:
        halves = [f'{service}_{half}[<=1] {half.lower()}\n' for half in HALVES]
        return ''.join(('service_msgs/ServiceEventInfo info\n', *halves))
    if part in HALVES:
        text = (find_share(package) / 'srv' / f'{service}.srv').read_text()
        return re.split(r'(?m)^---\s*$\n?', text, maxsplit=1)[HALVES.index(part)]
    return (find_share(package) / 'msg' / f'{kind}.msg').read_text()


def referenced_types(text: str, of: str) -> list[str]:
    """Return the types, as package/Name, of the fields of a .msg file; `of` is its own name."""
    names = set()
    for line in text.splitlines():
        match = FIELD.match(line.partition('#')[0])
        if match and match[1] not in PRIMITIVE and not match['rest'].startswith('='):
            package, _, kind = match[1].rpartition('/')
            package = package.partition('/')[0] or of.partition('/')[0]
            names.add(f'{package}/{kind}')
    return sorted(names)
