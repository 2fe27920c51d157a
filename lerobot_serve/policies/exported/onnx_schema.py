# SPDX-License-Identifier: Apache-2.0
"""
The allowed messages, fields and operators of ONNX; plain data.

Functions, training, sparse and quantized tensors, sequences, maps, strings, loops, random numbers
and references to code are not allowed.
"""

from __future__ import annotations

# fields of a message: number -> (name, wire type, whether it may repeat)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MessageSchema = dict[int, tuple[str, int, bool]]
MODEL: MessageSchema = {
    1: ('ir_version', VARINT, False),
    2: ('producer_name', BYTES, False),
    3: ('producer_version', BYTES, False),
    4: ('domain', BYTES, False),
    5: ('model_version', VARINT, False),
    6: ('doc_string', BYTES, False),
    7: ('graph', BYTES, False),
    8: ('opset_import', BYTES, True),
    14: ('metadata_props', BYTES, True),
}
OPSET: MessageSchema = {1: ('domain', BYTES, False), 2: ('version', VARINT, False)}
GRAPH_FIELDS: MessageSchema = {
    1: ('node', BYTES, True),
    2: ('name', BYTES, False),
    5: ('initializer', BYTES, True),
    10: ('doc_string', BYTES, False),
    11: ('input', BYTES, True),
    12: ('output', BYTES, True),
    13: ('value_info', BYTES, True),
    16: ('metadata_props', BYTES, True),
}
NODE: MessageSchema = {
    1: ('input', BYTES, True),
    2: ('output', BYTES, True),
    3: ('name', BYTES, False),
    4: ('op_type', BYTES, False),
    5: ('attribute', BYTES, True),
    6: ('doc_string', BYTES, False),
    7: ('domain', BYTES, False),
    9: ('metadata_props', BYTES, True),
}
ATTRIBUTE: MessageSchema = {
    1: ('name', BYTES, False),
    2: ('f', FIXED32, False),
    3: ('i', VARINT, False),
    4: ('s', BYTES, False),
    5: ('t', BYTES, False),
    6: ('g', BYTES, False),
    7: ('floats', BYTES, True),
    8: ('ints', BYTES, True),
    9: ('strings', BYTES, True),
    13: ('doc_string', BYTES, False),
    20: ('type', VARINT, False),
}
TENSOR_FIELDS: MessageSchema = {
    1: ('dims', BYTES, True),
    2: ('data_type', VARINT, False),
    4: ('float_data', BYTES, True),
    5: ('int32_data', BYTES, True),
    7: ('int64_data', BYTES, True),
    8: ('name', BYTES, False),
    9: ('raw_data', BYTES, False),
    10: ('double_data', BYTES, True),
    11: ('uint64_data', BYTES, True),
    12: ('doc_string', BYTES, False),
    13: ('external_data', BYTES, True),
    14: ('data_location', VARINT, False),
    16: ('metadata_props', BYTES, True),
}
KEY_VALUE: MessageSchema = {1: ('key', BYTES, False), 2: ('value', BYTES, False)}
VALUE: MessageSchema = {
    1: ('name', BYTES, False),
    2: ('type', BYTES, False),
    3: ('doc_string', BYTES, False),
    4: ('metadata_props', BYTES, True),
}
TYPE_FIELDS: MessageSchema = {1: ('tensor_type', BYTES, False), 6: ('denotation', BYTES, False)}
TENSOR_TYPE: MessageSchema = {1: ('elem_type', VARINT, False), 2: ('shape', BYTES, False)}
# numbers may be packed into bytes, or repeated
PACKABLE = {'dims', 'ints', 'floats', 'float_data', 'int32_data', 'int64_data'}
PACKABLE |= {'double_data', 'uint64_data'}
FieldValue = int | memoryview
# the operators of ai.onnx
NAMES = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
Celu CenterCropPad Clip Col2Im Compress Concat Constant ConstantOfShape Conv ConvTranspose
Cos Cosh CumSum DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Einsum Elu Equal Erf
Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm
GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul
Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonZero Not OneHot Or PRelu
Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSum ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round ScatterElements
ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign
SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose
Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(NAMES.split())
