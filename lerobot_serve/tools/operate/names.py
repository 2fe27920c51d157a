# SPDX-License-Identifier: Apache-2.0
"""Resolve the names that operators give to nodes, slots and policies. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import getpass
import os
import re
import socket

from lerobot_serve.contract.records import SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import closest_name
from lerobot_serve.tools.operate.fleet_state import age_text, RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached, WITHOUT_ROUTER

SHOWN_NAMES = 12
SLOT_PREFIX = re.compile('^slot[ _-]?', re.IGNORECASE)
DIGITS = re.compile(r'\d+')


def operator_name() -> str:
    """Return user@host of this process, which is stored with each decision."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # a container without an entry for its user
        user = f'uid{os.getuid()}'
    return f'{user}@{socket.gethostname()}'


def resolve_router(given: str, found: Sequence[str], known: Mapping[str, float]) -> str:
    """
    Return the full name of the router: the only one, or the given one. `known` are those that were
    found before, with the age of that [s]. Raises UserError for none, several or a wrong name.
    """
    missing = {
        name: age_s
        for name, age_s in known.items()
        if name not in found and (not found if not given else name.strip('/') == given.strip('/'))
    }
    if missing:
        raise NotReached(_missing_text(missing))
    if not found:
        raise UserError(
            'no router is found: check that it runs and does not hang, and that ROS_DOMAIN_ID is '
            'the same here and there; `lerobot-serve doctor` checks this machine'
        )
    if given:
        return _resolve(given, {name.strip('/'): name for name in found}, 'router')
    if len(found) > 1:
        raise UserError(f'{len(found)} routers run; add --router with one of {listed(found)}')
    return found[0]


def _missing_text(missing: Mapping[str, float]) -> str:
    """Return which routers do not answer any more, and what holds meanwhile."""
    named = ', '.join(f'{name} answered until {age_text(missing[name])} ago' for name in missing)
    return f'{named}: it hangs, was killed, or its link is cut. {WITHOUT_ROUTER}'


def resolve_robot(given: str, found: Sequence[RobotView]) -> RobotView:
    """
    Return the robot of a name: `robot_7`, `/robot_7/edge_controller` or its client_id. Raises
    UserError for none, a wrong name, or one that several robots have.
    """
    if not found:
        raise UserError(
            'no robot is found: check that its edge_controller runs, and that ROS_DOMAIN_ID is '
            'the same here and there'
        )
    named: dict[str, dict[str, RobotView]] = {}
    for robot in found:
        for name in filter(None, (robot.node.strip('/'), robot.edge.client_id, robot.name)):
            named.setdefault(name, {})[robot.node] = robot
    name = _resolve(given, {each: each for each in named}, 'robot', [r.name for r in found])
    if len(named[name]) > 1:
        raise UserError(
            f'{given!r} is the name of several robots; give one of {listed(sorted(named[name]))}'
        )
    return next(iter(named[name].values()))


def resolve_slot(given: str, router: RouterView) -> SlotState:
    """Return the slot of a name. Raises UserError for one that the router does not have."""
    slot = router.slot(given)
    if slot is None:
        names = [each.slot for each in router.state.slots]
        near = nearest_name(SLOT_PREFIX.sub('', given), names)
        hint = f'did you mean {near}? ' if near else ''
        raise UserError(f'{router.name} has no slot {given!r}; {hint}it has {listed(names)}')
    return slot


def check_policy(given: str, slot: SlotState) -> str:
    """
    Return the fingerprint of the policy of a slot when `given` is its name, a prefix of its hash
    or the fingerprint itself. Raises UserError.
    """
    name, _, policy_hash = slot.policy.partition('@')
    if not slot.policy:
        raise UserError(f'slot {slot.slot} serves no policy yet: {slot.text or "no status"}')
    if given in (name, slot.policy) or (given and policy_hash.startswith(given)):
        return slot.policy
    if given and slot.policy.startswith(given) and '@' in given:
        return slot.policy
    hint = f'did you mean {name}? ' if closest_name(given, [name]) else ''
    raise UserError(
        f'slot {slot.slot} serves {slot.policy}, not {given!r}; {hint}to load another policy, '
        'give its directory, with a /'
    )


def nearest_name(name: str, known: Iterable[str]) -> str:
    """
    Return the known name that may be meant, empty for none. Case does not count, and a name that
    differs in its number is another robot: robot_9 is not robot_3.
    """
    known = list(known)
    same = [each for each in known if each.lower() == name.lower()]
    if same:
        return same[0]
    numbers = DIGITS.findall(name)
    alike = [each for each in known if not numbers or DIGITS.findall(each) in ([], numbers)]
    return closest_name(name, alike)


def _resolve(
    given: str, known: dict[str, str], what: str, shown: Iterable[str] | None = None
) -> str:
    """Return the value of the name. Raises UserError with the nearest right name."""
    name = given.strip('/')
    if name in known:
        return known[name]
    near = nearest_name(name, known)
    hint = f'did you mean {near}? ' if near else ''
    names = sorted(shown if shown is not None else known, key=natural_order)
    raise UserError(f'no {what} is named {given!r}; {hint}found: {listed(names)}')


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return the sort key by which robot_2 comes before robot_10."""
    parts = re.split(r'(\d+)', name)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def listed(names: Sequence[str]) -> str:
    """Return the first SHOWN_NAMES names, and how many more there are."""
    more = f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''
    return ', '.join(names[:SHOWN_NAMES]) + more
