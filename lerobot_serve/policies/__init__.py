# SPDX-License-Identifier: Apache-2.0
"""
Policies: the interface; detect, check, load and run them by kind.
The policy server, doctor and replay call `registry.load`; edge and router never import this room.
Policies run on the server's `inference` thread. `base`, `registry`, `runtime.memory` and
`synthetic` do not import torch; of other rooms only the trainers of learner and demo do.
"""
