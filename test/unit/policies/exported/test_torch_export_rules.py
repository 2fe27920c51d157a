# SPDX-License-Identifier: Apache-2.0
"""Programs that mean harm: what could run as Python or reach files never gets to torch."""

from __future__ import annotations

import io
import json
from pathlib import Path
import pickle
import shutil
import zipfile

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.policies.hostile_archive import (
    code,
    CONSTANTS,
    edit,
    edit_json,
    GRAPH,
    Harm,
    members,
    SAMPLES,
    WEIGHTS,
)

from lerobot_serve.policies.base import LoadOptions, PolicyError

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')


from lerobot_serve.policies.exported.loader import load  # noqa: E402
from lerobot_serve.policies.exported.program_archive import UnsafeProgram  # noqa: E402
from lerobot_serve.policies.exported.torch_export_rules import sanitized_graph  # noqa: E402


@pytest.fixture
def trace(tmp_path):
    """Return a file that is there once harm was done."""
    return tmp_path / 'harm'


def test_an_archive_that_was_only_packed_anew_loads(folder):
    edit(folder, lambda content: None)
    load(LoadOptions(str(folder)))


@pytest.mark.parametrize('by_torch', [False, True])
def test_pickled_sample_inputs_are_left_out(folder, trace, by_torch):
    buffer = io.BytesIO()
    (torch.save if by_torch else pickle.dump)(Harm(trace), buffer)
    edit(folder, lambda content: content.update({SAMPLES: buffer.getvalue()}))
    load(LoadOptions(str(folder)))
    assert not trace.exists()


def test_guards_and_metadata_are_left_out(folder):
    graph = json.loads(sanitized_graph(members(folder / 'program.pt2')[GRAPH]))
    assert graph['guards_code'] == []
    assert [node['metadata'] for node in graph['graph_module']['graph']['nodes']]
    assert not any(node['metadata'] for node in graph['graph_module']['graph']['nodes'])


def size(text):
    def change(graph):
        values = graph['graph_module']['graph']['tensor_values']
        values['state']['sizes'][0]['as_expr']['expr_str'] = text

    return change


def first_node(**fields):
    return lambda graph: graph['graph_module']['graph']['nodes'][0].update(fields)


def first_argument(**argument):
    def change(graph):
        graph['graph_module']['graph']['nodes'][0]['inputs'][0]['arg'] = argument

    return change


def rename_input(name):
    def change(graph):
        text = json.dumps(graph).replace('"state"', json.dumps(name))
        graph.update(json.loads(text))

    return change


def arguments(*names):
    def change(graph):
        signature = graph['graph_module']['module_call_graph'][0]['signature']
        signature['forward_arg_names'] = list(names)

    return change


def tree(**spec):
    def change(graph):
        signature = graph['graph_module']['module_call_graph'][0]['signature']
        signature['in_spec'] = json.dumps([1, {'context': 'null', 'children_spec': [], **spec}])

    return change


def default_factory():
    context = {'default_factory_module': 'antigravity', 'default_factory_name': 'webbrowser'}
    return tree(type='collections.defaultdict', context={**context, 'dict_context': []})


GRAPHS = {
    'a size that is code': (size(code(Path('harm'))), 'holds the size'),
    'a size that calls': (size("Symbol('s0').func.mro()"), 'holds the size'),
    'a size of builtins': (size("eval('1')"), 'holds the size'),
    'a symbol that is code': (size("Symbol('s=print()')"), 'holds the size'),
    'no size at all': (size('('), 'holds the size'),
    'a name that is code': (rename_input('x=print()'), 'holds the name'),
    'an argument that is code': (arguments('image', 'x=print()'), 'holds the text'),
    'a key that is code': (lambda graph: graph.update({'x=print()': 1}), 'holds the text'),
    'a system call': (first_node(target='torch.os.system'), "calls 'torch.os.system'"),
    'a call of anything': (first_node(target='_operator.call'), 'calls'),
    'an attribute': (first_node(target='_operator.attrgetter'), 'calls'),
    'another package': (first_node(target='#other:operator'), 'calls'),
    'a file': (first_node(target='torch.ops.aten.from_file.default'), 'calls'),
    'a file to write': (first_node(target='torch.ops.aten.save.default'), 'calls'),
    'no operator': (first_node(target='torch.ops.aten.mean.__class__'), 'calls'),
    'an unknown operator': (first_node(target='torch.ops.aten.harm.default'), 'calls'),
    'an operator as value': (first_argument(as_operator='torch.os.system'), 'not a tensor'),
    'an object': (first_argument(as_custom_obj={'name': 'a', 'class_fqn': 'b'}), 'not a tensor'),
    'text in disguise': (first_argument(as_strings=[{'expr_str': 'print()'}]), 'holds the size'),
    'a factory to import': (default_factory(), 'has inputs or outputs other than'),
    'a module to import': (
        tree(type='builtins.dict', context='{"__enum__": true, "fqn": "antigravity:x"}'),
        'has inputs or outputs other than',
    ),
}


