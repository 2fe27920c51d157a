"""
Two policies side by side: the servers /slot_a/policy_server and /slot_b/policy_server, and a
router before them. Point robots at /policy_router.
"""

from launch import LaunchDescription
from launch.action import Action
from launch_ros.actions import Node

from lerobot_serve.ros import launching
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters

OF_EACH_SLOT = ('policy_kind', 'policy_path', 'device')
SERVERS = 'server_params_file'


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launching.overrides(RouterParameters, 'split_percent'),
        *launching.overrides(ServerParameters, *OF_EACH_SLOT, file=SERVERS, slot='a'),
        *launching.overrides(ServerParameters, *OF_EACH_SLOT, file=SERVERS, slot='b'),
        *launching.overrides(ServerParameters, 'max_sessions', file=SERVERS),
        launching.params_file('router.yaml', 'policy_router'),
        launching.params_file('server.yaml', 'both policy servers', SERVERS),
        *launching.options('respawn', 'log_level'),
    ]
    return launching.description('ab.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    router = launching.node(
        'policy_router',
        file=given['params_file'],
        given={'split_percent': given['split_percent']},
        log_level=given['log_level'],
        respawn=given['respawn'] == 'true',
    )
    return [slot('a', given), slot('b', given), router]


def slot(name: str, given: dict) -> Node:
    """Return the policy server of one slot."""
    return launching.node(
        'policy_server',
        file=given[SERVERS],
        given={
            **{parameter: given[f'{parameter}_{name}'] for parameter in OF_EACH_SLOT},
            'max_sessions': given['max_sessions'],
            'slot': name,
        },
        log_level=given['log_level'],
        namespace=f'slot_{name}',
        respawn=given['respawn'] == 'true',
    )
