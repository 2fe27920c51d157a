# SPDX-License-Identifier: Apache-2.0
"""Checks the traffic on the topics of a robot. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from lerobot_serve.tools.doctor.finding import failure, Finding, ok, warning

EDGE = 'edge_controller'
PAGE = 'docs/your_robot.md has a section on each controller'
INSPECT_HINT = 'see `ros2 topic list -t` and `ros2 topic info -v`'


@dataclass(frozen=True, slots=True)
class TopicEndpoint:
    """One publisher or subscription of another node; `mismatch` names incompatible QoS."""

    node: str
    type: str
    mismatch: str = ''


@dataclass(frozen=True, slots=True)
class InputTraffic:
    """
    One input of a robot: its publishers, the arrival times of messages, and the decode error of
    the newest one.
    """

    name: str
    topic: str
    type: str
    max_age_s: float
    publishers: tuple[TopicEndpoint, ...]
    arrivals_ns: tuple[int, ...]
    sampled_s: float
    decode_error: str = ''


@dataclass(frozen=True, slots=True)
class CommandTopic:
    """
    The topic of commands: its subscribers and its other publishers. `alternatives` are command
    topics with their types that have a subscriber, given when this topic has none.
    """

    topic: str
    type: str
    subscribers: tuple[TopicEndpoint, ...]
    publishers: tuple[str, ...]
    alternatives: tuple[tuple[str, str], ...] = ()


def check_input(traffic: InputTraffic) -> Finding:
    """Check that an edge controller can use this input."""
    if silent := _silent_input(traffic):
        return silent
    name, topic = traffic.name, traffic.topic
    if traffic.decode_error:
        return failure(
            name,
            f'messages on {topic} cannot be decoded: {traffic.decode_error}',
            'correct the names in the robot file, or the driver that publishes it',
        )
    gaps_s = [(after - before) / 1e9 for before, after in pairwise(traffic.arrivals_ns)]
    if not gaps_s:
        rate, longest_s = 'one message', traffic.sampled_s
    else:
        rate, longest_s = f'{len(gaps_s) / max(sum(gaps_s), 1e-9):.1f} Hz', max(gaps_s)
    found = f'{topic} ({traffic.type}): {rate}'
    if longest_s <= traffic.max_age_s:
        return ok(name, found)
    slow = not gaps_s or sum(gaps_s) / len(gaps_s) > traffic.max_age_s
    found += f', with {longest_s:.2f} s without a message; max_age_s is {traffic.max_age_s:g}'
    remedy = 'let its driver publish faster, or raise max_age_s of this input in the robot file'
    return failure(name, found, remedy) if slow else warning(name, found, remedy)


def _silent_input(traffic: InputTraffic) -> Finding | None:
    """Return a finding if no message arrived, else None."""
    name, topic = traffic.name, traffic.topic
    if traffic.arrivals_ns:
        return None
    if not traffic.publishers:
        return failure(
            name,
            f'no publisher on {topic} ({traffic.type})',
            'start the driver; give its namespace, if any, with --namespace; or correct '
            f'the topic in the robot file; {INSPECT_HINT}',
        )
    fitting = [end for end in traffic.publishers if end.type == traffic.type]
    if not fitting:
        kinds = ', '.join(sorted({end.type for end in traffic.publishers}))
        return failure(
            name,
            f'{topic} is published as {kinds}, the robot file has {traffic.type}',
            f'correct type in the robot file, or the topic; {INSPECT_HINT}',
        )
    mismatches = [end for end in fitting if end.mismatch]
    if len(mismatches) == len(fitting):
        end = mismatches[0]
        return failure(
            name,
            f'{topic}: the QoS of {end.node} does not match: {end.mismatch}',
            f'change the QoS of {end.node}, or ours with qos_overrides; {INSPECT_HINT}',
        )
    nodes = ', '.join(end.node for end in fitting)
    return failure(
        name,
        f'no message on {topic} in {traffic.sampled_s:.1f} s; published by {nodes}',
        f'check in the log of {nodes} that its hardware is on and the node is active; for a slow '
        'publisher use a longer --wait-s',
    )


def check_commands(commands: CommandTopic) -> list[Finding]:
    """Check that commands have a subscriber and no other publisher."""
    name = 'commands'
    fitting = [end for end in commands.subscribers if end.type == commands.type]
    ready = [end for end in fitting if not end.mismatch]
    if ready:
        nodes = ', '.join(end.node for end in ready)
        found = [ok(name, f'{commands.topic} ({commands.type}): subscribed by {nodes}')]
    elif fitting:
        end = fitting[0]
        how = f'change the QoS of {end.node}, or ours with qos_overrides; {INSPECT_HINT}'
        text = f'{commands.topic}: the QoS of {end.node} does not match: {end.mismatch}'
        found = [failure(name, text, how)]
    elif commands.subscribers:
        kinds = ', '.join(sorted({end.type for end in commands.subscribers}))
        text = f'{commands.topic} is subscribed as {kinds}, the robot file has {commands.type}'
        first = commands.subscribers[0].type
        how = f'set `type: {first}` of command in the robot file, or correct its topic; {PAGE}'
        found = [failure(name, text, how)]
    else:
        found = [_no_subscriber(name, commands)]
    other_publishers = [node for node in commands.publishers if node.rpartition('/')[2] != EDGE]
    if other_publishers:
        text = f'{", ".join(other_publishers)} also publishes {commands.topic}'
        how = 'stop it before the edge_controller starts: two nodes must not command one robot'
        found.append(warning('other command publishers', text, how))
    return found


def _no_subscriber(name: str, commands: CommandTopic) -> Finding:
    """Return the finding that commands have no subscriber, with the topics that have one."""
    text = f'no subscriber on {commands.topic} ({commands.type})'
    if not commands.alternatives:
        how = f'start the driver or controller; or correct topic of command; {INSPECT_HINT}'
        return failure(name, text, how)
    listed = ', '.join(f'{topic} ({kind})' for topic, kind in commands.alternatives)
    topic, kind = next(
        (each for each in commands.alternatives if each[1] == commands.type),
        commands.alternatives[0],
    )
    how = f'set `topic: {topic}` and `type: {kind}` of command if that is the controller; {PAGE}'
    return failure(name, f'{text}; command topics with a subscriber: {listed}', how)
