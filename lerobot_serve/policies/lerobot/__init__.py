# SPDX-License-Identifier: Apache-2.0
"""
LeRobot checkpoints, served by LeRobot's own networks and processors. `loader` is the entry point:
it checks the files (`checkpoint`), imports LeRobot (`compat`), builds the network, describes the
policy and runs it once; `prediction` runs it from then on. Thread: `inference`. `hub` gets a
policy by its id on the Hugging Face hub; only the process `hub_download` uses the network.
"""
