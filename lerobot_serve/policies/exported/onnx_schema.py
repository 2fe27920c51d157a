# SPDX-License-Identifier: Apache-2.0
"""
The allowed messages, fields and operators of ONNX, and what their values may come from.

Functions, training, sparse and quantized tensors, sequences, maps, strings, loops, random numbers
and references to code are not allowed, nor results whose size depends on values (Compress,
NonZero).

A whole number divided by -1 or 0 ends the process. So what is divided must be of a float type,
which onnxruntime compares with the operator's, or the divisor a constant of the file without them.
A size that a value decides takes any memory. So sizes must come from constants and from the
shapes of values: then the shapes of all values follow from those of the inputs, which the trial
has. No torch, any thread.
"""

from __future__ import annotations

from lerobot_serve.policies.exported.program_archive import UnsafeProgram

# fields of a message: number -> (name, wire type, whether it may repeat)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MessageSchema = dict[int, tuple[str, int, bool]]


def _message(fields: str) -> MessageSchema:
    """Return fields, each written as NUMBER:NAME; # is a number, ~ a float, and * may repeat."""
    kinds = {'#': (VARINT, False), '~': (FIXED32, False), '*': (BYTES, True)}
    parts = [field.partition(':') for field in fields.split()]
    return {
        int(number): (name.rstrip('#~*'), *kinds.get(name[-1], (BYTES, False)))
        for number, _, name in parts
    }


MODEL = _message("""
    1:ir_version# 2:producer_name 3:producer_version 4:domain 5:model_version# 6:doc_string
    7:graph 8:opset_import* 14:metadata_props*
""")
OPSET = _message('1:domain 2:version#')
GRAPH_FIELDS = _message("""
    1:node* 2:name 5:initializer* 10:doc_string 11:input* 12:output* 13:value_info*
    16:metadata_props*
""")
NODE = _message("""
    1:input* 2:output* 3:name 4:op_type 5:attribute* 6:doc_string 7:domain 9:metadata_props*
""")
ATTRIBUTE = _message("""
    1:name 2:f~ 3:i# 4:s 5:t 6:g 7:floats* 8:ints* 9:strings* 13:doc_string 20:type#
""")
TENSOR_FIELDS = _message("""
    1:dims* 2:data_type# 4:float_data* 5:int32_data* 7:int64_data* 8:name 9:raw_data
    10:double_data* 11:uint64_data* 12:doc_string 13:external_data* 14:data_location#
    16:metadata_props*
""")
KEY_VALUE = _message('1:key 2:value')
VALUE = _message('1:name 2:type 3:doc_string 4:metadata_props*')
TYPE_FIELDS = _message('1:tensor_type 6:denotation')
TENSOR_TYPE = _message('1:elem_type# 2:shape')
TENSOR_SHAPE = _message('1:dim*')
DIMENSION = _message('1:dim_value# 2:dim_param 3:denotation')
# numbers may be packed into bytes, or repeated, each with this wire type
PACKABLE = {
    **dict.fromkeys(('dims', 'ints', 'int32_data', 'int64_data', 'uint64_data'), VARINT),
    **dict.fromkeys(('floats', 'float_data'), FIXED32),
    'double_data': FIXED64,
}
# for people alone: not written again
TEXTS = {'producer_name', 'producer_version', 'doc_string', 'metadata_props', 'denotation'}
FieldValue = int | memoryview
# a checked message: its bytes, in parts
Parts = list[bytes | memoryview]
# the operators of ai.onnx
NAMES = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
Celu CenterCropPad Clip Col2Im Concat Constant ConstantOfShape Conv ConvTranspose
Cos Cosh CumSum DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Einsum Elu Equal Erf
Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm
GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul
Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg Not OneHot Or PRelu
Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSum ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round ScatterElements
ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign
SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose
Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(NAMES.split())
FLOAT_TYPES = {1, 10, 11, 16}
DIVISIONS = {b'Div', b'Mod'}
# operator -> the inputs that decide the shape of its result, or which graph is run
SIZE_INPUTS = {
    **dict.fromkeys((b'ConstantOfShape', b'If'), (0,)),
    **dict.fromkeys((b'CenterCropPad', b'Expand', b'OneHot', b'Reshape', b'Split'), (1,)),
    **dict.fromkeys((b'Squeeze', b'Tile', b'TopK', b'Unsqueeze'), (1,)),
    **{
        b'Reduce' + kind: (1,)
        for kind in b'L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare'.split()
    },
    b'Col2Im': (1, 2),
    b'Pad': (1, 3),
    b'Range': (0, 1, 2),
    b'Resize': (1, 2, 3),
    b'Slice': (1, 2, 3, 4),
}
SHAPES = {b'Shape', b'Size'}


class GraphValues:
    """The values that a graph names, within another graph or none."""

    def __init__(self, outer: GraphValues | None) -> None:
        self._outer = outer
        self._sizes: set[bytes] = set()
        self._divisors: set[bytes] = set()
        self._element_types: dict[bytes, set[int]] = {}

    def add_constant(self, name: bytes, *, divides: bool) -> None:
        """Name a constant; `divides` says that it is a float, or holds neither 0 nor -1."""
        self._sizes.add(name)
        if divides:
            self._divisors.add(name)

    def add_type(self, name: bytes, element_type: int) -> None:
        """Note what the file says of the type of a value."""
        self._element_types.setdefault(name, set()).add(element_type)

    def add_node(self, operator: bytes, inputs: list[bytes], outputs: list[bytes]) -> None:
        """Name the results of a node. Raises UnsafeProgram for one that a value could harm by."""
        for position in SIZE_INPUTS.get(operator, ()):
            name = inputs[position] if position < len(inputs) else b''
            if name and not self._is_size(name):
                raise UnsafeProgram(
                    f'has {operator.decode()} of a size that depends on the values of its inputs'
                )
        if operator in DIVISIONS and not self._may_divide(inputs, outputs):
            raise UnsafeProgram(
                f'has {operator.decode()} of values that are not said to be float, by a divisor '
                'that is not a constant without 0 and -1'
            )
        from_sizes = operator != b'If' and all(map(self._is_size, filter(None, inputs)))
        if operator in SHAPES or from_sizes:
            self._sizes.update(outputs)
        elif any(map(self._is_size, filter(None, outputs))):
            raise UnsafeProgram('names two values alike')

    def _is_size(self, name: bytes) -> bool:
        return name in self._sizes or (self._outer is not None and self._outer._is_size(name))

    def _may_divide(self, inputs: list[bytes], outputs: list[bytes]) -> bool:
        said = self._element_types.get(outputs[0], set()) if outputs else set()
        return (bool(said) and said <= FLOAT_TYPES) or not self._divisors.isdisjoint(inputs[1:2])
