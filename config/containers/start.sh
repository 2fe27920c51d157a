#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Become a verb of lerobot-serve.
. /opt/lerobot_serve/environment.sh
exec lerobot-serve "$@"
