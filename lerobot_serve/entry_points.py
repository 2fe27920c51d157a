"""
The first lines of every executable: hold signals back, then load the rest.

Loading rclpy or torch takes seconds. A SIGINT in that time would end in a traceback; held back, it
is answered as soon as the node is able to. A package that is missing is one line.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import faulthandler
from importlib import import_module
import signal
import sys
import threading

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
# more than the middleware and the interpreter need to end, with many topics on a busy machine
EXIT_TIMEOUT_S = 15.0
# imported name -> what pip is told, in the version of requirements.txt
REQUIREMENTS = {
    'argcomplete': 'argcomplete==3.7.2',
    'cv2': 'opencv-python-headless==4.11.0.86',
    'lerobot': 'lerobot==0.4.4',
    'mcap': 'mcap==1.6.0',
    'numpy': 'numpy==2.2.6',
    'onnxruntime': 'onnxruntime==1.31.1',
    'prometheus_client': 'prometheus_client==0.23.1',
    'rich': 'rich==14.2.0',
    'safetensors': 'safetensors==0.8.0',
    'simplejpeg': 'simplejpeg==1.9.0',
    'tokenizers': 'tokenizers==0.22.2',
    'torch': 'torch==2.13.0',
    'torchvision': 'torchvision==0.28.0',
    'transformers': 'transformers==4.57.6',
    'yaml': 'PyYAML==6.0.3',
}
FROM_ROS = (
    'action_msgs',
    'ament_index_python',
    'builtin_interfaces',
    'diagnostic_msgs',
    'geometry_msgs',
    'lerobot_serve_interfaces',
    'lifecycle_msgs',
    'nav_msgs',
    'rcl_interfaces',
    'rclpy',
    'sensor_msgs',
    'std_msgs',
    'std_srvs',
    'trajectory_msgs',
)


class UserError(Exception):
    """Something that the user can mend; printed as one line, without a traceback."""


def run_main(module: str) -> int:
    """Block the signals in this and all later threads, then run the module's main."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        status = import_module(module).main()
    except ModuleNotFoundError as error:
        print(f'error: {missing_package_text(error)}', file=sys.stderr)
        status = 1
    exit_within(EXIT_TIMEOUT_S)
    return status


def exit_within(limit_s: float) -> None:
    """
    End the process with status 1 when it is still there by then, and say where each thread hangs;
    `faulthandler.cancel_dump_traceback_later` takes that back.

    Done by a thread that is not Python's: what hangs may hold the interpreter's lock. Whoever
    waits for a robot's node to end, to start it again, must not wait for ever.
    """
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """
    Let SIGINT and SIGTERM come after the block: between the start of a process and the note of it,
    nobody would end that process. Only where there is a choice, in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    held = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


def missing_package_text(error: ModuleNotFoundError) -> str:
    """Return what is missing and how to get it. Raises the error when a module of ours is."""
    package = (error.name or '').partition('.')[0]
    if package in ('', 'lerobot_serve'):
        raise error
    if package in FROM_ROS:
        return f'{package} is not found; source the setup.bash of ROS 2 and of this workspace'
    how = f'python3 -m pip install {REQUIREMENTS[package]}' if package in REQUIREMENTS else ''
    return f'the Python package {package} is missing; {how or "install it"}'


def policy_server() -> int:
    return run_main('lerobot_serve.server.node')


def policy_router() -> int:
    return run_main('lerobot_serve.router.node')


def edge_controller() -> int:
    return run_main('lerobot_serve.edge.node')


def sim_robot() -> int:
    return run_main('lerobot_serve.sim.node')
