# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve learner`: starts a learner."""

from __future__ import annotations

from lerobot_serve.tools.cli.node_flags import NodeVerb
from lerobot_serve.tools.cli.node_start import verb_of_node

HELP = 'start a learner, which trains new versions of a policy on recorded episodes'
EXAMPLE = (
    'example: lerobot-serve learner --parent act_so101 --trainer ~/trainer.yaml '
    '--episode-folders ~/bags  | a round begins after 50 new episodes; versions list shows the '
    'versions'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
NODE = NodeVerb(
    'learner',
    'lerobot_serve.learner.parameters:LearnerParameters',
    ('parent', 'trainer', 'episode_folders', 'episodes_per_round', 'store', 'folder'),
)

add_arguments, main = verb_of_node(NODE)
