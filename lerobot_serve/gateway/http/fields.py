# SPDX-License-Identifier: Apache-2.0
"""Values of a JSON body, checked. Pure; any thread."""

from __future__ import annotations

from functools import partial
import json
import math
from typing import Any

from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.parameters import closest_name

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


def check_known(given: dict[str, Any], known: tuple[str, ...], place: str = '') -> None:
    """Raise FieldError for a name that is not known."""
    for name in given:
        if name not in known:
            near = closest_name(name, known)
            hint = f' (did you mean {near}?)' if near else ''
            field, allowed = f'{place}{name[:SHOWN_CHARACTERS]}', f'{", ".join(known)}{hint}'
            raise FieldError(field, name, f'one of the fields {allowed}')


def text(given: dict[str, Any], name: str) -> str:
    """Return a text, empty where there is none. Raises FieldError."""
    value = given.get(name)
    if value is None:
        return ''
    if not isinstance(value, str):
        raise FieldError(name, value, 'text')
    if not is_unicode(value):
        raise FieldError(name, value, 'text in UTF-8, without lone surrogates')
    return value


def is_unicode(value: str) -> bool:
    """Return whether a text can be encoded."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def flag(given: dict[str, Any], name: str) -> bool:
    """Return a truth value, false where there is none. Raises FieldError."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(name, value, 'true or false')
    return value


def number(given: dict[str, Any], name: str, low: float, high: float) -> float:
    """Return a number in [low, high], 0 where there is none. Raises FieldError."""
    value = given.get(name, 0)
    if not is_number(value) or not low <= value <= high:
        raise FieldError(name, value, f'a number in [{low:g}, {high:g}]')
    return float(value)


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number."""
    return type(value) is int or (type(value) is float and math.isfinite(value))
