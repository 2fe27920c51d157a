# SPDX-License-Identifier: Apache-2.0
"""
Policies exported by torch.export or as ONNX, with a policy.json (`sidecar`). `loader` is the entry
point; `torch_export_rules`, `program_archive`, `onnx_file` and `onnx_schema` refuse files that
could run code or reach other files, before a library reads them; `programs` runs both forms.
Thread: `inference`, or any with one CPU thread; ONNX files first run in a child process.
"""
