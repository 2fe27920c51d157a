#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Become the shell of the user; bash completes the verbs and live names of lerobot-serve.
case "${SHELL:-bash}" in
  *bash) exec bash --rcfile .ci/completion.bash "$@" ;;
  *) exec "$SHELL" "$@" ;;
esac
