# SPDX-License-Identifier: Apache-2.0
"""
Two policies behind a router: the servers slot_a/policy_server and slot_b/policy_server, or several
replicas of each (slot_a_1/policy_server, ...), an optional shadow server, and the router. All
names are relative to `namespace`, so that one ROS domain can hold several such groups. Set
`servers` of the robots to NAMESPACE/policy_router.
"""

from launch import LaunchDescription
from launch.action import Action
from launch_ros.actions import Node

from lerobot_serve.ros import launch_support
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters

OF_EACH_POLICY = ('policy_kind', 'policy_path', 'device')
SERVERS = 'server_params_file'
# form of the argument name, and prefix of the description
FORMS = {
    'a': ('{}_a', 'slot a: '),
    'b': ('{}_b', 'slot b: '),
    'shadow': ('shadow_{}', 'shadow (none runs unless its kind or path is given): '),
}


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.parameter_overrides(RouterParameters, 'split_percent', 'canary.plan'),
        *launch_support.parameter_overrides(
            RouterParameters, *launch_support.ZENOH, prefix_text='router: '
        ),
        *(argument for policy in FORMS for argument in of_policy(policy)),
        *launch_support.parameter_overrides(ServerParameters, 'max_sessions', file=SERVERS),
        *launch_support.launch_options('replicas'),
        launch_support.params_file('router.yaml', 'policy_router'),
        launch_support.params_file('server.yaml', 'all policy servers', SERVERS),
        *launch_support.launch_options('namespace', 'respawn', 'log_level'),
    ]
    return launch_support.launch_description('ab.launch.py', arguments, start)


def of_policy(policy: str) -> list[launch_support.LaunchArgument]:
    form, prefix_text = FORMS[policy]
    return launch_support.parameter_overrides(
        ServerParameters, *OF_EACH_POLICY, file=SERVERS, form=form, prefix_text=prefix_text
    )


def start(given: dict) -> list[Action]:
    slots = {slot: namespaces(slot, given['replicas']) for slot in ('a', 'b')}
    servers = [server('a', name, given) for name in slots['a']]
    servers += [server('b', name, given) for name in slots['b']]
    # relative: the router finds them in its own namespace
    replicas = {
        f'slot_{slot}': [server_in(name) for name in names] for slot, names in slots.items()
    }
    if given['shadow_policy_kind'] or given['shadow_policy_path']:
        servers.append(server('shadow', 'shadow', given))
        replicas['shadow_server'] = server_in('shadow')
    router = launch_support.node_action(
        'policy_router',
        file=given['params_file'],
        given={
            'split_percent': given['split_percent'],
            'canary.plan': given['canary_plan'],
            **{name: given[name] for name in launch_support.ZENOH},
            **replicas,
        },
        log_level=given['log_level'],
        namespace=given['namespace'],
        respawn=given['respawn'] == 'true',
    )
    return [*servers, router]


def namespaces(slot: str, replicas: int) -> list[str]:
    """Return where the policy servers of a slot run."""
    if replicas == 1:
        return [f'slot_{slot}']
    return [f'slot_{slot}_{number + 1}' for number in range(replicas)]


def server_in(namespace: str) -> str:
    return f'{namespace}/policy_server'


def server(policy: str, namespace: str, given: dict) -> Node:
    """Return one policy server."""
    form, _ = FORMS[policy]
    return launch_support.node_action(
        'policy_server',
        file=given[SERVERS],
        given={
            **{parameter: given[form.format(parameter)] for parameter in OF_EACH_POLICY},
            'max_sessions': given['max_sessions'],
            'slot': policy if policy in ('a', 'b') else 'prod',
        },
        log_level=given['log_level'],
        namespace=launch_support.join_namespaces(given['namespace'], namespace),
        respawn=given['respawn'] == 'true',
    )
