"""
The first lines of every executable: hold signals back, then load the rest.

Loading rclpy or torch takes seconds. A SIGINT in that time would end in a traceback; held back, it
is answered as soon as the node is able to.
"""

from __future__ import annotations

from importlib import import_module
import signal

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def start(module: str) -> int:
    """Block the signals in this and all later threads, then run the module's main."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return import_module(module).main()


def policy_server() -> int:
    return start('lerobot_serve.server.node')


def policy_router() -> int:
    return start('lerobot_serve.router.node')


def edge_controller() -> int:
    return start('lerobot_serve.edge.node')


def sim_robot() -> int:
    return start('lerobot_serve.sim.node')
