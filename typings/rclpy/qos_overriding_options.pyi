# SPDX-License-Identifier: Apache-2.0

class QoSOverridingOptions:
    @classmethod
    def with_default_policies(cls) -> QoSOverridingOptions: ...
