# SPDX-License-Identifier: Apache-2.0
"""
Find the verbs of installed packages, entry points of the group `lerobot_serve.verbs`, and list
them by what they are for.

A verb is a module with HELP, EXAMPLE, add_arguments(parser) and main(options) -> exit status; slow
imports are inside these functions. `importlib.metadata` would parse every installed package, which
takes longer than the rest of `lerobot-serve --help`; this module only parses files that name the
group. Any thread.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from importlib import import_module
from operator import attrgetter
import os
import re
import shutil
import sys
import textwrap
from typing import cast, NamedTuple, Protocol

OWN_PACKAGE = 'lerobot_serve'
GROUP = 'lerobot_serve.verbs'
SECTION = re.compile(rf'^\[{re.escape(GROUP)}\]\s*$(.*?)(?=^\[|\Z)', re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r'^([a-z][a-z0-9_-]*)\s*=\s*([\w.]+)(?::([\w.]+))?\s*$', re.MULTILINE)
ERROR_LIMIT = 200


class Verb(Protocol):
    """A module, or an object in it. One that runs a node has `HOLDS_SIGNALS = True`."""

    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def main(self, options: Namespace) -> int: ...


class BrokenVerb(Exception):
    """A verb that cannot be used; the text is one line with package and reason."""


class VerbEntry(NamedTuple):
    """One entry point: name of the verb, its module, the package, and an object in the module."""

    name: str
    module: str
    package: str
    attribute: str = ''

    def load(self) -> Verb:
        """Return the verb. Raises BrokenVerb; ModuleNotFoundError within this package."""
        try:
            verb: object = import_module(self.module)
            verb = attrgetter(self.attribute)(verb) if self.attribute else verb
        except Exception as error:
            # code of another package may raise any error
            if self.package == OWN_PACKAGE and isinstance(error, ModuleNotFoundError):
                raise
            raise self._broken(f'{type(error).__name__}: {error}') from error
        missing = [name for name in ('HELP', 'add_arguments', 'main') if not hasattr(verb, name)]
        if missing:
            raise self._broken(f'{self.module} has no {missing[0]}')
        return cast(Verb, verb)

    def _broken(self, reason: str) -> BrokenVerb:
        shown = ' '.join(reason.split())[:ERROR_LIMIT]
        return BrokenVerb(f'verb {self.name!r} of package {self.package} is broken: {shown}')


def installed_verbs() -> dict[str, VerbEntry]:
    """
    Return the verbs by name. Those of this package take precedence, then the first on sys.path.
    """
    verbs: dict[str, VerbEntry] = {}
    for entry in _entries():
        known = verbs.get(entry.name)
        if known is None or (entry.package == OWN_PACKAGE != known.package):
            verbs[entry.name] = entry
    return dict(sorted(verbs.items()))


def _entries() -> Iterator[VerbEntry]:
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or '.'))
        except OSError:
            continue
        for name in names:
            if name.endswith(('.dist-info', '.egg-info')):
                package = name.removesuffix('.egg-info').partition('-')[0]
                yield from _entries_of(f'{folder or "."}/{name}', package)


def _entries_of(info: str, package: str) -> Iterator[VerbEntry]:
    try:
        with open(f'{info}/entry_points.txt', 'rb') as file:
            content = file.read()
    except OSError:
        return
    if GROUP.encode() not in content:
        return
    if section := SECTION.search(content.decode(errors='replace')):
        for entry in ENTRY.finditer(section[1]):
            yield VerbEntry(entry[1], entry[2], package, entry[3] or '')


# the verbs of other packages, and those of this one that no topic names
OTHERS = 'further verbs'
TOPICS = {
    'start nodes': ('up', 'serve', 'edge', 'router', 'gateway', 'learner'),
    'see the fleet': ('robots', 'dashboard', 'rerun', 'route'),
    'steer the fleet': ('rollout', 'split', 'drain', 'restore', 'robot', 'outcome'),
    'records': ('record', 'dataset', 'stats', 'diagnose', 'audit', 'replay'),
    'policies': ('versions', 'gate', 'swap', 'loop'),
    'prepare and check': ('demo', 'plan', 'doctor', 'link', 'keys', 'docs'),
}
# argparse indents the lines of a group by 2 and keeps 2 columns free
COLUMN, LEAST_WIDTH, INDENT = 12, 40, 4


def listed_by_topic(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each topic with the lines of its verbs; `texts` has what each verb does."""
    named = {name for names in TOPICS.values() for name in names}
    others = {OTHERS: tuple(name for name in texts if name not in named)}
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns - INDENT)
    for topic, names in {**TOPICS, **others}.items():
        lines = [_line(name, texts[name], width) for name in names if name in texts]
        if lines:
            yield topic, '\n'.join(lines)


def _line(name: str, text: str, width: int) -> str:
    indent = ' ' * COLUMN
    wrapped = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
    if len(name) >= COLUMN - 1:
        return f'{name}\n{wrapped}'
    return name.ljust(COLUMN) + wrapped.lstrip()
