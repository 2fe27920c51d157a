# SPDX-License-Identifier: Apache-2.0
"""
Build the documentation as a site with search: `python3 .ci/site.py`, after `make docs` wrote it.

Installs the section [docs] of requirements.txt into .workspace/site, away from the packages that
nodes run with, and runs mkdocs with mkdocs.yml into out/site. A link that leads nowhere fails.

Where npm is found, the pinned Mermaid comes with it, so that the diagrams of the site need no
network; elsewhere the browser loads Mermaid from the web. Needs only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tarfile

from machine import Problem
import pins

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / '.workspace' / 'site'
MERMAID = SITE / 'mermaid.js'


def main() -> None:
    (ROOT / '.workspace').mkdir(exist_ok=True)
    (ROOT / '.workspace' / 'COLCON_IGNORE').touch()
    requirements = (ROOT / 'requirements.txt').read_text()
    stamp = SITE / 'installed.txt'
    if not stamp.exists() or stamp.read_text() != requirements:
        install(requirements)
        fetch_mermaid(requirements)
        stamp.write_text(requirements)
    build = [SITE / 'bin' / 'mkdocs', 'build', '--quiet', '--site-dir', ROOT / 'out' / 'site']
    # the theme prints its maker's announcements at each build unless this is set
    environment = os.environ | {'NO_MKDOCS_2_WARNING': '1'}
    if subprocess.run(build, cwd=ROOT, env=environment).returncode:
        raise Problem('the site was not built; the lines above name page and link')
    print('wrote out/site/index.html')


def install(requirements: str) -> None:
    """Install the pins of [docs]; what they need in turn has the versions of other sections."""
    sections = pins.read(requirements, 'jazzy')
    others = [pin for name, lines in sections.items() if name != 'docs' for pin in lines]
    SITE.mkdir(parents=True, exist_ok=True)
    constraints = SITE / 'constraints.txt'
    # a constraint has no extras
    constraints.write_text('\n'.join(re.sub(r'\[.*?\]', '', pin) for pin in others))
    run(sys.executable, '-m', 'venv', SITE)
    run(SITE / 'bin' / 'pip', 'install', '--quiet', '-c', constraints, *sections['docs'])


def fetch_mermaid(requirements: str) -> None:
    """Fetch Mermaid with npm, which checks the archive against the registry."""
    version = re.search(r'^# npm: (\S+)$', requirements, re.MULTILINE)
    if version is None or shutil.which('npm') is None:
        return
    packed = run('npm', 'pack', '--silent', '--pack-destination', SITE, version[1]).split()[-1]
    with tarfile.open(SITE / packed) as archive:
        MERMAID.write_bytes(archive.extractfile('package/dist/mermaid.tiny.js').read())


def run(*command: object) -> str:
    """Return what a command prints. Raises Problem with its last lines."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise Problem('\n'.join((done.stdout + done.stderr).strip().splitlines()[-5:]))
    return done.stdout


if __name__ == '__main__':
    try:
        main()
    except Problem as problem:
        sys.exit(f'error: {problem}')
