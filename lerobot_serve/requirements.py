# SPDX-License-Identifier: Apache-2.0
"""
The pip requirements that texts about missing packages name: the pins of requirements.txt for the
running Python, by import name.

requirements.txt is not installed with this package; a test compares the two. Plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def requirements_for(python: tuple[int, int]) -> dict[str, str]:
    """Return import name -> pip requirement for a Python version, such as (3, 12)."""
    return PINS | (PINS_OF_LEROBOT_0_6 if python >= PYTHON_OF_LEROBOT_0_6 else {})


REQUIREMENTS: Mapping[str, str] = requirements_for(sys.version_info[:2])


def install_command(*packages: str) -> str:
    """Return the command that installs packages, given by import name. Raises KeyError."""
    return f'python3 -m pip install {" ".join(REQUIREMENTS[name] for name in packages)}'
