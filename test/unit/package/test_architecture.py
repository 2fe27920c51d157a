# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: read from the source, so that a wrong import fails before it hurts."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.paths import REPOSITORY

# room -> the rooms it may import; node.py and files in a folder `ros` may also import ros
GROUND = {'arrays', 'contract', 'parameters', 'picture_headers', 'errors', 'trace', 'telemetry'}
GROUND |= {'atomic_file', 'child_process', 'files', 'private_file', 'state_folder'}
NODES = {'server', 'edge', 'router', 'sim', 'gateway', 'learner'}
ALLOWED = {
    'allocator': set(),
    'arrays': set(),
    'picture_headers': {'arrays'},
    'contract': {'arrays', 'picture_headers'},
    'parameters': set(),
    'files': {'parameters'},
    'errors': set(),
    'atomic_file': set(),
    'private_file': set(),
    'child_process': set(),
    'state_folder': {'errors', 'parameters', 'contract'},
    'shared_memory': set(),
    'quotas': {'parameters'},
    'requirements': set(),
    'entry_points': {'errors', 'shared_memory', 'requirements'},
    'access': {'errors', 'atomic_file', 'private_file'},
    'versions': {'errors', 'atomic_file', 'access', 'files'},
    'experience': {'atomic_file', 'versions', 'contract', 'files'},
    'cage': {'arrays'},
    'session': {'contract'},
    'peer_formats': {'arrays'},
    'policies': {
        *('arrays', 'child_process', 'contract', 'peer_formats', 'private_file', 'requirements'),
        *('access', 'errors', 'files', 'versions'),
    },
    'trace': {'arrays', 'contract', 'errors', 'parameters', 'atomic_file'},
    'telemetry': {'parameters', 'zenoh'},
    'local': {'contract', 'errors', 'parameters'},
    'zenoh': {'contract', 'local', 'parameters', 'errors', 'private_file'},
    'links': {'contract', 'local', 'parameters', 'zenoh'},
    # plain Python without ROS, installed alone
    'client': {
        *('allocator', 'arrays', 'contract', 'errors', 'access'),
        *('links', 'local', 'session', 'zenoh'),
    },
    'server': {*GROUND, 'local', 'policies', 'quotas', 'versions', 'zenoh'},
    'edge': {*GROUND, 'cage', 'links', 'local', 'session', 'zenoh'},
    'router': {*GROUND, 'cage', 'links', 'local', 'quotas', 'requirements', 'zenoh'},
    'gateway': {
        *GROUND,
        *('peer_formats', 'access', 'links', 'local', 'requirements', 'session', 'zenoh'),
    },
    'sim': {'arrays', 'contract', 'parameters', 'errors'},
    'learner': {*GROUND, 'experience', 'policies', 'requirements', 'versions'},
    'ros': {
        *('allocator', 'arrays', 'child_process', 'contract', 'parameters', 'errors'),
        *('shared_memory', 'entry_points', 'local', 'picture_headers', 'zenoh'),
    },
    # reads what the nodes wrote, and tries their parts before they run; no node imports it
    'tools': {
        *(*GROUND, *NODES, 'access', 'cage', 'entry_points', 'policies', 'requirements', 'ros'),
        'experience',
        'shared_memory',
        'versions',
        'zenoh',
    },
    'demo': {*GROUND, 'entry_points', 'policies', 'edge', 'router', 'ros', 'sim', 'tools'},
}
ALLOWED['cli'] = {*ALLOWED} - {'cli'}
# beside node.py and folders named ros; what starts nodes or talks to them in a process of its own
MAY_IMPORT_RCLPY = {'ros', 'demo', 'cli'}
TOOLS_WITH_ROS = {'tools/operate', 'tools/processes.py', 'tools/reference'}
MOST_MODULES = 12
# one file for each verb: a list that the user knows by name
LISTS = {'tools/cli/verbs'}
# room -> modules on its longest chain of imports
MOST_FLOORS = {'router': 11}
PACKAGE = REPOSITORY / 'lerobot_serve'
FILES = sorted(PACKAGE.rglob('*.py'))


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the full names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{file}: imports are absolute here'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return frozenset(names)


