# SPDX-License-Identifier: Apache-2.0
"""
Rules for the members of a torch.export archive.

torch.export.load trusts its file: it unpickles the sample inputs and members that request it,
passes symbolic sizes to sympy, which evaluates them as Python, compiles guards and names into
source text, looks operators up by any path below `torch`, and loads compiled libraries. So sample
inputs, guards and metadata are left out, and the rest is limited to plain programs of tensors,
which call the operators in `program_operators`.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from lerobot_serve.policies.exported.program_archive import (
    drop_member,
    keep_member,
    MemberRules,
    UnsafeProgram,
)
from lerobot_serve.policies.exported.program_operators import is_allowed

NAME, PLAIN_TEXT = re.compile(r'\w*', re.ASCII), re.compile(r'[\w.@+-]*', re.ASCII)
GRAPH_LIMIT_BYTES = 64 << 20
# a power of powers is computed when the file is read, and its size is unbounded
POWER_CALLS = {'Pow', 'PowByNatural'}
EXPONENT_LIMIT, PRECISION_LIMIT, CONSTANT_LIMIT = 16, 4096, 1 << 63
SYMBOLIC_CALL = re.compile(
    r'Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Abs|floor|ceiling|Not|And|Or|Equality'
    r'|Unequality|LessThan|StrictLessThan|GreaterThan|StrictGreaterThan|FloorDiv|ModularIndexing'
    r'|Where|PythonMod|Mod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|PowByNatural|FloatTrueDiv'
    r'|IntTrueDiv|TruncToInt|RoundToInt|ToFloat|Identity'
)
SYMBOLIC_NODES = (
    ast.Expression,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.keyword,
    ast.UnaryOp,
    ast.USub,
)
TREE_TYPES = {None, 'builtins.tuple', 'builtins.list', 'builtins.dict'}


def sanitized_graph(data: bytes) -> bytes:
    """Return models/model.json without code. Raises UnsafeProgram, ValueError."""
    if len(data) > GRAPH_LIMIT_BYTES:
        raise UnsafeProgram(f'has a graph description of {len(data)} bytes')
    return json.dumps(_sanitized(json.loads(data))).encode()


def check_payload(data: bytes) -> bytes:
    """Return a table of weights or constants if all are plain numbers. Raises UnsafeProgram."""
    for entry in json.loads(data)['config'].values():
        if entry.get('use_pickle') is not False:
            raise UnsafeProgram('holds a pickled tensor')
        if not re.fullmatch(r'(weight|tensor)_\d+', entry['path_name'], re.ASCII):
            raise UnsafeProgram(f'holds the object {entry["path_name"]!r:.60}')
    return data


def _sanitized(value: Any) -> Any:
    if isinstance(value, dict):
        return {_checked_text(key): _sanitized_field(key, field) for key, field in value.items()}
    if isinstance(value, list):
        return [_sanitized(item) for item in value]
    return _checked_text(value) if isinstance(value, str) else value


def _sanitized_field(name: str, value: Any) -> Any:
    if name == 'metadata':
        return {}
    if name == 'guards_code':
        return []
    if name in ('as_operator', 'as_custom_obj', 'custom_obj_values') and value:
        raise UnsafeProgram('holds an object that is not a tensor')
    if not isinstance(value, str):
        # text for operators, for example the equation of einsum; torch only quotes it
        free = name == 'as_strings' and all(isinstance(item, str) for item in value)
        return value if free else _sanitized(value)
    if name != 'as_string':
        TEXT_CHECKS.get(name, _checked_text)(value)
    return value


def _checked_text(text: str) -> str:
    if not PLAIN_TEXT.fullmatch(text):
        raise UnsafeProgram(f'holds the text {text!r:.60}')
    return text


def _check_name(text: str) -> None:
    if not NAME.fullmatch(text):
        raise UnsafeProgram(f'holds the name {text!r:.60}')


def _check_operator(text: str) -> None:
    if not is_allowed(text):
        raise UnsafeProgram(f'calls {text!r:.80}, which no export of a policy needs')


def _check_expression(text: str) -> None:
    try:
        nodes = list(ast.walk(ast.parse(text, mode='eval')))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise UnsafeProgram(f'holds the size {text!r:.60}') from error
    for node in nodes:
        fits = isinstance(node, SYMBOLIC_NODES)
        if isinstance(node, ast.Call):
            fits = isinstance(node.func, ast.Name) and _is_bounded(node)
        elif isinstance(node, ast.Name):
            fits = bool(SYMBOLIC_CALL.fullmatch(node.id)) or node.id in ('true', 'false')
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            fits = bool(NAME.fullmatch(node.value))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            fits = node.value <= CONSTANT_LIMIT
        if not fits:
            raise UnsafeProgram(f'holds the size {text!r:.60}')


def _is_bounded(call: ast.Call) -> bool:
    """Return whether a call is not a power, or a small power of a base without powers."""
    if _call_name(call) not in POWER_CALLS:
        return all(_is_small(each.value, PRECISION_LIMIT) for each in call.keywords)
    if len(call.args) != 2 or call.keywords:
        return False
    base, exponent = call.args
    numbers = [node for node in ast.walk(exponent) if isinstance(node, ast.Constant)]
    return (
        all(_call_name(node) not in POWER_CALLS for node in ast.walk(base))
        and all(_call_name(node) in ('', 'Integer', 'Rational') for node in ast.walk(exponent))
        and len(numbers) in (1, 2)
        and all(_is_small(each, EXPONENT_LIMIT) for each in numbers)
    )


def _call_name(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ''


def _is_small(node: ast.AST, limit: int) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value <= limit


def _check_tree(text: str) -> None:
    trees = [json.loads(text)[1]]
    while trees:
        tree = trees.pop()
        if tree['type'] not in TREE_TYPES or tree['context'] not in (None, 'null', '[]'):
            raise UnsafeProgram('has inputs or outputs other than a flat list of tensors')
        trees += tree['children_spec']


TEXT_CHECKS = {
    'name': _check_name,
    'as_name': _check_name,
    'target': _check_operator,
    'expr_str': _check_expression,
    'in_spec': _check_tree,
    'out_spec': _check_tree,
}
EXPORT_RULES: MemberRules = {
    r'models/model\.json': sanitized_graph,
    r'data/weights/model_weights_config\.json': check_payload,
    r'data/constants/model_constants_config\.json': check_payload,
    r'data/weights/weight_\d+|data/constants/tensor_\d+': keep_member,
    r'archive_format|archive_version|byteorder|\.data/(version|serialization_id)': keep_member,
    # pickled, and only needed by another export
    r'data/sample_inputs/model\.pt': lambda data: b'',
    r'extra/.*': drop_member,
}
