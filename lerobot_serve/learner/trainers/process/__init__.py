# SPDX-License-Identifier: Apache-2.0
"""
Runs a training command with all of its processes: `guard` is the program that ends them,
`guarded_process` starts it, `output_log` reads what the command prints. Called by the trainers
that start commands, in the thread that trains.
"""
