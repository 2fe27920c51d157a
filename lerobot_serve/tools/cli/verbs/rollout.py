# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rollout`: starts, watches, steers and finishes the rollout of a policy."""

from __future__ import annotations

from lerobot_serve.tools.cli import rollout_loading, rollout_steps
from lerobot_serve.tools.cli.operator_options import EXIT_STATUSES
from lerobot_serve.tools.cli.signature import steps_of

HELP = 'start, watch, steer and finish the rollout of a policy'
EXAMPLE = (
    'example: lerobot-serve rollout start v2 --plan 25,50,100; lerobot-serve rollout abort --now '
    f'--yes  {EXIT_STATUSES}'
)

add_arguments, main = steps_of(
    {
        'shadow': rollout_loading.shadow,
        'start': rollout_loading.start,
        'status': rollout_steps.status,
        'watch': rollout_steps.watch,
        'pause': rollout_steps.pause,
        'resume': rollout_steps.resume,
        'promote': rollout_steps.promote,
        'abort': rollout_steps.abort,
        'undo': rollout_steps.undo,
        'stop': rollout_steps.stop,
        'finish': rollout_loading.finish,
        'history': rollout_steps.history,
    }
)
