# SPDX-License-Identifier: Apache-2.0
"""
Shows a live robot or a bag in the Rerun viewer: `lerobot-serve rerun`; docs/rerun.md.

mapping/ turns messages into entries (entity, value, times) and imports neither ROS nor rerun.
layout.py says what a view has; blueprint.py and rerun_sink.py alone import the package rerun.
The thread that reads messages owns all of it.
"""
