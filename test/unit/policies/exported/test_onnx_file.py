# SPDX-License-Identifier: Apache-2.0
"""ONNX files that mean harm: what could run code or reach files never gets to onnxruntime."""

from __future__ import annotations

import dataclasses
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
from lerobot_serve.policies.exported.onnx_file import checked_model  # noqa: E402
from lerobot_serve.policies.exported.onnx_schema import OPERATORS  # noqa: E402
from lerobot_serve.policies.exported.program_archive import UnsafeProgram  # noqa: E402
from lerobot_serve.policies.runtime import trial  # noqa: E402

FLOAT = TensorProto.FLOAT
WEIGHT = numpy_helper.from_array(np.array([[1, 2], [3, 4]], np.float32), 'w')
# an input of a trial
ROW = (1, 2), 0.0


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


def checked(made):
    """Return what the reader finds in a model or its bytes."""
    return checked_model(memoryview(made if isinstance(made, bytes) else made.SerializeToString()))


def refused(made, said) -> None:
    with pytest.raises(UnsafeProgram, match=said):
        checked(made)


def read(folder, made=None):
    """Write a model into a folder, and read it as a policy is read."""
    made = model() if made is None else made
    file = folder / 'program.onnx'
    file.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return onnx_session.read_model(file)


def external(location, **others):
    tensor = TensorProto(name='w', data_type=FLOAT, dims=[2, 2], data_location=1)
    for key, value in {'location': location, **others}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_a_plain_model_runs(tmp_path):
    made = read(tmp_path)
    onnx_session.run_in_child_process(made, [[ROW]])
    assert_multiplies(made)


def assert_multiplies(made) -> None:
    answer = onnx_session.open_session(made).run(None, {'x': np.array([[1, 1]], np.float32)})
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
        ('NonZero', ''),
        ('Compress', ''),
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


def whole(name, *numbers):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


WHOLE_X = helper.make_node('Cast', ['x'], ['i'], to=TensorProto.INT64)


def divided(operator, divisor):
    return (
        WHOLE_X,
        helper.make_node(operator, ['i', divisor], ['q']),
        helper.make_node('Cast', ['q'], ['y'], to=FLOAT),
    )


@pytest.mark.parametrize('operator', ['Div', 'Mod'])
def test_whole_numbers_are_divided_by_harmless_constants_alone(operator):
    """The least of them divided by -1, and any by 0, ends the process."""
    said = f'has {operator} of values that are not said to be float'
    for numbers in ([-1], [3, 0]):
        refused(model(*divided(operator, 'd'), initializers=[whole('d', *numbers)]), said)
        constant = helper.make_node('Constant', [], ['d'], value=whole('', *numbers))
        refused(model(constant, *divided(operator, 'd')), said)
    refused(model(*divided(operator, 'i')), said)
    inner = helper.make_graph(divided(operator, 'i'), 'i', [], [])
    refused(model(helper.make_node('If', ['w'], ['y'], then_branch=inner)), said)
    harmless = model(*divided(operator, 'd'), initializers=[whole('d', 2, -3)])
    assert checked(harmless).nodes == 3
    constant = helper.make_node('Constant', [], ['d'], value=whole('', 2, -3))
    harmless = model(constant, *divided(operator, 'd'))
    assert checked(harmless).nodes == 4
    plain = model(helper.make_node(operator, ['x', 'x'], ['y'], **MODE[operator]))
    assert checked(plain).nodes == 1


MODE = {'Div': {}, 'Mod': {'fmod': 1}}


def test_a_type_that_is_not_that_of_a_value_is_refused_by_onnxruntime(tmp_path):
    lie = model(*divided('Div', 'd'), initializers=[whole('d', -1)])
    said = helper.make_tensor_value_info('q', FLOAT, None)
    lie.graph.value_info.append(said)
    result = helper.make_tensor_value_info('y', FLOAT, None)
    inner = helper.make_graph(divided('Div', 'd'), 'i', [], [result], value_info=[said])
    yes = numpy_helper.from_array(np.array(True), 'yes')
    chosen = helper.make_node('If', ['yes'], ['y'], then_branch=inner, else_branch=inner)
    within = model(chosen, initializers=[yes, whole('d', -1)])
    for each in (lie, within):
        with pytest.raises(Exception, match='Type Error'):
            onnx_session.open_session(read(tmp_path, each))


