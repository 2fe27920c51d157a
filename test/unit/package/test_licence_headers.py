# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first line, below a shebang if it has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import REPOSITORY

HEADER = 'SPDX-License-Identifier: Apache-2.0'
FOLDERS = (
    *('.ci', 'benchmarks', 'examples', 'launch', 'lerobot_serve', 'lerobot_serve_interfaces'),
    *('resource', 'test', 'typings'),
)
# suffix or name of a file -> how a comment begins in it
MARKS = {
    **dict.fromkeys(('.py', '.pyi', '.sh', '.msg', '.srv', '.action', '.cmake'), '#'),
    **dict.fromkeys(('CMakeLists.txt', 'Makefile'), '#'),
    '.c': '//',
}


def source_files(top: Path) -> list[Path]:
    """Return the files that need a header, tracked or not."""
    files = [file for file in top.iterdir() if file.is_file()]
    files += [file for name in FOLDERS for file in (top / name).rglob('*') if file.is_file()]
    return sorted(file for file in files if '__pycache__' not in file.parts and comment_mark(file))


def comment_mark(file: Path) -> str:
    """Return how a comment begins in a file, '' where it needs no header."""
    mark = MARKS.get(file.suffix) or MARKS.get(file.name, '')
    if not mark and not file.suffix:
        with file.open('rb') as content:
            mark = '#' if content.read(2) == b'#!' else ''
    return mark


def has_header(file: Path) -> bool:
    lines = file.read_text().splitlines()
    first = lines[1:2] if lines and lines[0].startswith('#!') else lines[:1]
    return first == [f'{comment_mark(file)} {HEADER}']


def test_every_source_file_names_its_licence():
    files = source_files(REPOSITORY)
    assert {'node.py', 'Observation.msg', 'Makefile', 'run'} <= {file.name for file in files}
    assert not [str(file.relative_to(REPOSITORY)) for file in files if not has_header(file)]


def test_the_header_names_the_licence_of_the_package():
    licence = HEADER.rpartition(' ')[2]
    assert f'<license>{licence}</license>' in (REPOSITORY / 'package.xml').read_text()
    assert 'Apache License' in (REPOSITORY / 'LICENSE').read_text()


@pytest.mark.parametrize(
    ('name', 'content', 'good'),
    [
        ('a.py', f'# {HEADER}\n"""It."""\n', True),
        ('a.py', f'"""It."""\n# {HEADER}\n', False),
        ('a.py', '', False),
        ('a.msg', f'# {HEADER}\n', True),
        ('a.msg', '# SPDX-License-Identifier: MIT\n', False),
        ('a.c', f'// {HEADER}\nint a;\n', True),
        ('run', f'#!/usr/bin/env bash\n# {HEADER}\n', True),
        ('run', f'# {HEADER}\n#!/usr/bin/env bash\n', False),
    ],
)
def test_a_missing_or_misplaced_header_is_found(tmp_path, name, content, good):
    file = tmp_path / name
    file.write_text(content)
    assert has_header(file) == good


def test_data_needs_no_header(tmp_path):
    (tmp_path / 'lerobot_serve').write_text('')
    (tmp_path / 'edge.yaml').write_text('a: 1\n')
    assert source_files(tmp_path) == []
