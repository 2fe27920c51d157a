# SPDX-License-Identifier: Apache-2.0
"""
Reading requirements.txt: one pip file that serves several distributions and Python versions.

A comment names where it holds: a distribution (`kilted`), or a Python version and all later ones
(`py3.12`). hashes.txt has the files of each pin.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import re
import sys

HASHES = Path(__file__).with_name('hashes.txt')

# the Python that reads
RUNNING = f'{sys.version_info[0]}.{sys.version_info[1]}'

MARK = r'jazzy|kilted|py3\.\d+'
OTHER = re.compile(rf'({MARK}): ([\w.]+)')
MORE = re.compile(rf'# ({MARK}) also: (\S+)$')


def read(text: str, distro: str, python: str = RUNNING) -> dict[str, list[str]]:
    """
    Return the pins of each section, for one distribution and one Python, for example '3.12';
    the running one if none is given.

    Raises ValueError for a line on which two comments hold.
    """
    sections: dict[str, list[str]] = {}
    pins: list[str] = []
    for line in text.splitlines():
        header = re.match(r'# \[(\w+)\]', line)
        more = MORE.match(line)
        if header:
            pins = sections.setdefault(header[1], [])
        elif more:
            pins += [more[2]] if holds(more[1], distro, python) else []
        elif line and not line.startswith('#'):
            pins.append(pin_of(line, distro, python))
    return sections


def pin_of(line: str, distro: str, python: str) -> str:
    """Return the pin of a line, in the version that its comment gives. Raises ValueError."""
    pin, _, comment = line.partition('#')
    others = [found[1] for found in OTHER.findall(comment) if holds(found[0], distro, python)]
    if len(others) > 1:
        raise ValueError(f'two versions hold for {distro} and Python {python}: {line}')
    return re.sub(r'==.*', f'=={others[0]}', pin.strip()) if others else pin.strip()


def holds(mark: str, distro: str, python: str) -> bool:
    """Return whether what a mark names is installed for."""
    if not mark.startswith('py'):
        return mark == distro
    return minor(python) >= minor(mark.removeprefix('py'))


def minor(python: str) -> int:
    return int(python.split('.')[1])


def without_extras(pin: str) -> str:
    return re.sub(r'\[.*?\]', '', pin)


def are_hashed() -> bool:
    """Return whether pip takes only files whose hash is known, as it does without HASHES=none."""
    return os.environ.get('HASHES') != 'none'


def arguments(pins: Sequence[str], file: Path) -> list[str]:
    """
    Return what makes `pip install` take these pins and nothing else. Writes `file`, where pip
    finds them with their hashes.
    """
    lines = HASHES.read_text().splitlines() if are_hashed() else []
    known = {pin: hashes for pin, *hashes in map(str.split, lines)}
    wanted = [' --hash=sha256:'.join([pin, *known.get(without_extras(pin), [])]) for pin in pins]
    file.write_text('\n'.join(wanted) + '\n')
    # pip would fetch the tools of a build in isolation without hashes
    checked = ['--require-hashes', '--no-build-isolation'] if are_hashed() else []
    return ['--no-deps', *checked, '--requirement', str(file)]
