# SPDX-License-Identifier: Apache-2.0

from pathlib import Path
import sys

from setuptools import find_packages, setup

NAME = 'lerobot_serve'
# so pip installs; the commands of a wheel are on the PATH of an environment, where names like
# `gateway` and `learner` are not ours to take
IS_WHEEL = not {'bdist_wheel', 'dist_info', 'editable_wheel'}.isdisjoint(sys.argv)
# `ros2 run` finds them in lib/lerobot_serve, where colcon puts them
NODES = (
    *('policy_server', 'policy_router', 'edge_controller', 'gateway', 'learner', 'sim_robot'),
)
# of the command lerobot-serve: one module each in lerobot_serve/tools/cli/verbs
VERBS = (
    *('audit', 'dashboard', 'dataset', 'demo', 'diagnose', 'docs', 'doctor', 'drain', 'edge'),
    *(
        'gate',
        'gateway',
        'keys',
        'learner',
        'link',
        'loop',
        'outcome',
        'plan',
        'record',
        'replay',
        'rerun',
        'restore',
        'robot',
    ),
    *('robots', 'rollout', 'route', 'router', 'serve', 'split', 'stats', 'swap', 'up', 'versions'),
)


def shared(folder):
    """Return (target, files) pairs that copy a folder to share/lerobot_serve/."""
    folders = [Path(folder), *(p for p in sorted(Path(folder).rglob('*')) if p.is_dir())]
    return [
        (f'share/{NAME}/{path}', [str(f) for f in sorted(path.iterdir()) if f.is_file()])
        for path in folders
        if path.name != '__pycache__'
    ]


setup(
    name=NAME,
    version='0.2.0',
    packages=find_packages(include=['lerobot_serve', 'lerobot_serve.*']),
    package_data={
        NAME: ['py.typed', 'contract/services/*.proto', 'tools/dashboard/page/*'],
    },
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        *([('bin', ['resource/lerobot-serve'])] if not IS_WHEEL else []),
        (f'share/{NAME}', ['package.xml']),
        *shared('launch'),
        *shared('config'),
    ],
    python_requires='>=3.11',
    # of lerobot_serve.client, which needs no ROS; package.xml has what nodes need
    install_requires=[
        'eclipse-zenoh>=1.10,<2',
        'msgspec>=0.19',
        'numpy>=1.26',
        'simplejpeg>=1.8',
    ],
    extras_require={
        # the client for grpc:// as well
        'client-grpc': ['grpcio>=1.66,<2', 'protobuf>=5.26,<8'],
        # the verbs that need no ROS
        'ops': ['argcomplete>=3.1', 'cryptography>=42', 'PyYAML>=6', 'rich>=13'],
    },
    zip_safe=True,
    maintainer='lerobot_serve maintainers',
    maintainer_email='maintainers@lerobot-serve.example',
    description='Serves learned robot policies from GPU machines to robots that carry no weights.',
    license='Apache-2.0',
    tests_require=['pytest'],
    entry_points={
        'console_scripts': [
            'lerobot-serve = lerobot_serve.tools.cli.main:main',
            *(f'{node} = {NAME}.entry_points:{node}' for node in NODES if not IS_WHEEL),
        ],
        'lerobot_serve.verbs': [
            f'{verb} = lerobot_serve.tools.cli.verbs.{verb}' for verb in VERBS
        ],
        'lerobot_serve.policies': [
            'builtin = lerobot_serve.policies.builtin.policy:load',
            'exported = lerobot_serve.policies.exported.loader:load',
            'groot = lerobot_serve.policies.remote.groot:load',
            'http = lerobot_serve.policies.remote.http:load',
            'lerobot = lerobot_serve.policies.lerobot.loader:load',
            'lerobot_async = lerobot_serve.policies.remote.lerobot_async:load',
            'null = lerobot_serve.policies.synthetic.null:load',
            'openpi = lerobot_serve.policies.remote.openpi:load',
            'recurrent = lerobot_serve.policies.synthetic.recurrent:load',
        ],
    },
)
