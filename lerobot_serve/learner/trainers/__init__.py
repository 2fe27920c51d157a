# SPDX-License-Identifier: Apache-2.0
"""
Continue the training of a policy with a dataset; docs/trainers.md. Called by a learner, one job at
a time, in the thread that trains. `base` is the interface: `builtin` trains the demo policy in
this process, `command` starts any other program, by the options of `trainer_file`.
"""