@pytest.mark.parametrize(('change', 'text'), GRAPHS.values(), ids=GRAPHS)
def test_a_graph_that_could_run_is_refused(folder, change, text):
    edit_json(folder, GRAPH, change)
    with pytest.raises(PolicyError, match=f'program.pt2 is refused: it .*{text}'):
        load(LoadOptions(str(folder)))


def test_a_pickled_weight_is_refused(folder, trace):
    edit(folder, lambda content: content.update({'data/weights/weight_0': b'pickle'}))
    edit_json(folder, WEIGHTS, lambda table: table['config']['rows'].update(use_pickle=True))
    with pytest.raises(PolicyError, match='is refused: it holds a pickled tensor'):
        load(LoadOptions(str(folder)))


def test_a_constant_that_is_an_object_is_refused(folder):
    entry = {'path_name': 'opaque_obj_0', 'is_param': False, 'use_pickle': False}
    edit_json(folder, CONSTANTS, lambda table: table['config'].update(harm=entry))
    with pytest.raises(PolicyError, match="is refused: it holds the object 'opaque_obj_0'"):
        load(LoadOptions(str(folder)))


@pytest.mark.parametrize(
    'name',
    [
        'data/weights/model.pt',
        'data/constants/model.pt',
        'data/constants/custom_obj_0',
        'data/aotinductor/model/model.so',
        'data/sample_inputs/other.pt',
        'models/other.json',
        'serialized_state_dict.pt',
        'version',
        '',
    ],
)
def test_a_member_that_a_plain_program_has_not_is_refused(folder, name):
    edit(folder, lambda content: content.update({name: b'harm'}))
    with pytest.raises(PolicyError, match=r'is refused: it holds .* not allowed in a program'):
        load(LoadOptions(str(folder)))


def test_two_members_of_one_name_are_refused(folder):
    with (
        zipfile.ZipFile(folder / 'program.pt2', 'a') as archive,
        pytest.warns(UserWarning, match='Duplicate name'),
    ):
        archive.writestr(archive.namelist()[0], b'harm')
    with pytest.raises(PolicyError, match='holds two members with the same name'):
        load(LoadOptions(str(folder)))


