# SPDX-License-Identifier: Apache-2.0
"""
The packages of pip and of ROS 2 that may be missing, by import name, and the remedies.

The pins are those of requirements.txt for the running Python. requirements.txt is not installed
with this package; a test compares the two. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
import sys

PINS = {
    'aiohttp': 'aiohttp==3.14.5',
    'argcomplete': 'argcomplete==3.7.2',
    'av': 'av==15.1.0',
    'cryptography': 'cryptography==50.0.2',
    'cv2': 'opencv-python-headless==4.11.0.86',
    'datasets': 'datasets==4.8.5',
    'google': 'protobuf==6.31.1',
    'grpc': 'grpcio==1.85.1',
    'grpc_health': 'grpcio-health-checking==1.76.0',
    'grpc_reflection': 'grpcio-reflection==1.76.0',
    'huggingface_hub': 'huggingface-hub==0.35.3',
    'lerobot': 'lerobot==0.4.4',
    'lz4': 'lz4==4.4.5',
    'mcap': 'mcap==1.6.0',
    'msgpack': 'msgpack==1.2.4',
    'msgspec': 'msgspec==0.23.0',
    'numpy': 'numpy==2.2.6',
    'onnxruntime': 'onnxruntime==1.31.1',
    'PIL': 'pillow==12.3.0',
    'prometheus_client': 'prometheus_client==0.23.1',
    'psycopg': 'psycopg==3.3.9',
    'pyarrow': 'pyarrow==25.0.1',
    'rerun': 'rerun-sdk==0.41.0',
    'rich': 'rich==14.2.0',
    'safetensors': 'safetensors==0.8.0',
    'simplejpeg': 'simplejpeg==1.9.0',
    'tokenizers': 'tokenizers==0.22.2',
    'torch': 'torch==2.13.0',
    'torchvision': 'torchvision==0.28.0',
    'tqdm': 'tqdm==4.70.1',
    'transformers': 'transformers==4.57.6',
    'yaml': 'PyYAML==6.0.3',
    'zenoh': 'eclipse-zenoh==1.10.2',
    'zmq': 'pyzmq==27.3.0',
    'zstandard': 'zstandard==0.25.0',
}
# the pins that are others from Python 3.12 on, where LeRobot is 0.6
PYTHON_OF_LEROBOT_0_6 = (3, 12)
PINS_OF_LEROBOT_0_6 = {
    'huggingface_hub': 'huggingface-hub==1.33.0',
    'lerobot': 'lerobot==0.6.1',
    'torch': 'torch==2.11.0',
    'torchvision': 'torchvision==0.26.0',
    'transformers': 'transformers==5.5.4',
}


# what each node imports, what bags need, and what policy servers need beside
BASE_PACKAGES = ('cv2', 'msgspec', 'numpy', 'prometheus_client', 'simplejpeg', 'yaml')
FOR_BAGS = ('lz4', 'mcap', 'zstandard')
FOR_POLICIES = ('torch', 'safetensors')
# of LeRobot, for datasets
FOR_DATASETS = ('av', 'datasets', 'PIL', 'pyarrow', 'tqdm')
# where one of a row is missing, the others are looked for, too
USED_TOGETHER = (BASE_PACKAGES, FOR_BAGS, FOR_POLICIES, FOR_DATASETS)
INTERFACES = 'lerobot_serve_interfaces'
FROM_ROS = (
    'action_msgs',
    'ament_index_python',
    'builtin_interfaces',
    'diagnostic_msgs',
    'geometry_msgs',
    INTERFACES,
    'lifecycle_msgs',
    'nav_msgs',
    'rcl_interfaces',
    'rclpy',
    'sensor_msgs',
    'std_msgs',
    'std_srvs',
    'trajectory_msgs',
)


def requirements_for(python: tuple[int, int]) -> dict[str, str]:
    """Return import name -> pip requirement for a Python version, such as (3, 12)."""
    return PINS | (PINS_OF_LEROBOT_0_6 if python >= PYTHON_OF_LEROBOT_0_6 else {})


REQUIREMENTS: Mapping[str, str] = requirements_for(sys.version_info[:2])


def install_command(*packages: str) -> str:
    """Return the command that installs packages, given by import name. Raises KeyError."""
    return f'python3 -m pip install {" ".join(REQUIREMENTS[name] for name in packages)}'


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Return the packages that cannot be imported, without importing any."""
    return [name for name in packages if not _is_importable(name)]


def _is_importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def missing_package_text(error: ModuleNotFoundError) -> str:
    """
    Name the missing package, and those that are missing with it, and the remedy. Raises the error
    for a module of this package.
    """
    package = (error.name or '').partition('.')[0]
    if package in ('', 'lerobot_serve'):
        raise error
    if package in FROM_ROS:
        return '; '.join(missing_from_ros({package, *missing_packages(FROM_ROS)}))
    if package not in REQUIREMENTS:
        return f'the Python package {package} is missing; install it'
    beside = next((row for row in USED_TOGETHER if package in row), ())
    names = [package, *(name for name in missing_packages(beside) if name != package)]
    which = 'packages' if names[1:] else 'package'
    verb = 'are' if names[1:] else 'is'
    return f'the Python {which} {", ".join(names)} {verb} missing; {install_command(*names)}'


def missing_from_ros(missing: Iterable[str]) -> tuple[str, str]:
    """Return what of ROS 2 is missing, given all that is, and the remedy."""
    names = sorted(missing)
    if 'rclpy' in names:
        return (
            'ROS 2 is not found in this shell (no rclpy)',
            'source the setup.bash of ROS 2 and of this workspace; where no ROS 2 is installed, '
            '`make shell` in a clone of lerobot_serve brings its own, which takes minutes once',
        )
    if INTERFACES in names:
        return (
            f'the interfaces were not built (no {INTERFACES}): a plain `colcon build` does not '
            'look for a package inside another one',
            'in the folder of lerobot_serve run `colcon build --base-paths . '
            f'{INTERFACES}`, then `source install/setup.bash`',
        )
    return (
        f'{", ".join(names)} of ROS 2 is not installed',
        'in the folder of lerobot_serve run `rosdep install --ignore-src -y --from-paths . '
        f'{INTERFACES}`',
    )
