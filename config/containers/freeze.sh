#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Keep the variables of the workspace for start.sh: an image is built once, and changes no more.
set -eu
for name in PATH AMENT_PREFIX_PATH CMAKE_PREFIX_PATH PYTHONPATH LD_LIBRARY_PATH \
  ROS_DISTRO ROS_VERSION ROS_PYTHON_VERSION; do
  eval "value=\${$name}"
  printf "export %s='%s'\n" "$name" "$value"
done > /opt/lerobot_serve/environment.sh
# a node with GPUs may name the folder of its driver in it
echo 'export LD_LIBRARY_PATH="$LD_LIBRARY_PATH${OF_THE_NODE:+:$OF_THE_NODE}"' \
  >> /opt/lerobot_serve/environment.sh
