# SPDX-License-Identifier: Apache-2.0
"""
The steps of a round, each in a child process of low priority: look for episodes, convert them,
train, publish. `lines` are what goes in and comes out, `process` is the side of the learner; that
of the child is `lerobot_serve.tools.learning`.

A child ends when its learner does: it reads the end of its standard input.
"""
