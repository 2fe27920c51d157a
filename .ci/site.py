# SPDX-License-Identifier: Apache-2.0
"""
Build the documentation as a site with search: `python3 .ci/site.py`, after `make docs` wrote it.

Installs the section [docs] of requirements.txt into .workspace/site, away from the packages that
nodes run with, and runs mkdocs with mkdocs.yml into out/site. A link that leads nowhere fails.

Where npm is found, the pinned scripts come with it, so that diagrams and the search from the disk
need no network; elsewhere the browser loads them from the web. Needs only the standard library.
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
# what the packages of [docs] need of other sections
NEEDED = {
    *('Jinja2', 'MarkupSafe', 'PyYAML', 'Pygments', 'certifi', 'charset-normalizer', 'idna'),
    *('mergedeep', 'packaging', 'pathspec', 'python-dateutil', 'requests', 'six', 'urllib3'),
}
# file of a package of npm -> name of the script
SCRIPTS = {
    'package/dist/mermaid.tiny.js': 'mermaid.js',
    'package/shim/index.js': 'iframe-worker.js',
}


def main() -> None:
    (ROOT / '.workspace').mkdir(exist_ok=True)
    (ROOT / '.workspace' / 'COLCON_IGNORE').touch()
    requirements = (ROOT / 'requirements.txt').read_text()
    stamp = SITE / 'installed.txt'
    # what was installed unchecked is not taken for checked later
    wanted = f'{requirements}# hashed: {pins.are_hashed()}\n'
    if not stamp.exists() or stamp.read_text() != wanted:
        install(requirements)
        fetch_scripts(requirements)
        stamp.write_text(wanted)
    build = [SITE / 'bin' / 'mkdocs', 'build', '--quiet', '--site-dir', ROOT / 'out' / 'site']
    # the theme prints its maker's announcements at each build unless this is set
    environment = os.environ | {'NO_MKDOCS_2_WARNING': '1'}
    if subprocess.run(build, cwd=ROOT, env=environment).returncode:
        raise Problem('the site was not built; the lines above name page and link')
    print('wrote out/site/index.html')


def install(requirements: str) -> None:
    """Install the pins of [docs], and of other sections what they need in turn."""
    sections = pins.read(requirements, 'jazzy')
    others = (pin for name, lines in sections.items() if name != 'bench' for pin in lines)
    needed = [pin for pin in others if pin.partition('==')[0] in NEEDED]
    run(sys.executable, '-m', 'venv', '--clear', SITE)
    arguments = pins.arguments([*sections['docs'], *needed], SITE / 'requirements.txt')
    run(SITE / 'bin' / 'pip', 'install', '--quiet', *arguments)
    run(SITE / 'bin' / 'pip', 'check')


def fetch_scripts(requirements: str) -> None:
    """Fetch packages with npm, which checks each archive against the registry."""
    if shutil.which('npm') is None:
        return
    for version in re.findall(r'^# npm: (\S+)$', requirements, re.MULTILINE):
        packed = run('npm', 'pack', '--silent', '--pack-destination', SITE, version).split()[-1]
        with tarfile.open(SITE / packed) as archive:
            for name in SCRIPTS.keys() & set(archive.getnames()):
                (SITE / SCRIPTS[name]).write_bytes(archive.extractfile(name).read())


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
