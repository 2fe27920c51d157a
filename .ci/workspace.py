# SPDX-License-Identifier: Apache-2.0
"""
Prepare the workspace, then become the command that was asked for.

    python3 .ci/workspace.py COMMAND [ARGUMENT ...]

Finds a ROS 2 that is sourced, or installs one from PyPI wheels; installs what requirements.txt
pins into a virtual environment; builds both packages with colcon. What is already there and
unchanged is not done again. Needs only the standard library. A problem the user can mend is one
line, without a traceback.

    ROS=kilted            the distribution to install when none is sourced (jazzy)
    TORCH=none|cpu|cuda   the torch build to install (cpu)
    TESTS=none            leave out what only tests need, as an image of a container does
    HASHES=none           install by version alone, also what .ci/hashes.txt does not know
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

from machine import (
    check_architecture,
    check_build_tools,
    check_disk,
    Problem,
    run,
    sourced_distro,
    supported_python,
)
import pins

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / 'requirements.txt'
TORCH_CPU_INDEX = 'https://download.pytorch.org/whl/cpu'
CPU_BUILDS = ('torch==', 'torchvision==')
# how a torchvision built for CUDA is imported beside a torch for CPUs
OPERATORS = ROOT / '.ci' / 'torchvision_operators.py'
MISSING_OPERATOR = 'operator torchvision::'
NO_NETWORK = re.compile(
    r'NewConnectionError|Temporary failure|ConnectTimeout|Network is unreachable'
)
# how pip names a file without a known hash, and pins of which none is known
OTHER_FILE = re.compile(r'^    (\S+) from (\S+)', re.MULTILINE)
UNKNOWN_PIN = re.compile(r'^    (\S+) --hash=', re.MULTILINE)
# torch build -> the sections that it takes
SECTIONS_OF_TORCH = {
    'none': [],
    'cpu': ['torch', 'lerobot'],
    'cuda': ['torch', 'cuda', 'lerobot'],
}


def main(command: list[str]) -> None:
    if not command:
        raise Problem('say what to run: python3 .ci/workspace.py COMMAND [ARGUMENT ...]')
    workspace = Workspace(
        sourced=sourced_distro(),
        distro=os.environ.get('ROS') or 'jazzy',
        torch=os.environ.get('TORCH') or 'cpu',
        tests=os.environ.get('TESTS') or 'all',
    )
    with workspace.lock():
        workspace.install()
        workspace.build()
    environment = workspace.environment()
    program = shutil.which(command[0], path=environment['PATH'])
    if program is None:
        raise Problem(f'there is no command {command[0]!r}; the verbs are in lerobot-serve --help')
    os.execve(program, command, environment)


class Workspace:
    """One virtual environment and one colcon workspace, for one distribution, Python and torch."""

    def __init__(self, *, sourced: str, distro: str, torch: str, tests: str = 'all') -> None:
        if distro not in ('jazzy', 'kilted'):
            raise Problem(f'ROS must be jazzy or kilted, got {distro!r}')
        if torch not in SECTIONS_OF_TORCH:
            raise Problem(f'TORCH must be none, cpu or cuda, got {torch!r}')
        if tests not in ('all', 'none'):
            raise Problem(f'TESTS must be all or none, got {tests!r}')
        self.sourced, self.distro, self.torch = sourced, sourced or distro, torch
        self.sections = [
            *([] if sourced else ['ros']),
            *(['run'] if tests == 'none' else ['run', 'test']),
            *SECTIONS_OF_TORCH[torch],
        ]
        self.python = Path(sys.executable) if sourced else supported_python()
        self.version = run(
            [self.python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])']
        )
        kind = 'sourced-' if sourced else ''
        suffix = '' if torch == 'cpu' else f'-torch-{torch}'
        suffix += '' if tests == 'all' else '-no-tests'
        # what was installed unchecked is not taken for checked later
        suffix += '' if pins.are_hashed() else '-no-hashes'
        self.folder = ROOT / '.workspace' / f'{kind}{self.distro}-py{self.version}{suffix}'
        self.venv = self.folder / 'venv'

    @contextlib.contextmanager
    def lock(self):
        """Keep a second `make` waiting while this one installs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (ROOT / '.workspace' / 'COLCON_IGNORE').touch()
        with open(self.folder / 'lock', 'w') as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    # what is installed

    def install(self) -> None:
        wanted = digest(
            str(ROOT),
            REQUIREMENTS.read_text(),
            OPERATORS.read_text(),
            self.version,
            self.sourced,
            self.distro,
            self.torch,
            *self.sections,
            pins.HASHES.read_text() if pins.are_hashed() else '',
        )
        if self.is_done('installed', wanted):
            return
        if not self.sourced:
            check_architecture(self.distro)
        check_build_tools(self.python, self.version)
        check_disk(self.folder, self.torch)
        say(f'installing into {self.venv.relative_to(ROOT)} (a few minutes, once)')
        # pip compares no file of a package that is installed already
        is_unchecked = pins.are_hashed() and not self.read_stamp('hashed')
        if is_unchecked or not self.bin('pip').exists():
            self.make_venv()
            self.done('hashed', 'all that is installed here\n')
        sections = pins.read(REQUIREMENTS.read_text(), self.distro, self.version)
        # first the setuptools with which a pin without a wheel is built
        self.pip('build tools', sections['build'])
        listed = [pin for name in self.sections for pin in sections[name]]
        cpu_builds = [pin for pin in listed if self.torch == 'cpu' and pin.startswith(CPU_BUILDS)]
        self.pip('packages', [pin for pin in listed if pin not in cpu_builds])
        for pin in cpu_builds:
            self.install_cpu_build(pin)
        if not self.sourced:
            self.relocate_cmake_files()
        self.done('installed', wanted)

    def make_venv(self) -> None:
        shutil.rmtree(self.venv, ignore_errors=True)
        site = ['--system-site-packages'] if self.sourced else []
        self.step(
            'venv',
            [self.python, '-m', 'venv', *site, self.venv],
            'python cannot make virtual environments; on Debian or Ubuntu: '
            f'apt install python{self.version}-venv',
        )

    def install_cpu_build(self, pin: str) -> None:
        """Install a build for CPUs without hashes: only the index that has it knows them."""
        name = pin.partition('==')[0]
        # the plain name would bring several GB of CUDA; beside PyPI the higher build would win
        index = ['--no-deps', '--retries', '0', '--index-url', TORCH_CPU_INDEX]
        try:
            self.run_pip(name, [*index, f'{pin}+cpu'])
        except Problem:
            if name == 'torch':
                raise
            say(
                f'no CPU build of {pin} can be had from {TORCH_CPU_INDEX}; that of PyPI is '
                'used without its compiled operators, which no policy calls'
            )
            self.pip(name, [pin])
            self.declare_operators()

    def declare_operators(self) -> None:
        """Let each program of the environment import a torchvision whose operators do not load."""
        packages = self.venv / f'lib/python{self.version}/site-packages'
        start_file = packages / f'{OPERATORS.stem}.pth'
        start_file.unlink(missing_ok=True)
        imported = subprocess.run(
            [self.bin('python'), '-c', 'import torchvision'], capture_output=True, text=True
        )
        if MISSING_OPERATOR in imported.stderr:
            shutil.copy(OPERATORS, packages)
            start_file.write_text(f'import {OPERATORS.stem}\n')

    def relocate_cmake_files(self) -> None:
        """Rewrite the two include folders of the machine that built the wheels."""
        paths = run(
            [
                self.bin('python'),
                '-c',
                'import numpy, sysconfig; '
                'print(sysconfig.get_paths()["include"]); print(numpy.get_include())',
            ]
        ).split('\n')
        for file in self.venv.glob('share/*/cmake/*.cmake'):
            text = file.read_text()
            moved = re.sub(
                r'/opt/python/cp\d+-cp\d+/lib/python3\.\d+/site-packages/numpy/_?core/include',
                paths[1],
                text,
            )
            moved = re.sub(r'/opt/python/cp\d+-cp\d+/include/python3\.\d+', paths[0], moved)
            if moved != text:
                file.write_text(moved)

    # what is built

    def build(self) -> None:
        wanted = digest(*self.build_inputs())
        if self.is_done('built', wanted):
            return
        say('building the two packages with colcon')
        command = [
            *(self.bin('python'), '-m', 'colcon', '--log-base', self.folder / 'log', 'build'),
            *('--base-paths', '.', 'lerobot_serve_interfaces', '--symlink-install'),
            *('--build-base', self.folder / 'build', '--install-base', self.folder / 'install'),
            *('--cmake-args', f'-DPython3_EXECUTABLE={self.bin("python")}', '-DBUILD_TESTING=OFF'),
            *('-DCMAKE_BUILD_TYPE=Release', '--no-warn-unused-cli'),
        ]
        self.step('colcon build', command, 'the build failed')
        # hundreds of short processes of the tests import it, also where Python writes no bytecode
        compiled = [ROOT / 'lerobot_serve', self.folder / 'install']
        self.step(
            'compile',
            [self.bin('python'), '-m', 'compileall', '-q', *compiled],
            'a module is invalid',
        )
        self.done('built', wanted)

    def build_inputs(self) -> list[str]:
        """Return what needs a new build when it changes."""
        files = [ROOT / name for name in ('package.xml', 'setup.py', 'setup.cfg')]
        files += sorted(p for p in (ROOT / 'lerobot_serve_interfaces').rglob('*') if p.is_file())
        linked = [
            str(p)
            for folder in ('launch', 'config', 'resource')
            for p in sorted((ROOT / folder).rglob('*'))
        ]
        return [
            self.read_stamp('installed'),
            str(ROOT),
            *linked,
            *(f'{p}\n{p.read_text()}' for p in files),
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables under which the packages are found, like a sourced setup.bash."""
        site = f'lib/python{self.version}/site-packages'
        packages = [
            self.folder / 'install' / name
            for name in ('lerobot_serve', 'lerobot_serve_interfaces')
        ]
        prefixes = packages if self.sourced else [*packages, self.venv]
        added = {
            'PATH': [self.venv / 'bin', packages[0] / 'bin'],
            'AMENT_PREFIX_PATH': prefixes,
            'CMAKE_PREFIX_PATH': prefixes,
            'PYTHONPATH': [self.folder / 'build' / 'lerobot_serve', packages[1] / site],
            'LD_LIBRARY_PATH': [packages[1] / 'lib']
            if self.sourced
            else [packages[1] / 'lib', self.venv / 'lib'],
        }
        environment = dict(
            os.environ, ROS_DISTRO=self.distro, ROS_VERSION='2', ROS_PYTHON_VERSION='3'
        )
        environment['LEROBOT_SERVE_SHELL'] = str(self.folder)
        environment.pop('PYTHONHOME', None)
        # images of containers set it; each of the many processes would compile each module again
        environment.pop('PYTHONDONTWRITEBYTECODE', None)
        for name, paths in added.items():
            # a half-sourced other ROS 2 must not shine through the wheels
            old = environment.get(name, '') if self.sourced or name == 'PATH' else ''
            environment[name] = os.pathsep.join([*map(str, paths), *filter(None, [old])])
        return environment

    # how it is done

    def bin(self, name: str) -> Path:
        return self.venv / 'bin' / name

    def pip(self, what: str, wanted: list[str]) -> None:
        """Install pins as they stand, and nothing that they ask for in turn."""
        self.run_pip(what, pins.arguments(wanted, self.folder / f'{what}.txt'))

    def run_pip(self, what: str, arguments: list[str]) -> None:
        options = ['-m', 'pip', 'install', '--quiet', '--no-input']
        command = [self.bin('python'), *options, *arguments]
        self.step(f'pip install {what}', command, f'pip could not install {what}')

    def step(self, name: str, command: list[object], blame: str) -> None:
        """Run one step with its output in a file. Raises Problem with the file's name."""
        log = self.folder / (name.replace(' ', '-') + '.log')
        environment = self.environment() if self.venv.exists() else dict(os.environ)
        with open(log, 'w') as output:
            code = subprocess.run(
                [str(part) for part in command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode
        if code == 0:
            return
        text = log.read_text(errors='replace')
        if NO_NETWORK.search(text) and name.startswith('pip'):
            blame += ': no network; connect this machine to PyPI or set PIP_INDEX_URL to a mirror'
        elif 'No matching distribution' in text:
            missing = re.findall(r'No matching distribution found for (\S+)', text)
            blame += f': no build of {", ".join(missing)} for Python {self.version} can be found'
            if any(name.endswith('+cpu') for name in missing):
                blame += f' at {TORCH_CPU_INDEX}; TORCH=cuda installs the one of PyPI instead'
        elif found := OTHER_FILE.search(text):
            blame += (
                f': {found[2]} has no hash that .ci/hashes.txt has of {found[1]}: it is not the '
                'file of PyPI, or for another platform than Linux on x86_64 and aarch64; '
                'HASHES=none installs it all the same'
            )
        elif found := UNKNOWN_PIN.search(text):
            blame += f': .ci/hashes.txt lacks {found[1]}; python3 .ci/hashes.py rewrites it'
        raise Problem(f'{blame} (log: {log.relative_to(ROOT)})')

    def read_stamp(self, name: str) -> str:
        file = self.folder / f'{name}.stamp'
        return file.read_text() if file.exists() else ''

    def is_done(self, name: str, wanted: str) -> bool:
        return self.read_stamp(name) == wanted

    def done(self, name: str, wanted: str) -> None:
        (self.folder / f'{name}.stamp').write_text(wanted)


def digest(*parts: str) -> str:
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()


def say(text: str) -> None:
    print(f'lerobot_serve: {text}', file=sys.stderr, flush=True)


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except Problem as problem:
        say(str(problem))
        sys.exit(1)
    except PermissionError as error:
        say(f'{error.filename} belongs to another user, as after sudo make: {error.strerror}')
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