def named(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def room(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    # the command stands on top of all, the demo included
    return 'cli' if parts[:2] == ('tools', 'cli') else parts[0].removesuffix('.py')


def test_every_room_is_in_the_table():
    rooms = {room(file) for file in FILES} - {'__init__'}
    assert rooms == set(ALLOWED)


def test_imports_point_one_way():
    wrong = [f'{named(file)} imports {room}' for file in FILES for room in forbidden(file)]
    assert not wrong


def is_wiring(file: Path) -> bool:
    """Return whether a file connects its room to ROS."""
    return file.name == 'node.py' or 'ros' in file.relative_to(PACKAGE).parent.parts


def forbidden(file: Path) -> set[str]:
    """Return the rooms that a file imports and must not."""
    here = room(file)
    if here == '__init__':
        return set()
    allowed = ALLOWED[here] | {here} | ({'ros'} if is_wiring(file) else set())
    names = [name.split('.') for name in imported(file) if name.startswith('lerobot_serve.')]
    ours = {'cli' if parts[1:3] == ['tools', 'cli'] else parts[1] for parts in names}
    # every room may say of which version it is
    return ours - {'__version__'} - allowed


@cache
def needs() -> dict[str, frozenset[str]]:
    """Return the modules of the package, each with those that it imports."""
    names = {
        file: '.'.join(file.relative_to(PACKAGE.parent).with_suffix('').parts) for file in FILES
    }
    found = {}
    for file, name in names.items():
        wanted = imported(file)
        # `from a.b import c` means the module a.b.c or the name c of a.b
        known = {
            whole for whole in names.values() for w in wanted if f'{w}.'.startswith(f'{whole}.')
        }
        found[name] = frozenset(known - {name, 'lerobot_serve'})
    return found


def test_no_two_modules_need_each_other():
    TopologicalSorter(needs()).prepare()


def test_a_folder_holds_at_most_a_dozen_modules():
    counts = Counter(str(f.parent.relative_to(PACKAGE)) for f in FILES if f.stem != '__init__')
    crowded = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert set(crowded) == LISTS, crowded


@pytest.mark.parametrize(('room', 'most'), MOST_FLOORS.items())
def test_a_room_has_few_floors(room, most):
    """A module stands one floor above the highest one of its room that it imports."""
    inside = {
        name: {each for each in wanted if each.startswith(f'lerobot_serve.{room}.')}
        for name, wanted in needs().items()
        if name.startswith(f'lerobot_serve.{room}.')
    }
    floors: dict[str, int] = {}
    for name in TopologicalSorter(inside).static_order():
        floors[name] = 1 + max((floors[each] for each in inside[name]), default=0)
    highest = max(floors, key=floors.get)
    assert floors[highest] <= most, highest


def ours(folder: str) -> set[str]:
    """Return the modules of this package that the files of a folder import."""
    files = [file for file in FILES if named(file).startswith(f'{folder}/')]
    return {n for file in files for n in imported(file) if n.startswith('lerobot_serve.')}


def test_the_audit_shares_no_code_with_what_it_judges():
    rooms = ('tools.audit', 'tools.traces', 'tools.output', 'trace.format.records')
    own = tuple(f'lerobot_serve.{room}.' for room in rooms)
    assert not [name for name in ours('tools/audit') if not name.startswith(own)]
    below = ('lerobot_serve.tools.traces.', 'lerobot_serve.trace.format.')
    assert not [name for name in ours('tools/traces') if not name.startswith(below)]


def importing(*packages: str) -> list[Path]:
    """Return the files that import one of these packages."""
    return [file for file in FILES if {n.split('.')[0] for n in imported(file)} & {*packages}]


def test_only_the_wiring_knows_ros():
    knowing = [file for file in importing('rclpy') if not is_wiring(file)]
    others = [file for file in knowing if room(file) not in MAY_IMPORT_RCLPY]
    assert {'/'.join(file.relative_to(PACKAGE).parts[:2]) for file in others} <= TOOLS_WITH_ROS


def test_plain_modules_do_not_import_the_wiring_of_their_room():
    plain = [file for file in FILES if not is_wiring(file) and room(file) != 'ros']
    assert not [
        named(file)
        for file in plain
        for name in imported(file)
        if name.startswith('lerobot_serve.') and name.split('.')[2:3] == ['ros']
    ]


def test_the_package_imports_neither_benchmarks_nor_tests():
    assert not importing('benchmarks', 'support')


def test_only_policies_and_what_trains_them_import_torch():
    knowing = importing('torch', 'safetensors')
    others = {named(file) for file in knowing if room(file) != 'policies'}
    assert others == {'demo/train.py', 'learner/trainers/builtin.py'}


def test_nothing_unpickles():
    assert not importing('pickle', 'cloudpickle', 'dill', 'shelve', 'marshal')
    assert not [named(file) for file in FILES if 'torch.load(' in file.read_text()]


def test_unit_tests_do_not_import_ros():
    for file in (REPOSITORY / 'test' / 'unit').rglob('*.py'):
        names = imported(file)
        assert not {n for n in names if n.split('.')[0] == 'rclpy'}, file
