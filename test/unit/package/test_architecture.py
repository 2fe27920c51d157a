"""Who may import whom: read from the source, so that a wrong import fails before it hurts."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from support.paths import REPOSITORY

# room -> the rooms it may import; node.py files may also import ros
ALLOWED = {
    'wire': set(),
    'parameters': set(),
    'start': set(),
    'policies': {'wire'},
    'server': {'wire', 'policies', 'parameters', 'trace', 'telemetry'},
    'cage': set(),
    'trace': {'wire', 'parameters'},
    'telemetry': {'parameters'},
    'edge': {'wire', 'parameters', 'cage', 'trace', 'telemetry'},
    'router': {'wire', 'parameters', 'cage', 'trace', 'telemetry'},
    'sim': {'wire', 'parameters'},
    'bags': {'wire', 'trace'},
    'planning': {'parameters'},
    'replay': {'wire', 'parameters', 'policies', 'server', 'trace', 'bags'},
    'doctor': {'wire', 'parameters', 'start', 'cage', 'policies', 'server', 'edge'},
    'ros': {'wire', 'parameters', 'start'},
}
EVERYTHING = {'bench', 'cli', 'demo'}
MAY_IMPORT_RCLPY = {'ros', *EVERYTHING}
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
    return file.relative_to(PACKAGE).parts[0].removesuffix('.py')


def test_every_room_is_in_the_table():
    rooms = {room(file) for file in FILES} - {'__init__'}
    assert rooms == set(ALLOWED) | EVERYTHING


def test_imports_point_one_way():
    wrong = [f'{named(file)} imports {room}' for file in FILES for room in forbidden(file)]
    assert not wrong


def forbidden(file: Path) -> set[str]:
    """Return the rooms that a file imports and must not."""
    here = room(file)
    if here in EVERYTHING or here == '__init__':
        return set()
    allowed = ALLOWED[here] | {here} | ({'ros'} if file.name == 'node.py' else set())
    ours = {name.split('.')[1] for name in imported(file) if name.startswith('lerobot_serve.')}
    # every room may say of which version it is
    return ours - {'__version__'} - allowed


def test_no_two_modules_need_each_other():
    names = {
        file: '.'.join(file.relative_to(PACKAGE.parent).with_suffix('').parts) for file in FILES
    }
    needs = {}
    for file, name in names.items():
        wanted = imported(file)
        # `from a.b import c` means the module a.b.c or the name c of a.b
        known = {
            whole for whole in names.values() for w in wanted if f'{w}.'.startswith(f'{whole}.')
        }
        needs[name] = known - {name, 'lerobot_serve'}
    TopologicalSorter(needs).prepare()


def importing(*packages: str) -> list[Path]:
    """Return the files that import one of these packages."""
    return [file for file in FILES if {n.split('.')[0] for n in imported(file)} & {*packages}]


def test_only_the_wiring_knows_ros():
    knowing = [file for file in importing('rclpy') if file.name != 'node.py']
    assert not [named(file) for file in knowing if room(file) not in MAY_IMPORT_RCLPY]


def test_only_policies_import_torch():
    knowing = importing('torch', 'safetensors')
    allowed = [file for file in knowing if room(file) in {'policies', 'bench'}]
    assert {named(file) for file in set(knowing) - set(allowed)} == {'demo/train.py'}


def test_nothing_unpickles():
    assert not importing('pickle', 'cloudpickle', 'dill', 'shelve', 'marshal')
    assert not [named(file) for file in FILES if 'torch.load(' in file.read_text()]


def test_unit_tests_do_not_import_ros():
    for file in Path(__file__).parent.glob('*.py'):
        names = imported(file)
        assert not {n for n in names if n.split('.')[0] == 'rclpy'}, file
