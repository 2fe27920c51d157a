# SPDX-License-Identifier: Apache-2.0
"""
The child processes of a learner: `program` runs one step of a round (`scan`, `convert`, `train`
or `publish`) at the lowest priority and reports through a pipe. `lerobot_serve.learner.steps`
starts them and defines what goes in and comes out. One thread works, another watches for the end
of the learner.
"""
