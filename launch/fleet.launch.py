"""
Simulated robots, to try a policy server or a router with more than one: robot_1, robot_2, ...
Each is a sim_robot and an edge_controller in a namespace of its own, below `namespace` if one is
given.
"""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.ros import launching
from lerobot_serve.sim.parameters import SimParameters

OF_EDGE = ('servers', 'task', 'codec')
OF_SIM = ('image_height', 'image_width', 'outcome_topic')


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launching.options('robots'),
        *launching.overrides(EdgeParameters, *OF_EDGE),
        *launching.overrides(SimParameters, *OF_SIM),
        *launching.options('seed'),
        launching.params_file('fleet.yaml', 'edge_controller and sim_robot'),
        *launching.options('namespace', 'log_level'),
    ]
    return launching.description('fleet.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    return [part for i in range(given['robots']) for part in robot(i, given)]


def robot(index: int, given: dict) -> list[Action]:
    """Return one robot. It lives and dies alone: no end of a process is the end of another."""
    everywhere = {
        'namespace': launching.below(given['namespace'], f'robot_{index + 1}'),
        'file': given['params_file'],
        'log_level': given['log_level'],
    }
    sim = {**{name: given[name] for name in OF_SIM}, 'seed': given['seed'] + index}
    edge = {name: given[name] for name in OF_EDGE}
    return [
        launching.node('sim_robot', given=sim, **everywhere),
        launching.node('edge_controller', given=edge, **everywhere),
    ]
