# SPDX-License-Identifier: Apache-2.0
"""
Import LeRobot: the only module that knows the locations of its parts by version. After the import
the process is sealed: no code from folders, no network (`hardening`).

Thread: the one that loads a policy; LeRobot is not imported before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
from functools import cache
import importlib
from importlib.metadata import version
import importlib.util
import io
import logging
import re
import sys
from typing import Any
import warnings

import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import message_line
from lerobot_serve.policies.lerobot import hardening
from lerobot_serve.requirements import install_command

# operators that torchvision's Python part expects of its compiled part; no policy calls them
COMPILED_OPERATORS = ('nms', 'qnms')
OPERATOR_SCHEMA = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'
PACKAGE = re.compile(r'[A-Za-z_]\w*', re.ASCII)
MISSING_OPERATOR = 'operator torchvision::'


@dataclass(frozen=True, slots=True)
class LeRobot:
    """
    The parts of LeRobot that this package uses; `rtc_config` is None in a version without RTC.
    """

    version: str
    config_class: Any
    policy_class: Any
    get_policy_class: Callable[[str], Any]
    make_processors: Callable[..., tuple[Any, Any]]
    populate_queues: Callable[..., Any]
    create_transition: Callable[..., dict[Any, Any]]
    transition_key: Any
    rtc_config: Any
    step_registry: Any

    def registered_step(self, name: str) -> type | None:
        """Return the class of a processor step, None for an unregistered name."""
        registered: type | None = self.step_registry._registry.get(name)
        return registered


@cache
def lerobot() -> LeRobot:
    """Import LeRobot once and return its parts. Raises PolicyError if the import fails."""
    hardening.disable_network()
    try:
        with suppress_output():
            import_torchvision()
            parts = _import_parts()
            hardening.disable_network()
            hardening.refuse_code()
            return parts
    except ImportError as error:
        raise PolicyError(
            'this policy needs LeRobot, which cannot be imported here '
            f'({message_line(error)}); install it: {install_command("lerobot")}'
        ) from error


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress the output and the warnings of LeRobot while it loads."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def skip_help_texts() -> Iterator[None]:
    """
    Keep draccus from reading the source of each field of a configuration for its help text: half
    of the time of a load.
    """
    try:
        texts: Any = importlib.import_module('draccus.wrappers.docstring')
        find_text, no_text = texts.get_attribute_docstring, texts.AttributeDocString()
    except (ImportError, AttributeError):
        # a draccus with other parts only takes its time
        yield
        return
    texts.get_attribute_docstring = lambda *_: no_text
    try:
        yield
    finally:
        texts.get_attribute_docstring = find_text


def import_trusted(packages: tuple[str, ...]) -> None:
    """
    Import the trusted packages, which register their policy types and steps with LeRobot.

    Raises PolicyError for one that cannot be imported.
    """
    for package in packages:
        try:
            if not PACKAGE.fullmatch(package):
                raise ImportError('it must be the name of a package')
            with suppress_output():
                importlib.import_module(package)
        except Exception as error:
            # code of another package may raise any error
            raise PolicyError(
                f'trusted_packages names {package!r:.80}, which cannot be imported here '
                f'({message_line(error)}); install it where the policy server runs'
            ) from error


def is_trusted(part: type, packages: tuple[str, ...]) -> bool:
    """Return whether a class is of one of these packages and not of LeRobot."""
    package = part.__module__.partition('.')[0]
    return package in packages and package != 'lerobot'


def import_steps(config_class: type) -> None:
    """Import the processor steps of a policy type, from the package of its configuration."""
    module = config_class.__module__
    beside = module.replace('configuration_', 'processor_')
    if beside != module and importlib.util.find_spec(beside):
        importlib.import_module(beside)


def _import_parts() -> LeRobot:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.policies.pretrained import PreTrainedPolicy
    from lerobot.policies.utils import populate_queues
    from lerobot.processor import create_transition, TransitionKey
    from lerobot.processor.pipeline import ProcessorStepRegistry

    try:
        from lerobot.policies.rtc.configuration_rtc import RTCConfig
    except ImportError:
        RTCConfig = None
    return LeRobot(
        version=version('lerobot'),
        config_class=PreTrainedConfig,
        policy_class=PreTrainedPolicy,
        get_policy_class=get_policy_class,
        make_processors=make_pre_post_processors,
        populate_queues=populate_queues,
        create_transition=create_transition,
        transition_key=TransitionKey,
        rtc_config=RTCConfig,
        step_registry=ProcessorStepRegistry,
    )


def import_torchvision() -> None:
    """
    Import torchvision, even if its compiled operators do not fit the installed torch.

    Example: its default wheel with a CPU torch; the import fails because the operators are
    missing. Only their names are needed, so they are declared and the import is repeated.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
        for name in [name for name in sys.modules if name.split('.')[0] == 'torchvision']:
            del sys.modules[name]
        _declare_operators()
        import torchvision  # noqa: F401


@cache
def _declare_operators() -> torch.library.Library:
    """Declare the missing operators; the returned object keeps the declaration alive."""
    library = torch.library.Library('torchvision', 'FRAGMENT')
    for name in COMPILED_OPERATORS:
        library.define(name + OPERATOR_SCHEMA)
    return library