SIZED = {
    'Range': ['w', 'x', 'w'],
    'Expand': ['w', 'x'],
    'Tile': ['w', 'x'],
    'ConstantOfShape': ['x'],
    'OneHot': ['w', 'x', 'w'],
    'Pad': ['w', 'x'],
    'Resize': ['w', '', '', 'x'],
    'Reshape': ['w', 'x'],
    'Slice': ['w', 'w', 'x'],
    'ReduceSum': ['w', 'x'],
    'If': ['x'],
}


@pytest.mark.parametrize(('operator', 'inputs'), SIZED.items(), ids=SIZED)
def test_a_size_that_a_value_decides_is_refused(operator, inputs):
    said = f'has {operator} of a size that depends'
    refused(model(helper.make_node(operator, inputs, ['y'])), said)
    inputs = ['s' if name == 'x' else name for name in inputs]
    sized = helper.make_node(operator, inputs, ['y'])
    refused(model(helper.make_node('Mul', ['x', 'w'], ['s']), sized), said)
    shape = helper.make_node('Shape', ['x'], ['shape'])
    free = model(shape, helper.make_node('Mul', ['shape', 'w'], ['s']), sized)
    assert checked(free).nodes == 3


def test_a_size_has_one_origin():
    nodes = [helper.make_node('Identity', [name], ['s']) for name in 'wx']
    refused(model(*nodes), 'names two values alike')


def nested(depth):
    inner = helper.make_graph(
        [helper.make_node('Identity', ['x'], ['z'])],
        'i',
        [],
        [helper.make_tensor_value_info('z', FLOAT, None)],
    )
    for _ in range(depth):
        node = helper.make_node('If', ['w'], ['z'], then_branch=inner, else_branch=inner)
        inner = helper.make_graph(
            [node], 'i', [], [helper.make_tensor_value_info('z', FLOAT, None)]
        )
    return inner.node[0]


def test_graphs_within_graphs_are_bounded():
    assert checked(model(nested(3))).nodes == 15
    refused(model(nested(6)), 'nested deeper than 4')
    hidden = helper.make_node('PyOp', ['x'], ['z'], domain='evil')
    graph = helper.make_graph([hidden], 'i', [], [helper.make_tensor_value_info('z', FLOAT, None)])
    refused(model(helper.make_node('If', ['w'], ['y'], then_branch=graph)), 'evil.PyOp')


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
    found = onnx_session.read_model(file)
    assert found.size_bytes == file.stat().st_size + 16
    onnx_session.run_in_child_process(found, [[ROW]])
    assert_multiplies(found)


@pytest.mark.parametrize('size', [1 << 33, 1 << 40])
def test_memory_of_the_trial_is_bounded(tmp_path, size):
    shape = numpy_helper.from_array(np.array([size], np.int64), 's')
    nodes = [
        helper.make_node('ConstantOfShape', ['s'], ['big']),
        helper.make_node('ReduceSum', ['big'], ['sum'], keepdims=0),
        helper.make_node('Add', ['x', 'sum'], ['y']),
    ]
    with pytest.raises(PolicyError, match='cannot be run by onnxruntime'):
        onnx_session.run_in_child_process(
            read(tmp_path, model(*nodes, initializers=[shape])), [[ROW]]
        )


def test_a_trial_that_ends_badly_is_said(tmp_path, monkeypatch):
    made = read(tmp_path)
    with pytest.raises(PolicyError, match=r'policy\.json names 2'):
        onnx_session.run_in_child_process(made, [[ROW, ROW]])
    monkeypatch.setattr(trial, 'SPARE_BYTES', 1 << 20)
    with pytest.raises(PolicyError, match='within 1 MB, ended with status'):
        onnx_session.run_in_child_process(made, [[ROW]])


