# SPDX-License-Identifier: Apache-2.0
"""
Policies that run in the server of another project: the kinds `openpi`, `lerobot_async`, `groot`
and `http`. A contract file gives the address and what the policy reads and predicts; `connection`
owns the thread `remote peer`, in which one module per protocol talks to the server. No torch.
`predict` blocks the inference thread until the reply or the timeout.
"""
