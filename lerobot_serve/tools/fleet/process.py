# SPDX-License-Identifier: Apache-2.0
"""
One process of a fleet, its command line, the order of their starts, what follows its end, and
its state folder. Plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
import hashlib
import json
from pathlib import Path
import re
from typing import Any

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError


class Stage(IntEnum):
    """Order of the start; the end is in the opposite order, so that robots come to rest first."""

    DASHBOARD = 0
    # ends after the robots, so that it has their last step
    RECORDER = 1
    SERVER = 2
    ROUTER = 3
    GATEWAY = 4
    SIMULATION = 5
    ROBOT = 6
    # of the learning loop: a conductor ends before what it steers
    LEARNER = 7
    LOOP = 8


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """
    One process: the name of its lines of output, its executable, namespace and parameters; one
    with a `command` is a verb of `lerobot-serve` with these words.
    """

    name: str
    stage: Stage
    executable: str
    namespace: str
    values: dict[str, Any]
    log_level: str = ''
    command: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The full name of the node; that of a verb is its own."""
        if self.command:
            return self.command[0]
        return f'/{self.namespace}/{self.executable}'.replace('//', '/')

    @property
    def arguments(self) -> list[str]:
        """The command line behind the executable."""
        if self.command:
            return list(self.command)
        return ros_arguments(
            self.executable, self.values, namespace=self.namespace, log_level=self.log_level
        )


LOG_LEVELS = ('debug', 'info', 'warn', 'error', 'fatal')
TOKEN = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')


def ros_arguments(
    executable: str,
    values: Mapping[str, Any],
    *,
    name: str = '',
    namespace: str = '',
    log_level: str = '',
) -> list[str]:
    """
    Return the arguments of an executable; nothing for a node with its defaults. `name` is empty
    for the name of the executable.
    """
    words = [word for key, value in values.items() for word in ('-p', f'{key}:={as_yaml(value)}')]
    if name:
        words += ['-r', f'__node:={name}']
    if namespace:
        words += ['-r', f'__ns:=/{namespace.strip("/")}']
    if log_level:
        # the logger of the node alone; those of the middleware print pages at debug
        logger = '.'.join([*filter(None, namespace.split('/')), name or executable])
        words += ['--log-level', f'{logger}:={log_level}']
    return ['--ros-args', *words] if words else []


def as_yaml(value: Any) -> str:
    """Return a value of a parameter as rcl reads it; a text stays a text, also one like `30`."""
    if isinstance(value, tuple | list):
        return f'[{", ".join(as_yaml(item) for item in value)}]'
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """
    Return a text as YAML in one line: JSON, with escapes for what YAML takes for a line end, such
    as U+2028, and for what does not print.
    """
    found = json.dumps(text, ensure_ascii=False)
    return ''.join(each if each.isprintable() else _escape(each) for each in found)


def _escape(character: str) -> str:
    code = ord(character)
    return f'\\u{code:04x}' if code < 1 << 16 else f'\\U{code:08x}'


def check_namespace(what: str, namespace: str) -> str:
    """Return the namespace without its outer slashes. Raises UserError."""
    inner = namespace.strip('/')
    if inner and not all(TOKEN.fullmatch(token) for token in inner.split('/')):
        raise UserError(
            f'{what} must be parts of letters, digits and _ with / between, such as cell_2 or '
            f'lab/cell_2, got {namespace!r}'
        )
    return inner


def check_token(what: str, name: str) -> str:
    """Return a name that ROS accepts as one part of a name. Raises UserError."""
    if not TOKEN.fullmatch(name):
        raise UserError(
            f'{what} must have letters, digits and _ only, and begin with a letter, got {name!r}'
        )
    return name


def check_log_level(what: str, level: str) -> str:
    """Return the level. Raises UserError."""
    if level not in LOG_LEVELS:
        raise UserError(f'{what} must be one of {", ".join(LOG_LEVELS)}, got {level!r}')
    return level


# an end within this time counts as a quick failure [s]; a policy may take half of it to load
QUICK_S = 60.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0


class Ending(Enum):
    """How a process ended."""

    # status 0: an operator stopped it
    IN_ORDER = 'in order'
    # a status: a mistake of the user, or an error
    FAILED = 'failed'
    # a signal: killed, out of memory, or a crash of native code
    KILLED = 'killed'


class Action(Enum):
    """What the supervisor does next with the process."""

    RESTART = 'restart'
    LEAVE = 'leave'
    GIVE_UP = 'give up'


# ending -> quick failures in a row after which the process is given up; None: never restarted
QUICK_FAILURES: dict[Ending, int | None] = {
    Ending.IN_ORDER: None,
    Ending.FAILED: 3,
    Ending.KILLED: 10,
}


@dataclass(frozen=True, slots=True)
class Reaction:
    """The action, the delay of a restart [s], and the quick failures in a row until now."""

    action: Action
    delay_s: float
    quick_failures: int


def ending_of(status: int) -> Ending:
    """Return how a process with this exit status ended; it is negative for a signal."""
    if status == 0:
        return Ending.IN_ORDER
    return Ending.KILLED if status < 0 else Ending.FAILED


def decide(status: int, ran_s: float, quick_failures: int) -> Reaction:
    """
    Return what follows the end of a process that ran for `ran_s`, after `quick_failures` in a row
    before this one.
    """
    limit = QUICK_FAILURES[ending_of(status)]
    if limit is None:
        return Reaction(Action.LEAVE, 0.0, 0)
    quick = quick_failures + 1 if ran_s < QUICK_S else 0
    if quick >= limit:
        return Reaction(Action.GIVE_UP, 0.0, quick)
    return Reaction(Action.RESTART, delay_s(quick), quick)


def delay_s(quick_failures: int) -> float:
    """Return the delay before a restart: doubled with each quick failure [s]."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** max(0, quick_failures - 1))


def with_own_state(
    plan: Iterable[FleetProcess], fleet: Path, home: Path
) -> tuple[FleetProcess, ...]:
    """
    Return the plan with a state folder below `home`, ROS_HOME, for a router and robots that name
    none. The default depends on the name of a node alone: the split, the rollout and the takeovers
    of another fleet of this machine would go on in this one.
    """
    path = str(fleet.absolute())
    digest = hashlib.blake2s(path.encode(), digest_size=4).hexdigest()
    folder = home / 'lerobot_serve' / 'fleets' / f'{file_name(fleet.stem)}-{digest}'
    return tuple(_with_state(each, folder) for each in plan)


def _with_state(process: FleetProcess, folder: Path) -> FleetProcess:
    if process.stage is Stage.ROBOT:
        folder = folder / 'robots' / file_name(process.name)
    elif process.stage is not Stage.ROUTER:
        return process
    return replace(process, values={'state_folder': str(folder), **process.values})