def test_a_bomb_is_refused(folder):
    content = members(folder / 'program.pt2')
    with zipfile.ZipFile(folder / 'program.pt2', 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(f'program/{name}', data)
    with pytest.raises(PolicyError, match='it holds a compressed member'):
        load(LoadOptions(str(folder)))


def test_a_graph_has_a_bound():
    with pytest.raises(UnsafeProgram, match='has a graph description of 67108865 bytes'):
        sanitized_graph(bytes((64 << 20) + 1))


def leaves(value, path=()):
    """Return the path to every text in a tree, and to every key."""
    if isinstance(value, str):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        leaf
        for key, item in items
        if isinstance(item, (str, dict, list))
        for leaf in leaves(item, (*path, key))
    ]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_text_of_a_graph_ever_runs(original, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp('hostile')
    trace = folder / 'harm'
    shutil.copytree(original, folder, dirs_exist_ok=True)
    harm = data.draw(st.sampled_from([code(trace), f'x={code(trace)}', f'x): {code(trace)} #']))

    def change(graph):
        *path, last = data.draw(st.sampled_from(leaves(graph)))
        for step in path:
            graph = graph[step]
        graph[last] = harm

    edit_json(folder, GRAPH, change)
    try:
        load(LoadOptions(str(folder)))
    except PolicyError as error:
        assert '\n' not in str(error)
    assert not trace.exists()


@given(st.integers(0, 30000), st.binary(max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_damage_to_a_program_gives_a_traceback(original, tmp_path_factory, start, damage):
    folder = tmp_path_factory.getbasetemp() / 'damaged'
    shutil.copytree(original, folder, dirs_exist_ok=True)
    content = bytearray((original / 'program.pt2').read_bytes())
    content[start : start + 12] = damage
    (folder / 'program.pt2').write_bytes(content)
    try:
        load(LoadOptions(str(folder)))
    except PolicyError as error:
        assert 'program.pt2' in str(error)


ENDLESS = (
    'Pow(Integer(9), Pow(Integer(9), Integer(9)))',
    'Pow(Pow(Integer(9), Integer(16)), Integer(16))',
    'Pow(Integer(9), Integer(999999999))',
    "Pow(Integer(2), Symbol('s0', integer=True))",
    'PowByNatural(Integer(9), Integer(9), Integer(9))',
    "Float('1', precision=999999999)",
    f'Integer({1 << 64})',
)
# loops, operators of others, powers, and operators that reach past tensors
REFUSED = (
    'torch.ops.higher_order.while_loop',
    'torch.ops.higher_order.scan',
    'torch.ops.torchvision.roi_align.default',
    'torch.ops.prims.empty_strided.default',
    '_operator.pow',
    '_operator.lshift',
    'torch.ops.aten._sparse_coo_tensor_unsafe.default',
    'torch.ops.aten._sparse_compressed_tensor_unsafe.default',
    'torch.ops.aten._nested_view_from_buffer.default',
    'torch.ops.aten.set_.source_Tensor_storage_offset',
    'torch.ops.aten.resize_.default',
    'torch.ops.aten.mul.left_t',
    'torch.ops.aten.ljust.default',
    'torch.ops.aten.from_file.default',
    # a C++ pointer as bytes
    'torch.ops.aten.fbgemm_pack_gemm_matrix_fp16.default',
    'torch.ops.aten._ctc_loss.default',
    # memory that holds other values
    'torch.ops.aten.empty.memory_format',
    'torch.ops.aten.empty_like.default',
    'torch.ops.aten.new_empty.default',
    'torch.ops.aten.grid_sampler_2d.default',
    # bits of another type, an output that is resized, values that decide sizes
    'torch.ops.aten.view.dtype',
    'torch.ops.aten.add.out',
    'torch.ops.aten.item.default',
    'torch.ops.aten.nonzero.default',
)
# sizes as torch writes them, and operators of networks
KEPT = (
    ('expr_str', "Pow(Symbol('s0', positive=True, integer=True), Integer(2))"),
    ('expr_str', "Mul(Integer(64), Pow(Symbol('s0', integer=True), Integer(-1)))"),
    ('expr_str', "Pow(Add(Symbol('s0', integer=True), Integer(-1)), Rational(1, 2))"),
    ('expr_str', "Float('1', precision=53)"),
    ('target', 'torch.ops.aten.mul.Tensor'),
    ('target', 'torch.ops.aten.split.Tensor'),
    ('target', 'torch.ops.aten.sym_size.int'),
    ('target', 'torch.ops.aten._assert_scalar.default'),
    ('target', 'torch.ops.aten._softmax.default'),
    ('target', 'torch.ops.aten.scaled_dot_product_attention.default'),
    ('target', 'torch.ops.aten.max_pool2d_with_indices.default'),
)


@pytest.mark.parametrize(
    ('key', 'text', 'said'),
    [
        *(('expr_str', size, 'holds the size') for size in ENDLESS),
        *(('target', target, 'calls') for target in REFUSED),
    ],
)
def test_sizes_without_end_and_operators_that_are_no_part_of_networks_are_refused(key, text, said):
    with pytest.raises(UnsafeProgram, match=said):
        sanitized_graph(json.dumps({key: text}).encode())


@pytest.mark.parametrize(('key', 'text'), KEPT)
def test_sizes_of_torch_and_operators_of_networks_are_kept(key, text):
    sanitized_graph(json.dumps({key: text}).encode())
