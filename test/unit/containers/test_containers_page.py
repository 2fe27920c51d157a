# SPDX-License-Identifier: Apache-2.0
"""docs/containers.md and the file of the images: what they name exists, and is named alike."""

from __future__ import annotations

import re
import shlex
from xml.etree import ElementTree

import pytest
from support.containers.manifests import FOLDER, of_kind, OVERLAYS, pods, rendered, secrets_of
from support.docs.docs_rig import BLOCK
from support.paths import REPOSITORY

PAGE = (REPOSITORY / 'docs' / 'containers.md').read_text()
FILE = 'config/containers/Containerfile'
VERSION = ElementTree.parse(REPOSITORY / 'package.xml').findtext('version')
USER = 'USER 10001:10001'


def commands(*first: str) -> list[list[str]]:
    """Return the words of the commands of the page that begin so."""
    text = '\n'.join(block for _, block in BLOCK.findall(PAGE)).replace('\\\n', ' ')
    found = [shlex.split(line) for line in text.splitlines()]
    return [words for words in found if words[: len(first)] == list(first)]


def instructions() -> list[tuple[str, str]]:
    text = (REPOSITORY / FILE).read_text().replace('\\\n', ' ')
    lines = [line for line in text.splitlines() if line and not line.startswith('#')]
    return [(name, rest) for name, _, rest in (line.partition(' ') for line in lines)]


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the base and the instructions of each stage, in order."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for name, rest in instructions():
        if name == 'FROM':
            base, _, stage = rest.split()
            found[stage] = base, current = base, []
        elif found:
            current.append((name, rest))
    return found


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


TARGETS = ['edge', 'router', 'server', 'server-cuda']


def test_the_context_of_a_build_is_what_the_images_copy():
    copied = [rest.split() for name, rest in instructions() if name == 'COPY' and '--' not in rest]
    listed = (REPOSITORY / '.dockerignore').read_text().split()
    assert {line[1:] for line in listed if line[0] == '!'} == {
        each for words in copied for each in words[:-1]
    }


def test_a_stage_is_made_of_stages_before_it():
    known = ['${BASE}']
    for stage, (base, found) in stages().items():
        assert base in known
        sources = [re.findall(r'--from=(\S+)', rest) for name, rest in found if name == 'COPY']
        assert all(source in known for each in sources for source in each)
        known.append(stage)
    assert known[-len(TARGETS) :] == TARGETS


def test_what_is_copied_is_there_and_is_what_a_build_needs():
    _, found = stages()['sources']
    copied = [word for name, rest in found if name == 'COPY' for word in rest.split()[:-1]]
    assert all((REPOSITORY / each).exists() for each in copied)
    # of .ci/workspace.py and setup.py
    needed = {'.ci', 'requirements.txt', 'package.xml', 'setup.py', 'setup.cfg'}
    needed |= {'lerobot_serve', 'lerobot_serve_interfaces', 'launch', 'config', 'resource'}
    assert needed <= set(copied)


@pytest.mark.parametrize('target', TARGETS)
def test_an_image_runs_as_another_user_than_root_and_writes_nothing_of_its_own(target: str):
    base, found = stages()[target]
    assert base == 'run' and [name for name, _ in found] == ['COPY']
    _, run = stages()['run']
    assert USER in [f'{name} {rest}' for name, rest in run]
    (entry,) = (rest for name, rest in run if name == 'ENTRYPOINT')
    script = entry.split('"')[-2].removeprefix('/opt/lerobot_serve/')
    assert (REPOSITORY / script).is_file()


@pytest.mark.parametrize(
    ('target', 'torch'),
    [('edge', 'none'), ('router', 'none'), ('server', 'cpu'), ('server-cuda', 'cuda')],
)
def test_only_servers_have_torch(target: str, torch: str):
    _, found = stages()[target]
    ((_, rest),) = found
    (source,) = re.findall(r'--from=(\S+)', rest)
    ((_, command),) = stages()[source][1]
    assert f'TORCH={torch} ' in command and 'TESTS=none ' in command


def test_images_are_built_by_the_names_that_the_manifests_have():
    built = {value_of(words, '--tag'): words for words in commands('docker', 'build')}
    for tag, words in built.items():
        assert tag == f'lerobot-serve/{value_of(words, "--target")}:{VERSION}'
        assert value_of(words, '--target') in TARGETS
        assert value_of(words, '--file') == FILE and words[-1] == '.'
    used = {pod.container['image'] for overlay in OVERLAYS for pod in pods(rendered(overlay))}
    assert used - set(built) == {f'lerobot-serve/server-cuda:{VERSION}'}


def test_overlays_are_there():
    applied = [value_of(words, '--kustomize') for words in commands('kubectl', 'apply')]
    assert applied
    for path in applied:
        assert rendered(path.removeprefix('config/kubernetes/'))
    for name in re.findall(r'`((?:overlays|config/kubernetes)/[\w/.-]+)`', PAGE):
        assert (FOLDER / name.removeprefix('config/kubernetes/')).exists(), name


def test_secrets_have_the_names_and_the_hosts_of_the_pods():
    documents = {overlay: rendered(overlay) for overlay in OVERLAYS}
    wanted = {
        secret
        for each in documents.values()
        for pod in pods(each)
        for files in secrets_of(pod).values()
        for secret, _ in files.values()
    }
    passwords = {
        secret
        for each in documents.values()
        for pod in pods(each)
        for secret in pod.secret_environment.values()
    }
    wanted |= {secret for secret, _ in passwords}
    made = {
        words[4]: value_of(words, '--from-file')
        for words in commands('kubectl', 'create')
        if words[2] == 'secret'
    }
    assert set(made) <= wanted
    # a file has the name of its key
    assert {(secret, made[secret]) for secret, _ in passwords} == passwords
    domains = {pod.domain for pod in pods(documents['overlays/tls'])}
    for words in commands('lerobot-serve', 'keys', 'server'):
        assert value_of(words, '--host') in domains
        assert f'keys/server.{words[3].strip("/")}' in made.values()
    spaces = {
        each['metadata']['namespace'] for each in of_kind(documents['base'], 'Service').values()
    }
    assert spaces == {'lerobot-serve'}
    assert all(
        value_of(w, '--namespace') in spaces for w in commands('kubectl') if '--namespace' in w
    )
