#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Become a verb of lerobot-serve.
OF_THE_NODE=${LD_LIBRARY_PATH-}
. /opt/lerobot_serve/environment.sh
exec lerobot-serve "$@"
