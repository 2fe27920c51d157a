# SPDX-License-Identifier: Apache-2.0
"""Values of a JSON body, checked. Pure; any thread."""

from __future__ import annotations

from functools import partial
import json
from typing import Any, TypeVar

from lerobot_serve.files.load import load, Record, Refused
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.parameters import closest_name

T = TypeVar('T', bound=Record)
SHOWN_CHARACTERS = 80
# a list of one number takes 100 bytes of memory, a number with decimals 32
LISTS_LIMIT, VALUES_LIMIT = 400_000, 2_000_000


class FieldError(PredictionError):
    """A field of a body is wrong: what was given, and what is allowed."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field, self.given, self.allowed = field, shown(given), allowed
        super().__init__(Status.INVALID, f'{field} must be {allowed}, got {self.given}')


def shown(value: object) -> str:
    """Return a value for an error text; a large one only by its kind."""
    if isinstance(value, (list, dict)):
        return f'{"a list" if isinstance(value, list) else "an object"} of {len(value)}'
    if isinstance(value, (str, bytes)) and len(value) > SHOWN_CHARACTERS:
        return f'{value[:SHOWN_CHARACTERS]!r}... ({len(value)} characters)'
    return repr(value)[:SHOWN_CHARACTERS] if value is not None else 'nothing'


def parsed(body: bytes) -> dict[str, Any]:
    """Return the object of a body. Raises FieldError."""
    if body.count(b'[') + body.count(b'{') > LISTS_LIMIT or body.count(b',') > VALUES_LIMIT:
        raise FieldError(
            'body',
            f'{body.count(b",")} values in {body.count(b"[")} lists',
            f'at most {VALUES_LIMIT} values in {LISTS_LIMIT} lists; send images in base64',
        )
    try:
        content = _loaded(body)
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:
        raise FieldError('body', f'{len(body)} bytes ({error})', 'JSON in UTF-8') from None
    if not isinstance(content, dict):
        raise FieldError('body', content, 'a JSON object')
    return content


def _loaded(body: bytes) -> Any:
    load = partial(json.loads, object_pairs_hook=_object, parse_constant=_no_constant)
    try:
        return load(body)
    except UnicodeDecodeError:
        # a wrong byte becomes a surrogate, and the field that has it is named by its check
        return load(body.decode('utf-8', 'surrogateescape'))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldError('body', f'{shown(twice)} twice', 'an object with each name once')
    return found


def _no_constant(name: str) -> float:
    raise FieldError('body', name, 'JSON with finite numbers')


def checked(kind: type[T], given: object, place: str = '') -> T:
    """Return the record of an object; `place` is before the names. Raises FieldError."""
    try:
        return load(kind, given, '')
    except Refused as refused:
        fault = refused.fault
    field = place + '.'.join(map(str, fault.path))
    if fault.allowed:
        raise FieldError(field, fault.given, fault.allowed)
    # what else is wrong with an object is a name
    name, known = str(fault.given)[:SHOWN_CHARACTERS], kind.__struct_fields__
    near = closest_name(name, known)
    hint = f' (did you mean {near}?)' if near else ''
    allowed = f'one of the fields {", ".join(known)}{hint}'
    raise FieldError(f'{place}{name}', fault.given, allowed)
