# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rollout`: starts, watches, steers and finishes the rollout of a policy."""

from __future__ import annotations

from lerobot_serve.tools.cli.operator_options import EXIT_STATUSES
from lerobot_serve.tools.cli.rollout import loading, reading, steering
from lerobot_serve.tools.cli.signature import steps_of

HELP = 'start, watch, steer and finish the rollout of a policy'
EXAMPLE = (
    'example: lerobot-serve rollout start v2 --plan 25,50,100; lerobot-serve rollout abort --now '
    f'--yes  {EXIT_STATUSES}'
)

add_arguments, main = steps_of(
    {
        'shadow': loading.shadow,
        'start': loading.start,
        'status': reading.status,
        'watch': reading.watch,
        'pause': steering.pause,
        'resume': steering.resume,
        'promote': steering.promote,
        'abort': steering.abort,
        'undo': steering.undo,
        'stop': steering.stop,
        'finish': loading.finish,
        'history': reading.history,
    }
)
