# SPDX-License-Identifier: Apache-2.0
"""
Rewrite .ci/hashes.txt after a change of requirements.txt: `python3 .ci/hashes.py`.

Each line has a pin and the SHA-256 of its files as PyPI lists them, not a mirror: the wheels for
Linux and a supported Python, the source where there is none. A released file never changes, so a
line whose pin stays may gain hashes, and lose none. Needs only the standard library.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import json
from pathlib import Path
import re
import sys
from urllib.request import Request, urlopen

from machine import Problem, PYTHONS
import pins

INDEX = 'https://pypi.org/simple'
JSON = 'application/vnd.pypi.simple.v1+json'
TIMEOUT_S = 60.0
MINORS = range(PYTHONS[0][1], PYTHONS[1][1] + 1)
MINOR = '|'.join(map(str, MINORS))
# the end of the name of a wheel: Python, ABI, platform
WHEEL = re.compile(
    rf'-(?:(?:py2\.)?py3|py3(?:{MINOR})|cp3(?:{MINOR})|cp3\d+(?=-abi3))'
    rf'-(?:none|abi3|cp3(?:{MINOR}))-(?:any|\S*manylinux\S*_(?:x86_64|aarch64))\.whl$'
)


def main() -> None:
    text = (Path(__file__).parent.parent / 'requirements.txt').read_text()
    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(line, all_pins(text)))
    pins.HASHES.write_text(''.join(lines))
    print(f'wrote the hashes of {len(lines)} pins to {pins.HASHES}')


def all_pins(text: str) -> list[str]:
    """Return the pins of all sections, distributions and Python versions."""
    return sorted(
        {
            pins.without_extras(pin)
            for distro in ('jazzy', 'kilted')
            for minor in MINORS
            for section in pins.read(text, distro, f'3.{minor}').values()
            for pin in section
        }
    )


def line(pin: str) -> str:
    name, version = pin.split('==')
    with urlopen(Request(f'{INDEX}/{name}/', headers={'Accept': JSON}), timeout=TIMEOUT_S) as page:
        found = chosen(version, json.load(page)['files'])
    if not found:
        raise Problem(f'{INDEX}/{name}/ has no file of {pin} for Linux and a supported Python')
    return ' '.join([pin, *found]) + '\n'


def chosen(version: str, files: list[dict]) -> list[str]:
    """Return the hashes of the files of a version that can be installed here, sorted."""
    names = {file['filename']: file['hashes']['sha256'] for file in files}
    wheels = [name for name in names if f'-{version}-' in name and WHEEL.search(name)]
    sources = [name for name in names if name.endswith((f'-{version}.tar.gz', f'-{version}.zip'))]
    return sorted(names[name] for name in wheels or sources)


if __name__ == '__main__':
    try:
        main()
    except (Problem, OSError, ValueError) as error:
        sys.exit(f'error: {error}')