def test_the_trial_needs_no_torch():
    code = (
        'import sys, lerobot_serve.policies.exported.onnx_session; '
        'assert "torch" not in sys.modules and "onnxruntime" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)


def test_a_device_that_cannot_run_it_is_refused(tmp_path):
    with pytest.raises(PolicyError, match='install onnxruntime-gpu'):
        onnx_session.open_session(read(tmp_path), 'cuda:0')


PLAIN = model(nested(2)).SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.binary(max_size=6)), max_size=4))
@settings(max_examples=1000, deadline=None)
def test_no_damage_gives_anything_but_a_sentence(changes):
    data = bytearray(PLAIN)
    for start, damage in changes:
        data[start : start + len(damage)] = damage
    try:
        checked(bytes(data))
    except UnsafeProgram as error:
        assert '\n' not in str(error)


def test_what_is_written_can_be_read(tmp_path: Path):
    with pytest.raises(PolicyError, match='is refused: it'):
        read(tmp_path, PLAIN[:-1])


def test_a_file_in_the_format_of_onnxruntime_is_refused(tmp_path):
    import onnxruntime

    counting = helper.make_graph(
        [
            helper.make_node('Identity', ['go'], ['goes']),
            helper.make_node('Identity', ['value'], ['next']),
        ],
        'body',
        [
            helper.make_tensor_value_info('number', TensorProto.INT64, []),
            helper.make_tensor_value_info('go', TensorProto.BOOL, []),
            helper.make_tensor_value_info('value', FLOAT, ['n', 2]),
        ],
        [
            helper.make_tensor_value_info('goes', TensorProto.BOOL, []),
            helper.make_tensor_value_info('next', FLOAT, ['n', 2]),
        ],
    )
    times = numpy_helper.from_array(np.array(1 << 40, np.int64), 'times')
    loop = model(
        helper.make_node('Loop', ['times', '', 'x'], ['y'], body=counting), initializers=[times]
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / 'program.onnx')
    options.add_session_config_entry('session.save_model_format', 'ORT')
    onnxruntime.InferenceSession(loop.SerializeToString(), options)
    assert (tmp_path / 'program.onnx').read_bytes()[4:8] == b'ORTM'
    with pytest.raises(PolicyError, match='is refused: it'):
        onnx_session.read_model(tmp_path / 'program.onnx')


def test_a_file_of_two_formats_is_read_as_the_one_that_was_checked(tmp_path):
    # a name that no reader needs begins the file, with the mark of the other format in its place
    name = b'\x12\x0a..ORTMv6..'
    made = read(tmp_path, name + model().SerializeToString())
    assert b'ORTM' not in made.data
    onnx_session.run_in_child_process(made, [[ROW]])
    # and bytes that have it are not read in that format
    assert_multiplies(dataclasses.replace(made, data=name + made.data))


def test_what_is_written_is_what_was_read_but_for_texts():
    made = model(
        helper.make_node('Clip', ['x', 'w'], ['c'], doc_string='d'),
        helper.make_node('Conv', ['c', 'w'], ['y'], pads=[1, -1], alpha=0.5, scales=[1.5, -2.0]),
        nested(2),
        initializers=[
            WEIGHT,
            TensorProto(name='f', data_type=FLOAT, dims=[2], float_data=[1.5, -2]),
            TensorProto(name='l', data_type=TensorProto.INT64, dims=[2], int64_data=[-1, 1 << 40]),
            TensorProto(name='d', data_type=TensorProto.DOUBLE, dims=[1], double_data=[2.5]),
        ],
        producer_name='somebody',
        doc_string='text',
    )
    written = onnx.load_from_string(checked(made).data)
    made.ClearField('producer_name')
    made.ClearField('doc_string')
    made.graph.node[0].ClearField('doc_string')
    assert written == made
    again = checked(written).data
    assert again == checked(again).data


def test_a_run_that_is_asked_to_end_ends_with_an_error(tmp_path, monkeypatch):
    torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.policies.exported import programs

    session = onnx_session.open_session(read(tmp_path))
    program = programs.OnnxProgram(session, ['x'], torch.device('cpu'))
    inputs = [torch.ones(1, 2)]
    assert program.run(inputs, None)[0].tolist() == [[4, 6]]
    options = onnx_session.run_options()
    monkeypatch.setattr(programs, 'run_options', lambda: options)
    program._options = options
    program.interrupt()
    with pytest.raises(Exception, match=r'[Tt]erminat'):
        program.run(inputs, None)
    monkeypatch.undo()
    assert program.run(inputs, None)[0].tolist() == [[4, 6]]
