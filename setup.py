# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from setuptools import find_packages, setup

NAME = 'lerobot_serve'
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
        NAME: ['py.typed', 'gateway/policy_service/*.proto', 'tools/dashboard/page/*'],
    },
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        ('bin', ['resource/lerobot-serve']),
        (f'share/{NAME}', ['package.xml']),
        *shared('launch'),
        *shared('config'),
    ],
    python_requires='>=3.11',
    install_requires=['setuptools'],
    extras_require={
        # lerobot_serve.client alone, without ROS: pip install .[client]
        'client': ['eclipse-zenoh>=1.10,<2', 'numpy>=1.26', 'simplejpeg>=1.8'],
        # for grpc:// as well
        'client-grpc': [f'{NAME}[client]', 'grpcio>=1.66,<2', 'protobuf>=5.26,<8'],
    },
    zip_safe=True,
    maintainer='lerobot_serve maintainers',
    maintainer_email='maintainers@lerobot-serve.example',
    description='Serves learned robot policies from GPU machines to robots that carry no weights.',
    license='Apache-2.0',
    tests_require=['pytest'],
    entry_points={
        'console_scripts': [
            'policy_server = lerobot_serve.entry_points:policy_server',
            'policy_router = lerobot_serve.entry_points:policy_router',
            'edge_controller = lerobot_serve.entry_points:edge_controller',
            'gateway = lerobot_serve.entry_points:gateway',
            'learner = lerobot_serve.entry_points:learner',
            'sim_robot = lerobot_serve.entry_points:sim_robot',
            'lerobot-serve = lerobot_serve.tools.cli.main:main',
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
