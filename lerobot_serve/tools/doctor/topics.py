"""What was heard on a robot's topics, judged. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from lerobot_serve.tools.doctor.finding import failure, Finding, ok, warning

EDGE = 'edge_controller'
PAGE = 'docs/your_robot.md has a section on each controller'
INSPECT_HINT = 'see `ros2 topic list -t` and `ros2 topic info -v`'


@dataclass(frozen=True, slots=True)
class TopicEndpoint:
    """One publisher or subscription of another node; `mismatch` is what its QoS forbids."""

    node: str
    type: str
    mismatch: str = ''


@dataclass(frozen=True, slots=True)
class InputTraffic:
    """
    One input of a robot: who publishes it, when messages came, and why the newest is of no use.
    """

    name: str
    topic: str
    type: str
    max_age_s: float
    publishers: tuple[TopicEndpoint, ...]
    arrivals_ns: tuple[int, ...]
    sampled_s: float
    trouble: str = ''


@dataclass(frozen=True, slots=True)
class CommandTopic:
    """
    The topic of commands: who takes them, and who else publishes there. `elsewhere` are topics and
    types of commands that are taken, where nobody takes these.
    """

    topic: str
    type: str
    takers: tuple[TopicEndpoint, ...]
    others: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()


def check_input(heard: InputTraffic) -> Finding:
    """Return whether an edge controller could use this input."""
    if trouble := _silent_input(heard):
        return trouble
    name, topic = heard.name, heard.topic
    if heard.trouble:
        return failure(
            name,
            f'a message on {topic} is of no use: {heard.trouble}',
            'correct the names in the robot file, or the driver that publishes it',
        )
    gaps_s = [(after - before) / 1e9 for before, after in pairwise(heard.arrivals_ns)]
    if not gaps_s:
        rate, longest_s = 'one message', heard.sampled_s
    else:
        rate, longest_s = f'{len(gaps_s) / max(sum(gaps_s), 1e-9):.1f} Hz', max(gaps_s)
    found = f'{topic} ({heard.type}): {rate}'
    if longest_s <= heard.max_age_s:
        return ok(name, found)
    slow = not gaps_s or sum(gaps_s) / len(gaps_s) > heard.max_age_s
    found += f', with {longest_s:.2f} s without a message; max_age_s is {heard.max_age_s:g}'
    remedy = 'let its driver publish faster, or raise max_age_s of this input in the robot file'
    return failure(name, found, remedy) if slow else warning(name, found, remedy)


def _silent_input(heard: InputTraffic) -> Finding | None:
    """Return why nothing came, None when something did."""
    name, topic = heard.name, heard.topic
    if heard.arrivals_ns:
        return None
    if not heard.publishers:
        return failure(
            name,
            f'nobody publishes {topic} ({heard.type})',
            'start the driver; where it has a namespace, give that with --namespace; or correct '
            f'the topic in the robot file; {INSPECT_HINT}',
        )
    fitting = [end for end in heard.publishers if end.type == heard.type]
    if not fitting:
        kinds = ', '.join(sorted({end.type for end in heard.publishers}))
        return failure(
            name,
            f'{topic} is published as {kinds}, the robot file says {heard.type}',
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
    who = ', '.join(end.node for end in fitting)
    return failure(
        name,
        f'{topic} is silent: {who} publishes it and sent nothing in {heard.sampled_s:.1f} s',
        f'look at the log of {who}: is its hardware on, is the node active? A slow one needs a '
        'longer --wait-s',
    )


def check_commands(told: CommandTopic) -> list[Finding]:
    """Return whether commands will arrive, and whether they are the only ones."""
    name = 'commands'
    fitting = [end for end in told.takers if end.type == told.type]
    ready = [end for end in fitting if not end.mismatch]
    if ready:
        who = ', '.join(end.node for end in ready)
        found = [ok(name, f'{told.topic} ({told.type}): taken by {who}')]
    elif fitting:
        end = fitting[0]
        how = f'change the QoS of {end.node}, or ours with qos_overrides; {INSPECT_HINT}'
        text = f'{told.topic}: the QoS of {end.node} does not match: {end.mismatch}'
        found = [failure(name, text, how)]
    elif told.takers:
        kinds = ', '.join(sorted({end.type for end in told.takers}))
        text = f'{told.topic} is taken as {kinds}, the robot file says {told.type}'
        first = told.takers[0].type
        how = f'set `type: {first}` of command in the robot file, or correct its topic; {PAGE}'
        found = [failure(name, text, how)]
    else:
        found = [_no_subscriber(name, told)]
    strangers = [node for node in told.others if node.rpartition('/')[2] != EDGE]
    if strangers:
        text = f'{", ".join(strangers)} also publishes {told.topic}'
        how = 'end it before the edge_controller starts: two would pull at one robot'
        found.append(warning('commands of others', text, how))
    return found


def _no_subscriber(name: str, told: CommandTopic) -> Finding:
    """Return that nobody takes the commands, and which topics of controllers there are."""
    text = f'nobody takes {told.topic} ({told.type})'
    if not told.elsewhere:
        how = f'start the driver or controller; or correct topic of command; {INSPECT_HINT}'
        return failure(name, text, how)
    taken = ', '.join(f'{topic} ({kind})' for topic, kind in told.elsewhere)
    topic, kind = next(
        (each for each in told.elsewhere if each[1] == told.type), told.elsewhere[0]
    )
    how = f'set `topic: {topic}` and `type: {kind}` of command if that is the controller; {PAGE}'
    return failure(name, f'{text}; commands are taken on {taken}', how)
