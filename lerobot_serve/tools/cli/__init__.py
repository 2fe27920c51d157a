# SPDX-License-Identifier: Apache-2.0
"""
The command `lerobot-serve`: main.py finds verbs by the entry-point group `lerobot_serve.verbs`.
Each verb is one file in verbs/ with HELP, EXAMPLE, add_arguments and main.
The main thread.
"""
