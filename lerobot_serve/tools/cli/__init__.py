# SPDX-License-Identifier: Apache-2.0
"""
The command `lerobot-serve`. installed_verbs.py finds verbs by the entry-point group
`lerobot_serve.verbs`, main.py dispatches to one. Each verb is one file in verbs/ with HELP,
EXAMPLE, add_arguments and main; slow imports are inside these two functions. The main thread.
"""
