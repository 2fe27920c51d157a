# SPDX-License-Identifier: Apache-2.0
"""
Each overlay as kustomize makes it: valid to the schemas of Kubernetes, with flags and parameters
that the nodes take, names that find each other, and pods that the profile `restricted` admits.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import kubernetes_validate
import pytest
from support.containers.manifests import (
    Document,
    files_of,
    of_kind,
    OVERLAYS,
    Pod,
    pods,
    rendered,
    secrets_of,
    selects,
    SITES,
    WORKLOADS,
)
from support.paths import REPOSITORY
import yaml

from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters

# from the oldest release that has the pod index as a label, to the newest known
RELEASES = ('1.28', '1.32', '1.37')
PARAMETERS = {
    'serve': ServerParameters,
    'router': RouterParameters,
    'gateway': GatewayParameters,
}
METRICS = 'metrics'
ROBOTS_FOLDER = '/var/lib/lerobot_serve'

pytestmark = pytest.mark.parametrize('overlay', OVERLAYS)


@pytest.fixture
def documents(overlay: str) -> tuple[Document, ...]:
    return rendered(overlay)


def values_of(documents: tuple[Document, ...], pod: Pod) -> dict[str, object]:
    """Return the parameters of the node in a pod, as it gets them from its files."""
    ((_, files),) = files_of(documents, pod).items()
    ((_, text),) = files.items()
    given = {
        name.replace('-', '_'): words[0]
        for name in ('zenoh-keys', 'state-url', 'state-site')
        if (words := flags_of(pod, name))
    }
    values = yaml.safe_load(text)['/**']['ros__parameters']
    # one place for each
    assert not values.keys() & given.keys()
    return values | given


def flags_of(pod: Pod, name: str) -> list[str]:
    """Return the values of a flag."""
    first = f'--{name}='
    return [word.removeprefix(first) for word in pod.arguments if word.startswith(first)]


def routers_of(documents: tuple[Document, ...]) -> list[Pod]:
    return [pod for pod in pods(documents) if pod.arguments[0] == 'router']


def parameters_of(documents: tuple[Document, ...], pod: Pod):
    """Return the parameters of the node in a pod. Raises ParameterError."""
    return build_parameters(PARAMETERS[pod.arguments[0]], values_of(documents, pod))


def has_keys(overlay: str) -> bool:
    return overlay in ('overlays/tls', *SITES)


def node_name(pod: Pod) -> str:
    (found,) = (word.split('=')[1] for word in pod.arguments if word.startswith('--name='))
    return found


@pytest.mark.slow
@pytest.mark.parametrize('release', RELEASES)
def test_the_schemas_of_kubernetes_accept_each_document(documents, release: str):
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, release, strict=True)


def test_the_parameters_are_those_of_the_nodes(documents):
    found = list(pods(documents))
    assert {pod.arguments[0] for pod in found} <= set(PARAMETERS)
    for pod in found:
        parameters_of(documents, pod)


def test_the_arguments_are_flags_of_the_verbs(documents):
    for pod in pods(documents):
        known = {
            spec.name.replace('_', '-').replace('.', '-')
            for spec in parameter_specs(PARAMETERS[pod.arguments[0]])
        }
        flags = [word for word in pod.arguments if word.startswith('-')]
        names = {flag.removeprefix('--').partition('=')[0] for flag in flags}
        assert names <= known | {'params-file', 'name', 'namespace'}
        assert all('=' in flag for flag in flags)


def test_parameter_files_are_where_the_arguments_name_them(documents):
    for pod in pods(documents):
        (file,) = (w.split('=')[1] for w in pod.arguments if w.startswith('--params-file='))
        folder, _, name = file.rpartition('/')
        assert name in files_of(documents, pod)[folder]


def test_the_router_names_and_reaches_every_server_that_may_run(documents, overlay):
    protocol = 'tls' if has_keys(overlay) else 'tcp'
    # routers of a site have one file
    values = values_of(documents, routers_of(documents)[0])
    scaled = {
        each['spec']['scaleTargetRef']['name']: each['spec']['maxReplicas']
        for each in of_kind(documents, 'HorizontalPodAutoscaler').values()
    }
    named = {name.removeprefix('zenoh:/') for name in (*values['slot_a'], *values['slot_b'])}
    endpoints = set(values['zenoh_connect'])
    for pod in pods(documents):
        if pod.arguments[0] == 'serve':
            assert node_name(pod) in named
            assert f'{protocol}/{pod.domain}:{pod.port("zenoh")}' in endpoints
            assert parameters_of(documents, pod).zenoh_listen == (
                f'{protocol}/0.0.0.0:{pod.port("zenoh")}',
            )
    for name, most in scaled.items():
        slot = name.rpartition('-')[2]
        assert len(values[f'slot_{slot}']) >= most
    # each name has an endpoint, in the words of Kubernetes
    hosts = {endpoint.removeprefix(f'{protocol}/').partition('.')[0] for endpoint in endpoints}
    assert {host.replace('-', '_') for host in hosts} == named


def test_each_server_knows_its_slot(documents):
    for name in of_kind(documents, 'StatefulSet'):
        for pod in pods(documents):
            if pod.name.startswith('policy-server') and pod.name.startswith(f'{name}-'):
                assert f'--slot={name.rpartition("-")[2]}' in pod.arguments


def test_the_gateway_reaches_the_router_by_its_service_and_its_name(documents):
    services = of_kind(documents, 'Service')
    (port,) = services['policy-router']['spec']['ports']
    spaces = flags_of(routers_of(documents)[0], 'namespace')
    for pod in pods(documents):
        if pod.arguments[0] != 'gateway':
            continue
        parameters = parameters_of(documents, pod)
        flags = [w.split('=')[1] for w in pod.arguments if w.startswith('--server=')]
        assert parameters.zenoh_connect == (f'tcp/policy-router:{port["port"]}',)
        assert (flags or [parameters.server])[-1] == f'{"".join(spaces)}/policy_router'


def test_services_lead_to_ports_of_pods(documents):
    found = list(pods(documents))
    for service in of_kind(documents, 'Service').values():
        selected = [
            pod for pod in found if service['spec']['selector'].items() <= pod.labels.items()
        ]
        assert selected, service['metadata']['name']
        for port in service['spec']['ports']:
            assert {pod.port(port['targetPort']) for pod in selected} == {port['port']}


def test_probes_ask_the_endpoint_of_the_node(documents):
    for pod in pods(documents):
        parameters = parameters_of(documents, pod)
        assert parameters.metrics_port == pod.port(METRICS)
        assert parameters.metrics_address == '0.0.0.0'
        paths = {
            probe: pod.container[probe]['httpGet']
            for probe in ('startupProbe', 'livenessProbe', 'readinessProbe')
        }
        assert paths == {
            'startupProbe': {'path': '/healthz', 'port': METRICS},
            'livenessProbe': {'path': '/healthz', 'port': METRICS},
            'readinessProbe': {'path': '/readyz', 'port': METRICS},
        }


def test_the_grace_period_is_longer_than_any_drain(documents):
    for pod in pods(documents):
        drain_s = getattr(parameters_of(documents, pod), 'drain_timeout_s', 0.0)
        assert pod.spec['terminationGracePeriodSeconds'] >= drain_s + 20


def test_pods_are_restricted_and_write_only_into_volumes(documents):
    for pod in pods(documents):
        assert pod.spec['automountServiceAccountToken'] is False
        security = pod.spec['securityContext']
        assert security['runAsNonRoot'] and security['runAsUser'] == 10001
        # reads what Secrets give to its group
        assert security['fsGroup'] == security['runAsGroup'] == 10001
        assert security['seccompProfile'] == {'type': 'RuntimeDefault'}
        assert pod.container['securityContext'] == {
            'allowPrivilegeEscalation': False,
            'readOnlyRootFilesystem': True,
            'capabilities': {'drop': ['ALL']},
        }
        mounts = {m['mountPath']: m['name'] for m in pod.container['volumeMounts']}
        assert {ROBOTS_FOLDER, '/tmp', '/dev/shm'} <= set(mounts)
        volumes = {volume['name']: volume for volume in pod.spec['volumes']}
        assert volumes[mounts['/dev/shm']]['emptyDir']['medium'] == 'Memory'


def test_images_have_the_version_of_the_package(documents):
    version = ElementTree.parse(REPOSITORY / 'package.xml').findtext('version')
    images = {pod.container['image'] for pod in pods(documents)}
    assert images
    assert all(image.endswith(f':{version}') for image in images)


def test_an_autoscaler_alone_counts_the_pods_of_what_it_scales(documents):
    sets = of_kind(documents, *WORKLOADS)
    scaled = {
        each['spec']['scaleTargetRef']['name']
        for each in of_kind(documents, 'HorizontalPodAutoscaler').values()
    }
    assert {name for name, each in sets.items() if 'replicas' not in each['spec']} == scaled


def test_every_disruption_budget_and_policy_selects_pods(documents):
    labels = [pod.template['metadata']['labels'] for pod in pods(documents)]
    for budget in of_kind(documents, 'PodDisruptionBudget').values():
        assert any(selects(budget['spec']['selector'], each) for each in labels)
        assert budget['spec']['maxUnavailable'] == 1
    for policy in of_kind(documents, 'NetworkPolicy').values():
        assert any(selects(policy['spec']['podSelector'], each) for each in labels)


@pytest.mark.parametrize(
    ('source', 'target', 'port', 'is_allowed'),
    [
        ('policy-router', 'policy-server', 7447, True),
        ('gateway', 'policy-router', 7447, True),
        ('gateway', 'policy-server', 7447, False),
        ('policy-server', 'policy-router', 7447, False),
        ('policy-server', 'policy-server', 7447, False),
        ('policy-server', 'gateway', 8700, False),
        ('policy-router', 'policy-server', 9464, False),
        ('outside', 'policy-router', 7447, True),
        ('outside', 'policy-server', 7447, False),
        ('outside', 'gateway', 8700, True),
        ('outside', 'gateway', 8703, True),
        ('outside', 'gateway', 9464, False),
        ('monitoring', 'policy-server', 9464, True),
        ('monitoring', 'policy-router', 9464, True),
        ('monitoring', 'policy-server', 7447, False),
    ],
)
def test_who_may_connect_to_whom(
    documents, overlay, source: str, target: str, port: int, is_allowed: bool
):
    if has_keys(overlay) and 'gateway' in (source, target):
        assert 'gateway' not in of_kind(documents, *WORKLOADS)
        return
    by_name = {
        pod.template['metadata']['labels']['app.kubernetes.io/name']: pod.template['metadata'][
            'labels'
        ]
        for pod in pods(documents)
    }
    policies = [p['spec'] for p in of_kind(documents, 'NetworkPolicy').values()]
    may_enter = any(
        _admits(rule.get('from'), by_name.get(source, {}), source) and _has_port(rule, port)
        for policy in policies
        if selects(policy['podSelector'], by_name[target]) and 'Ingress' in policy['policyTypes']
        for rule in policy.get('ingress', [])
    )
    leaves = source not in by_name or may_leave(
        documents, by_name[source], by_name[target], target, port
    )
    assert (may_enter and leaves) is is_allowed


def may_leave(
    documents: tuple[Document, ...], labels: Document, target: Document, name: str, port: int
) -> bool:
    """Return whether pods may open a connection; what is no pod has no labels."""
    policies = [p['spec'] for p in of_kind(documents, 'NetworkPolicy').values()]
    return any(
        _admits(rule.get('to'), target, name) and _has_port(rule, port)
        for policy in policies
        if selects(policy['podSelector'], labels) and 'Egress' in policy['policyTypes']
        for rule in policy.get('egress', [])
    )


def _admits(peers: list[Document] | None, labels: Document, name: str) -> bool:
    """Return whether the peers of a rule contain a pod, or a pod of another namespace by name."""
    if peers is None:
        return True
    for peer in peers:
        if 'namespaceSelector' in peer:
            if peer['namespaceSelector']['matchLabels'] == {'kubernetes.io/metadata.name': name}:
                return True
        elif labels and selects(peer['podSelector'], labels):
            return True
    return False


def _has_port(rule: Document, port: int) -> bool:
    return port in {each['port'] for each in rule['ports']}


def test_workloads_are_those_that_the_page_describes(documents, overlay):
    kinds = {name: each['kind'] for name, each in of_kind(documents, *WORKLOADS).items()}
    gateway = [] if has_keys(overlay) else ['gateway']
    names = ['policy-server-a', 'policy-server-b', 'policy-router', *gateway]
    assert kinds == dict.fromkeys(names, 'StatefulSet')


def test_routers_that_are_several_share_their_state(documents, overlay):
    routers = routers_of(documents)
    if overlay not in SITES:
        (router,) = routers
        parameters = parameters_of(documents, router)
        # splits and placements outlive the pod in a file
        (only,) = of_kind(documents, 'StatefulSet')['policy-router']['spec'][
            'volumeClaimTemplates'
        ]
        assert (parameters.state_url, only['metadata']['name']) == ('', 'state')
        assert 'policy-router' not in of_kind(documents, 'PodDisruptionBudget')
        assert router.secret_environment == {}
        return
    assert [node_name(pod) for pod in routers] == ['policy_router_0', 'policy_router_1']
    for pod in routers:
        parameters = parameters_of(documents, pod)
        assert parameters.state_url.partition('@')[2].startswith('fleet-postgres:')
        # two sites may share a database
        assert parameters.state_site == overlay.rpartition('/')[2]
        assert flags_of(pod, 'namespace') == [f'/{parameters.state_site}']
        assert pod.secret_environment == {'PGPASSWORD': ('fleet-postgres', 'password')}
    assert 'policy-router' in of_kind(documents, 'PodDisruptionBudget')


def test_an_address_outside_leads_to_one_router(documents, overlay):
    if overlay in SITES:
        for pod in routers_of(documents):
            selector = of_kind(documents, 'Service')[pod.name]['spec']['selector']
            selected = [p.name for p in pods(documents) if selector.items() <= p.labels.items()]
            assert selected == [pod.name]


@pytest.mark.parametrize(
    ('source', 'port', 'is_allowed'),
    [
        ('policy-router', 5432, True),
        ('policy-router', 5433, False),
        ('policy-router', 443, False),
        ('policy-server', 5432, False),
        ('gateway', 5432, False),
    ],
)
def test_routers_of_a_site_alone_reach_the_database(
    documents, overlay, source: str, port: int, is_allowed: bool
):
    labels = {'app.kubernetes.io/name': source}
    is_open = may_leave(documents, labels, {}, 'database', port)
    assert is_open is (is_allowed and overlay in SITES)


JOBS = {'serve': 'server', 'router': 'router', 'gateway': 'gateway'}


def targets_of(pod: Pod) -> list[dict[str, str]]:
    """Return the labels that Prometheus finds for each port of a pod (role `pod`)."""
    labels = {re.sub(r'\W', '_', name): value for name, value in pod.labels.items()}
    found = {f'__meta_kubernetes_pod_label_{name}': value for name, value in labels.items()}
    found['__meta_kubernetes_pod_name'] = pod.name
    ports = [port['name'] for port in pod.container['ports']]
    return [found | {'__meta_kubernetes_pod_container_port_name': name} for name in ports]


def relabelled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str] | None:
    """Return the labels of a target after the rules of Prometheus, None for one left out."""
    for rule in rules:
        value = ';'.join(labels.get(name, '') for name in rule['source_labels'])
        match = re.fullmatch(rule.get('regex', '(.*)'), value)
        if rule.get('action') == 'keep':
            if not match:
                return None
        elif match:
            labels = labels | {rule['target_label']: match[1]}
    return labels


def test_prometheus_finds_the_metrics_of_each_pod_with_the_job_of_the_alert(documents):
    folder = REPOSITORY / 'config' / 'prometheus'
    (scraped,) = yaml.safe_load((folder / 'kubernetes.yaml').read_text())['scrape_configs']
    (jobs,) = re.findall(r'up\{job=~"(.*)"\}', (folder / 'alerts.yaml').read_text())
    for pod in pods(documents):
        found = [relabelled(scraped['relabel_configs'], each) for each in targets_of(pod)]
        (target,) = (each for each in found if each)
        assert target['job'] == JOBS[pod.arguments[0]]
        assert re.fullmatch(jobs, target['job'])
        assert target['pod'] == pod.name


def test_only_keys_open_the_router_to_robots_outside(documents, overlay):
    services = of_kind(documents, 'Service')
    opened = {
        name for name, each in services.items() if each['spec'].get('type') == 'LoadBalancer'
    }
    routers = (
        {pod.name for pod in routers_of(documents)} if overlay in SITES else {'policy-router'}
    )
    assert opened == (routers if has_keys(overlay) else set())
    for pod in pods(documents):
        if has_keys(overlay):
            parameters = parameters_of(documents, pod)
            # each pod uses the keys of its own name
            is_alone = overlay not in SITES and pod.arguments[0] == 'router'
            name = 'policy-router' if is_alone else pod.name
            assert {secret for secret, _ in keys_of(pod, parameters.zenoh_keys)} == {
                f'keys-{name}'
            }
            assert parameters.zenoh_site == 'fleet'


def keys_of(pod: Pod, folder: str) -> list[tuple[str, str]]:
    """Return the Secrets, and the files of them, in a folder of the container."""
    ((mount, files),) = secrets_of(pod).items()
    below = folder.removeprefix(mount).lstrip('/')
    found = {path: source for path, source in files.items() if path.rpartition('/')[0] == below}
    names = {path.rpartition('/')[2] for path in found}
    assert names in ({'*'}, {'ca.pem', 'certificate.pem', 'key.pem', 'access.json'})
    return list(found.values())
