# SPDX-License-Identifier: Apache-2.0
"""ONNX files that mean harm: what could run code or reach files never gets to onnxruntime."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

onnx = pytest.importorskip('onnx', reason='onnx is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

from onnx import helper, numpy_helper, TensorProto  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.exported import onnx_session  # noqa: E402
from lerobot_serve.policies.exported.onnx_file import check_model  # noqa: E402
from lerobot_serve.policies.exported.onnx_schema import OPERATORS  # noqa: E402
from lerobot_serve.policies.exported.program_archive import UnsafeProgram  # noqa: E402

FLOAT = TensorProto.FLOAT
WEIGHT = numpy_helper.from_array(np.array([[1, 2], [3, 4]], np.float32), 'w')


def model(*nodes, initializers=(WEIGHT,), opsets=(('', 20),), **others):
    """Return a model that multiplies by a matrix, or with other nodes."""
    nodes = nodes or (helper.make_node('MatMul', ['x', 'w'], ['y']),)
    graph = helper.make_graph(
        nodes,
        'g',
        [helper.make_tensor_value_info('x', FLOAT, ['n', 2])],
        [helper.make_tensor_value_info('y', FLOAT, ['n', 2])],
        list(initializers),
    )
    imports = [helper.make_opsetid(*opset) for opset in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, **others)


def refused(made, said) -> None:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with pytest.raises(UnsafeProgram, match=said):
        check_model(memoryview(data))


def external(location, **others):
    tensor = TensorProto(name='w', data_type=FLOAT, dims=[2, 2], data_location=1)
    for key, value in {'location': location, **others}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_a_plain_model_runs(tmp_path):
    (tmp_path / 'program.onnx').write_bytes(model().SerializeToString())
    read = onnx_session.read_model(tmp_path / 'program.onnx')
    onnx_session.run_in_child_process(read, [(1, 2)])
    session = onnx_session.open_session(read)
    answer = session.run(None, {'x': np.array([[1, 1]], np.float32)})
    np.testing.assert_array_equal(answer[0], [[4, 6]])


def test_operators_are_onnxs_own():
    assert {name for name in OPERATORS if not onnx.defs.has(name)} <= {'RMSNormalization'}


@pytest.mark.parametrize(
    ('operator', 'domain'),
    [
        ('MatMul', 'com.microsoft'),
        ('FusedMatMul', 'com.microsoft'),
        ('PyOp', 'ai.onnx.contrib'),
        ('PyCustomOp', ''),
        ('Loop', ''),
        ('Scan', ''),
        ('RandomNormal', ''),
        ('ImageDecoder', ''),
        ('StringNormalizer', ''),
        ('SequenceConstruct', ''),
        ('', ''),
    ],
)
def test_operators_of_others_are_refused(operator, domain):
    node = helper.make_node(operator, ['x'], ['y'], domain=domain)
    refused(model(node), 'uses the operator')


def test_operator_sets_of_others_are_refused():
    refused(model(opsets=(('', 20), ('com.evil', 1))), 'needs operators of')


def nested(depth):
    inner = helper.make_graph(
        [helper.make_node('Identity', ['x'], ['z'])],
        'i',
        [],
        [helper.make_tensor_value_info('z', FLOAT, None)],
    )
    for _ in range(depth):
        node = helper.make_node('If', ['c'], ['z'], then_branch=inner, else_branch=inner)
        inner = helper.make_graph(
            [node], 'i', [], [helper.make_tensor_value_info('z', FLOAT, None)]
        )
    return inner.node[0]


def test_graphs_within_graphs_are_bounded():
    assert check_model(memoryview(model(nested(3)).SerializeToString())).nodes == 15
    refused(model(nested(6)), 'nested deeper than 4')
    hidden = helper.make_node('PyOp', ['x'], ['z'], domain='evil')
    graph = helper.make_graph([hidden], 'i', [], [helper.make_tensor_value_info('z', FLOAT, None)])
    refused(model(helper.make_node('If', ['c'], ['y'], then_branch=graph)), 'evil.PyOp')


def test_functions_training_and_unknown_fields_are_refused():
    function = helper.make_function('d', 'f', ['x'], ['y'], [], [helper.make_opsetid('', 20)])
    refused(model(functions=[function]), 'has the field 25')
    training = model()
    training.training_info.add()
    refused(training, 'has the field 20')
    refused(model().SerializeToString() + b'\xfa\x06\x00', 'has the field 111')


def test_a_second_graph_is_refused():
    # protobuf merges the two: one reader may take the first, another both
    refused(model().SerializeToString() * 2, 'twice')


@pytest.mark.parametrize('kind', [TensorProto.STRING, TensorProto.COMPLEX64, 0, 99])
def test_values_that_are_no_numbers_are_refused(kind):
    made = model(initializers=[TensorProto(name='w', data_type=kind, dims=[1])])
    refused(made, 'of the type')
    typed = model()
    typed.graph.input[0].type.tensor_type.elem_type = kind
    refused(typed, 'of the type')


def test_sizes_are_those_of_the_file():
    for dims in ([1 << 40], [1 << 20, 1 << 20], [-1], [1] * 9, [3, 2]):
        tensor = TensorProto(name='w', data_type=FLOAT, dims=dims, raw_data=bytes(16))
        refused(model(initializers=[tensor]), 'has a tensor')
    tensor = TensorProto(name='w', data_type=FLOAT, dims=[1 << 30], float_data=[1.0])
    refused(model(initializers=[tensor]), 'fewer values than its shape needs')


@pytest.mark.parametrize(
    'location',
    ['/etc/passwd', '../w.data', 'sub/w.data', '', '.', 'w.bin', '.data', 'a\0.data', '~/w.data'],
)
def test_tensors_in_files_of_others_are_refused(location):
    refused(model(initializers=[external(location)]), 'must be a plain name')


@pytest.mark.parametrize(
    ('others', 'said'),
    [
        ({'offset': -1}, 'that needs 16'),
        ({'length': 1 << 40}, 'that needs 16'),
        ({'offset': 'x'}, 'not a readable ONNX'),
        ({'basepath': '/'}, 'must be a plain name'),
    ],
)
def test_places_in_other_files_are_looked_at(others, said):
    refused(model(initializers=[external('w.data', **others)]), said)


def test_another_file_of_the_folder_is_read(tmp_path):
    file, weights = tmp_path / 'program.onnx', tmp_path / 'w.data'
    file.write_bytes(model(initializers=[external('w.data', offset=4)]).SerializeToString())
    with pytest.raises(PolicyError, match=r"needs 'w.data', which is not a file of its folder"):
        onnx_session.read_model(file)
    secret = tmp_path / 'secret'
    secret.write_bytes(bytes(20))
    weights.symlink_to(secret)
    with pytest.raises(PolicyError, match=r"needs 'w.data', which is not a file of its folder"):
        onnx_session.read_model(file)
    weights.unlink()
    weights.write_bytes(bytes(19))
    with pytest.raises(PolicyError, match=r"needs more bytes of 'w.data' than the file has"):
        onnx_session.read_model(file)
    weights.write_bytes(bytes(4) + np.array([[1, 2], [3, 4]], np.float32).tobytes())
    read = onnx_session.read_model(file)
    assert read.size_bytes == file.stat().st_size + 16
    onnx_session.run_in_child_process(read, [(1, 2)])
    answer = onnx_session.open_session(read).run(None, {'x': np.array([[1, 1]], np.float32)})
    np.testing.assert_array_equal(answer[0], [[4, 6]])


@pytest.mark.parametrize('size', [1 << 33, 1 << 40])
def test_memory_of_the_trial_is_bounded(tmp_path, size):
    shape = numpy_helper.from_array(np.array([size], np.int64), 's')
    nodes = [
        helper.make_node('ConstantOfShape', ['s'], ['big']),
        helper.make_node('ReduceSum', ['big'], ['sum'], keepdims=0),
        helper.make_node('Add', ['x', 'sum'], ['y']),
    ]
    (tmp_path / 'program.onnx').write_bytes(
        model(*nodes, initializers=[shape]).SerializeToString()
    )
    read = onnx_session.read_model(tmp_path / 'program.onnx')
    with pytest.raises(PolicyError, match='cannot be run within 4096 MB by onnxruntime'):
        onnx_session.run_in_child_process(read, [(1, 2)])


def test_a_trial_that_ends_badly_is_said(tmp_path, monkeypatch):
    (tmp_path / 'program.onnx').write_bytes(model().SerializeToString())
    read = onnx_session.read_model(tmp_path / 'program.onnx')
    with pytest.raises(PolicyError, match=r'policy\.json names 2'):
        onnx_session.run_in_child_process(read, [(1, 2), (1, 2)])
    monkeypatch.setattr(onnx_session, 'TRIAL_SPARE_BYTES', 1 << 20)
    with pytest.raises(PolicyError, match='cannot be run within 1 MB'):
        onnx_session.run_in_child_process(read, [(1, 2)])


def test_the_trial_needs_no_torch():
    code = (
        'import sys, lerobot_serve.policies.exported.onnx_session; '
        'assert "torch" not in sys.modules and "onnxruntime" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)


def test_a_device_that_cannot_run_it_is_refused(tmp_path):
    (tmp_path / 'program.onnx').write_bytes(model().SerializeToString())
    read = onnx_session.read_model(tmp_path / 'program.onnx')
    with pytest.raises(PolicyError, match='install onnxruntime-gpu'):
        onnx_session.open_session(read, 'cuda:0')


PLAIN = model(nested(2)).SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.binary(max_size=6)), max_size=4))
@settings(max_examples=1000, deadline=None)
def test_no_damage_gives_anything_but_a_sentence(changes):
    data = bytearray(PLAIN)
    for start, damage in changes:
        data[start : start + len(damage)] = damage
    try:
        check_model(memoryview(bytes(data)))
    except UnsafeProgram as error:
        assert '\n' not in str(error)


def test_what_is_written_can_be_read(tmp_path: Path):
    (tmp_path / 'program.onnx').write_bytes(PLAIN[:-1])
    with pytest.raises(PolicyError, match='is refused: it'):
        onnx_session.read_model(tmp_path / 'program.onnx')
