# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node learner."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.names import is_topic
from lerobot_serve.learner.selection import FILTERS, SUCCESS
from lerobot_serve.parameters import closest_name, parameter, ParameterError
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.versions.manifest import SOURCE, SOURCE_LENGTH, SOURCE_LIMIT

PATHS = ('folder', 'store')
# as `lerobot-serve dataset` has it
VCODECS = ('h264', 'hevc', 'libsvtav1', 'png')


@dataclass(frozen=True, slots=True)
class LearnerParameters:
    """Parameters of learner; docs/parameters.md is generated from them."""

    # what a round does
    trainer: str = parameter(
        'builtin', 'builtin, for the small policy of the demo, or the full path of a trainer file'
    )
    parent: str = parameter(
        '',
        'what the first round builds on: a version of the store, or the full path of the folder '
        'of a policy',
    )
    round_budget_minutes: float = parameter(
        60.0, 'longest training of a round', unit='min', low=0.05, high=10080.0, live=True
    )
    seed: int = parameter(0, 'seed of each training', low=0, high=2**31 - 1)
    vcodec: str = parameter(
        'png',
        'encoder of the videos of the dataset; png: no videos, each picture in its row, which is '
        'larger and can be read everywhere',
        choices=VCODECS,
    )

    # when a round begins
    episodes_per_round: int = parameter(
        50, 'new episodes that begin a round', low=1, high=1_000_000, live=True
    )
    round_period_s: float = parameter(
        0.0,
        'time after the last round at which one begins with fewer new episodes; 0: never',
        unit='s',
        low=0.0,
        high=31_536_000.0,
        live=True,
    )

    # which episodes
    episode_folders: tuple[str, ...] = parameter(
        (),
        'full paths of folders whose bags are looked for at start and at each round, besides the '
        'episodes that recorders announce',
    )
    episode_filters: tuple[str, ...] = parameter(
        (SUCCESS,),
        f'which episodes are used: {", ".join(FILTERS)}; success and failure are alternatives, '
        'intervention holds besides',
    )

    # where things are kept
    folder: str = parameter(
        '',
        'folder of the dataset, of running rounds and of what is remembered; empty: one named '
        'after the node in $ROS_HOME/lerobot_serve',
    )
    store: str = parameter('', 'store of the versions; empty: $ROS_HOME/lerobot_serve/versions')
    sources: tuple[str, ...] = parameter(
        (),
        'where others may fetch the versions, besides the path of the store: addresses of '
        '`lerobot-serve versions serve`',
    )

    # what became of the versions
    router: str = parameter(
        '/policy_router',
        'full name of the router whose canary tries the versions: a round builds on the newest '
        'that it promoted, and on none that it rolled back; empty: on the newest version',
    )

    # metrics
    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other or have no effect."""
        if self.trainer != 'builtin' and not self.trainer.startswith(('/', '~')):
            raise ParameterError(
                f'trainer must be builtin or the full path of a trainer file, got {self.trainer!r}'
            )
        self._check_paths()
        self._check_filters()
        self._check_sources()
        if self.router and not is_topic(self.router):
            raise ParameterError(
                'router must be empty or the full name of a node, such as /policy_router, got '
                f'{self.router!r}'
            )

    def _check_paths(self) -> None:
        named = [(name, getattr(self, name)) for name in PATHS]
        named += [('episode_folders', each) for each in self.episode_folders]
        for name, path in named:
            is_empty_allowed = name in PATHS and not path
            if not is_empty_allowed and (not path.startswith(('/', '~')) or '\0' in path):
                raise ParameterError(f'{name} must be a full path, got {path!r}')

    def _check_filters(self) -> None:
        for each in self.episode_filters:
            if each not in FILTERS:
                near = closest_name(each, FILTERS)
                hint = f'; did you mean {near}?' if near else ''
                raise ParameterError(
                    f'episode_filters: {each!r} is not one of {", ".join(FILTERS)}{hint}'
                )

    def _check_sources(self) -> None:
        # the path of the store is one
        if len(self.sources) >= SOURCE_LIMIT:
            raise ParameterError(
                f'sources must be at most {SOURCE_LIMIT - 1} addresses, got {len(self.sources)}'
            )
        for each in self.sources:
            if len(each) > SOURCE_LENGTH or not SOURCE.fullmatch(each):
                raise ParameterError(
                    'sources must be http://..., https://... or full paths, at most '
                    f'{SOURCE_LENGTH} characters, got {each!r:.80}'
                )
