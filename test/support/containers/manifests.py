# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes as kustomize makes them, and the pods that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import functools
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from support.paths import REPOSITORY

Document = dict[str, Any]
FOLDER = REPOSITORY / 'config' / 'kubernetes'
SITES = ('overlays/two-sites/north', 'overlays/two-sites/south')
OVERLAYS = ('base', 'overlays/gpu', 'overlays/tls', *SITES)
WORKLOADS = ('StatefulSet',)
# for the group of the container; root owns the files
SECRET_MODE = 0o440
# in the arguments of a container
VARIABLE = re.compile(r'\$\((\w+)\)')
POD_INDEX_LABEL = 'apps.kubernetes.io/pod-index'
POD_NAME_LABEL = 'statefulset.kubernetes.io/pod-name'
POD_INDEX = f"metadata.labels['{POD_INDEX_LABEL}']"
NO_KUBECTL = 'no kubectl is found: the overlays cannot be put together, and are not checked here'


@functools.cache
def rendered(overlay: str) -> tuple[Document, ...]:
    """Return what `kubectl kustomize` makes of a folder; skip the test without kubectl."""
    kubectl = shutil.which('kubectl')
    if not kubectl:
        pytest.skip(NO_KUBECTL)
    made = subprocess.run(
        [kubectl, 'kustomize', FOLDER / overlay], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    assert not made.stderr, made.stderr
    return tuple(yaml.safe_load_all(made.stdout))


def of_kind(documents: tuple[Document, ...], *kinds: str) -> dict[str, Document]:
    """Return the documents of some kinds, by name."""
    return {each['metadata']['name']: each for each in documents if each['kind'] in kinds}


@dataclass(frozen=True)
class Pod:
    """One pod of a workload; `domain` is the name under which others find it, if it has one."""

    name: str
    index: int
    domain: str
    template: Document

    @property
    def spec(self) -> Document:
        return self.template['spec']

    @property
    def container(self) -> Document:
        (only,) = self.spec['containers']
        return only

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the template, and those that a StatefulSet adds."""
        own = {POD_NAME_LABEL: self.name, POD_INDEX_LABEL: str(self.index)}
        return self.template['metadata']['labels'] | own

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the container that are not secrets."""
        return {
            each['name']: self._value(each)
            for each in self.container['env']
            if not _secret_of(each)
        }

    @property
    def secret_environment(self) -> dict[str, tuple[str, str]]:
        """The variables that are secrets: the Secret and its key."""
        found = {each['name']: _secret_of(each) for each in self.container['env']}
        return {name: secret for name, secret in found.items() if secret}

    @property
    def arguments(self) -> list[str]:
        """The arguments of the image, with their variables replaced as a kubelet does."""
        variables = self.environment
        return [VARIABLE.sub(lambda m: variables[m[1]], word) for word in self.container['args']]

    def port(self, name: str) -> int:
        (found,) = (p['containerPort'] for p in self.container['ports'] if p['name'] == name)
        return found

    def _value(self, variable: Document) -> str:
        if 'value' in variable:
            return variable['value']
        assert variable['valueFrom'] == {'fieldRef': {'fieldPath': POD_INDEX}}
        return str(self.index)


def pods(documents: tuple[Document, ...]) -> Iterator[Pod]:
    """Yield the pods of all workloads."""
    for name, workload in of_kind(documents, *WORKLOADS).items():
        for index in range(workload['spec'].get('replicas', 1)):
            pod = f'{name}-{index}'
            service = workload['spec'].get('serviceName')
            domain = f'{pod}.{service}' if service else ''
            yield Pod(pod, index, domain, workload['spec']['template'])


def files_of(documents: tuple[Document, ...], pod: Pod) -> dict[str, dict[str, str]]:
    """Return the files that ConfigMaps put into the container, by folder."""
    maps = of_kind(documents, 'ConfigMap')
    volumes = {v['name']: v['configMap']['name'] for v in pod.spec['volumes'] if 'configMap' in v}
    return {
        mount['mountPath']: maps[volumes[mount['name']]]['data']
        for mount in pod.container['volumeMounts']
        if mount['name'] in volumes
    }


def secrets_of(pod: Pod) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the files that Secrets put into the container: folder, file, Secret and its file."""
    volumes = {v['name']: v for v in pod.spec['volumes'] if 'secret' in v or 'projected' in v}
    mounts = [m for m in pod.container['volumeMounts'] if m['name'] in volumes]
    # a path within a volume is made once, and follows no new Secret
    assert not any(key.startswith('subPath') for mount in mounts for key in mount)
    return {mount['mountPath']: _files(volumes[mount['name']]) for mount in mounts}


def _files(volume: Document) -> dict[str, tuple[str, str]]:
    """Return the files of a volume; '*' are all of one Secret."""
    if 'secret' in volume:
        assert volume['secret']['defaultMode'] == SECRET_MODE
        return {'*': (volume['secret']['secretName'], '*')}
    assert volume['projected']['defaultMode'] == SECRET_MODE
    return {
        item['path']: (source['secret']['name'], item['key'])
        for source in volume['projected']['sources']
        for item in source['secret']['items']
    }


def _secret_of(variable: Document) -> tuple[str, str] | None:
    source = variable.get('valueFrom', {}).get('secretKeyRef')
    return (source['name'], source['key']) if source else None


def selects(selector: Document, labels: Document) -> bool:
    """Return whether a selector with `matchLabels` selects these labels."""
    assert set(selector) <= {'matchLabels'}
    return selector.get('matchLabels', {}).items() <= labels.items()
