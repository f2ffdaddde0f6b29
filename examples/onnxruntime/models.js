// Two tiny ONNX models, written byte by byte: the format is protocol buffers, and needs of them only what stands here.
import { classes, encoder, hiddenFeatures, inFeatures, tokens } from "../task.js";

// A field is its number and wire type, then a varint (0) or a length and bytes (2).
const varint = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)]);
const integer = (field, value) => [...varint(field << 3), ...varint(value)];
const bytes = (field, content) => [...varint((field << 3) | 2), ...varint(content.length), ...content];
const text = (field, value) => bytes(field, new TextEncoder().encode(value));

const FLOAT = 1; // TensorProto.DataType
/** NodeProto */
const node = (type, inputs, output) => [...inputs.flatMap((name) => text(1, name)), ...text(2, output), ...text(4, type)];
/** TensorProto with raw little-endian data */
const constant = (name, shape, data) => [
  ...shape.flatMap((size) => integer(1, size)), ...integer(2, FLOAT), ...text(8, name), ...bytes(9, new Uint8Array(data.buffer)),
];
/** ValueInfoProto of TypeProto.Tensor of TensorShapeProto */
const value = (name, shape) => [
  ...text(1, name), ...bytes(2, bytes(1, [...integer(1, FLOAT), ...bytes(2, shape.flatMap((size) => bytes(1, integer(1, size))))])),
];
/** ModelProto of a GraphProto */
const model = (name, { nodes, constants = [], input, output }) => {
  const graph = [
    ...nodes.flatMap((each) => bytes(1, each)), ...text(2, name), ...constants.flatMap((each) => bytes(5, each)), ...bytes(11, input), ...bytes(12, output),
  ];
  const opset = integer(2, 17);
  return Uint8Array.from([...integer(1, 8), ...text(2, "lora-webgpu"), ...bytes(7, graph), ...bytes(8, opset)]);
};

/** `hidden = tanh(x·W + b)`: `x [tokens, inFeatures]` → `hidden [tokens, hiddenFeatures]` */
export const encoderModel = () => model("encoder", {
  nodes: [node("MatMul", ["x", "weight"], "product"), node("Add", ["product", "bias"], "sum"), node("Tanh", ["sum"], "hidden")],
  constants: [constant("weight", [inFeatures, hiddenFeatures], encoder.weight), constant("bias", [hiddenFeatures], encoder.bias)],
  input: value("x", [tokens, inFeatures]),
  output: value("hidden", [tokens, hiddenFeatures]),
});

/** `probabilities = softmax(scores)`, both `[tokens, classes]` */
export const headModel = () => model("head", {
  nodes: [node("Softmax", ["scores"], "probabilities")],
  input: value("scores", [tokens, classes]),
  output: value("probabilities", [tokens, classes]),
});
