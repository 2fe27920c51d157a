# SPDX-License-Identifier: Apache-2.0
# The start-up file of `make shell` with bash: that of the user, and completion of lerobot-serve.
[ -f ~/.bashrc ] && . ~/.bashrc
eval "$(register-python-argcomplete lerobot-serve)"
