// A and B as one safetensors file: eight bytes of header length, a JSON header with names and shapes, then the float32
// values, row-major and little-endian. The names are those that PEFT gives to a module called `demo`.

export function adapterFile({ a, b, rank, inFeatures, outFeatures, alpha, scaling }) {
  const tensors = [
    { name: "base_model.model.demo.lora_A.weight", shape: [rank, inFeatures], data: a },
    { name: "base_model.model.demo.lora_B.weight", shape: [outFeatures, rank], data: b },
  ];
  const header = { __metadata__: { format: "pt", r: String(rank), lora_alpha: String(alpha), scaling: String(scaling) } };
  let offset = 0;
  for (const { name, shape, data } of tensors) {
    header[name] = { dtype: "F32", shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  let json = JSON.stringify(header);
  json = json.padEnd(Math.ceil(json.length / 8) * 8);
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(json.length), true);
  return new Blob([length, json, ...tensors.map(({ data }) => data)], { type: "application/octet-stream" });
}
