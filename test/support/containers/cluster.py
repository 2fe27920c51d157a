# SPDX-License-Identifier: Apache-2.0
"""
Runs the pods of rendered manifests without a cluster: each in a network and a file system of its
own, with the arguments, variables, files and names that a kubelet gives it, and as the user of the
image where that is possible. Not here: limits, network policies, and what restarts a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import functools
import os
from pathlib import Path
import shlex
import shutil
import signal
import subprocess
import sys

from support.containers.manifests import Document, files_of, Pod, SECRET_MODE, secrets_of
from support.network.machines import Machines
from support.paths import REPOSITORY

IMAGE = Path('opt/lerobot_serve')
CONTAINERS = Path('config/containers')
STATE = Path('var/lib/lerobot_serve')
ENTRY_POINT = ('sh', f'/{IMAGE}/{CONTAINERS}/start.sh')
# of the image, and who owns a Secret
USER, ROOT = 10001, 0
NO_SERVICES: Mapping[str, str] = {}
BECOME_USER = ['setpriv', f'--reuid={USER}', f'--regid={USER}', '--clear-groups']
ASK = (
    'import sys, urllib.request, urllib.error\n'
    'request = urllib.request.Request(sys.argv[1])\n'
    'try:\n    answer = urllib.request.urlopen(request, timeout=5)\n'
    'except urllib.error.HTTPError as error:\n    answer = error\n'
    'except OSError as error:\n    sys.exit(print(0, error))\n'
    'print(answer.status, answer.read().decode())\n'
)


@dataclass(frozen=True)
class Answer:
    """What a page answers: the status, 0 when nothing does, and the text."""

    status: int
    text: str


@functools.cache
def become_user() -> list[str]:
    """
    Return what makes a command that of the user of the image; nothing where this user cannot
    become it, or where it cannot run the Python of the tests, which may belong to root.
    """
    command = [*BECOME_USER, 'sh', '-c', 'command -v python3']
    try:
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return []
    return BECOME_USER if found and found == shutil.which('python3') else []


def _give(path: Path, mode: int, owner: int = USER) -> None:
    """Make a path that of the user of the image, or of its group, as far as it may be."""
    path.chmod(mode)
    if become_user():
        os.chown(path, owner, USER)


class Cluster:
    """
    The pods of one cluster by name, each on a machine of its own. Pods find each other by name.
    Main thread of the test.
    """

    def __init__(
        self,
        machines: Machines,
        addresses: Mapping[str, str],
        documents: tuple[Document, ...],
        pods: Mapping[str, Pod],
        folder: Path,
        site: str = '',
        services: Mapping[str, str] = NO_SERVICES,
    ) -> None:
        """
        `addresses` are by machine; that of a pod has the site in front of its name. `services` are
        addresses that the operator names.
        """
        self._machines, self._addresses = machines, addresses
        self._documents, self._pods = documents, pods
        self._folder, self._site = folder / (site or 'cluster'), site
        self._folder.mkdir()
        self._services = services
        self._secrets: dict[str, dict[str, str]] = {}
        self.environment_file = self._freeze()

    def _freeze(self) -> Path:
        """Run freeze.sh, as the build of an image does."""
        file = self._folder / 'environment.sh'
        script = (REPOSITORY / CONTAINERS / 'freeze.sh').read_text()
        text = script.replace(f'/{IMAGE}/environment.sh', shlex.quote(str(file)))
        subprocess.run(['sh', '-c', text], check=True)
        return file

    def put_secret(self, name: str, files: dict[str, str]) -> None:
        """Make a Secret."""
        self._secrets[name] = files

    def start(self, name: str) -> subprocess.Popen:
        """Start the container of a pod."""
        pod = self._pods[name]
        root = self._root(pod)
        command = [
            *('sh', '-euc', self._mounts(pod, root), 'kubelet'),
            *ENTRY_POINT,
            *pod.arguments,
        ]
        machine = self.machine(name)
        return self._machines.start(machine, machine, command)

    def machine(self, pod: str) -> str:
        """Return the machine of a pod."""
        return machine_of(pod, self._site)

    def _root(self, pod: Pod) -> Path:
        """Write what is in the image, and what is mounted into it."""
        root = self._folder / f'root_{pod.name}'
        scripts = root / IMAGE / CONTAINERS
        scripts.mkdir(parents=True)
        (scripts / 'start.sh').write_text((REPOSITORY / CONTAINERS / 'start.sh').read_text())
        (root / IMAGE / 'environment.sh').write_text(self.environment_file.read_text())
        for where, files in (*files_of(self._documents, pod).items(), *self._secret_files(pod)):
            target = root / where.removeprefix('/')
            target.mkdir(parents=True)
            for file, text in files.items():
                (target / file).parent.mkdir(exist_ok=True)
                (target / file).write_text(text)
        for where, files in self._secret_files(pod):
            for file in files:
                # as fsGroup does
                _give(root / where.removeprefix('/') / file, SECRET_MODE, owner=ROOT)
        (root / STATE).mkdir(parents=True)
        (root / 'etc' / 'hosts').write_text(self._hosts())
        return root

    def _secret_files(self, pod: Pod) -> Iterator[tuple[str, dict[str, str]]]:
        for folder, files in secrets_of(pod).items():
            found = {}
            for file, (secret, key) in files.items():
                known = self._secrets.get(secret, {})
                found.update(known if file == '*' else {file: known[key]} if key in known else {})
            yield folder, found

    def _hosts(self) -> str:
        """Return the names that pods find: that of a pod in its service, and that of a service."""
        lines = ['127.0.0.1 localhost']
        for name, pod in self._pods.items():
            address, service = self.address(name), name.rpartition('-')[0]
            lines.append(f'{address} {name} {pod.domain}'.rstrip())
            if not pod.index:
                lines.append(f'{address} {service}')
        lines += [f'{address} {name}' for name, address in self._services.items()]
        return '\n'.join(lines) + '\n'

    def _mounts(self, pod: Pod, root: Path) -> str:
        """Return a script that mounts the files of the pod, and leaves the rest read-only."""
        quoted = shlex.quote(str(root))
        layers = [
            f'mount -t overlay overlay -o lowerdir={quoted}/{top}:/{top} /{top}'
            for top in ('etc', 'opt', 'var')
        ]
        secret = {k: self._secrets[s][key] for k, (s, key) in pod.secret_environment.items()}
        given = {**pod.environment, **secret}
        variables = ' '.join(f'{k}={shlex.quote(v)}' for k, v in given.items())
        home = self._folder / f'state_{pod.name}'
        home.mkdir()
        _give(home, 0o755)
        return '\n'.join(
            (
                *layers,
                f'mount --bind {shlex.quote(str(home))} /{STATE}',
                'mount -t tmpfs tmpfs /tmp',
                'mount -o remount,ro,bind /',
                f'cd /{STATE}',
                f'exec {shlex.join(become_user())} env HOME=/{STATE} ROS_HOME=/{STATE} '
                f'{variables} "$@"',
            )
        )

    def address(self, pod: str) -> str:
        """Return the address of a pod."""
        return self._addresses[self.machine(pod)]

    def ask(self, source: str, pod: str, port: int, path: str) -> Answer:
        """Ask a page of a pod from a machine."""
        url = f'http://{self.address(pod)}:{port}{path}'
        made = self._machines.run(source, [sys.executable, '-c', ASK, url])
        assert made.returncode == 0, made.stderr
        status, _, text = made.stdout.partition(' ')
        return Answer(int(status), text)

    def probe(self, source: str, pod: str, probe: str) -> Answer:
        """Ask what a probe of a pod asks, from a machine."""
        container = self._pods[pod]
        page = container.container[probe]['httpGet']
        return self.ask(source, pod, container.port(page['port']), page['path'])

    def end(self, name: str) -> None:
        """
        End a pod as a kubelet does. Fails when it would be killed at the end of its grace period,
        and when it does not end orderly.
        """
        process = self._machines.processes[self.machine(name)]
        process.send_signal(signal.SIGTERM)
        code = process.wait(self._pods[name].spec['terminationGracePeriodSeconds'])
        assert code == 0, f'{name} ended with {code}'


def machine_of(pod: str, site: str = '') -> str:
    """Return the machine of a pod of a site."""
    return f'{site}-{pod}' if site else pod


def addresses_of(machines: Iterable[str]) -> dict[str, str]:
    """Return an address for each machine."""
    return {name: f'10.9.8.{10 + number}' for number, name in enumerate(machines)}
