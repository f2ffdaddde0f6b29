// GGUF files of models for tests, made of safetensors files in F32 as llama.cpp's converter does.
import { readFileSync } from "node:fs";

// The tensors of a safetensors file.
export function safetensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length));
  delete header.__metadata__;
  return Object.entries(header).map(([name, { shape, dtype, data_offsets: [start, end] }]) =>
    ({ name, shape, dtype, bytes: bytes.subarray(8 + length + start, 8 + length + end) }));
}

// A safetensors file of such tensors.
export function writeSafetensors(tensors) {
  const header = {};
  let at = 0;
  for (const { name, shape, dtype, bytes } of tensors) header[name] = { dtype, shape, data_offsets: [at, (at += bytes.length)] };
  const text = Buffer.from(JSON.stringify(header).padEnd(8 * Math.ceil(JSON.stringify(header).length / 8)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...tensors.map(({ bytes }) => bytes)]);
}

const NAMES = {
  "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
  "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
};

// Rows of a head [half][pair] as [pair][half].
function paired(bytes, rows, head) {
  const size = bytes.length / rows, out = Buffer.alloc(bytes.length);
  for (let row = 0; row < rows; row++) {
    const within = row % head, to = row - within + (within % (head / 2)) * 2 + Math.floor(within / (head / 2));
    bytes.copy(out, to * size, row * size, (row + 1) * size);
  }
  return out;
}

// A file of version 3 with metadata { key: value } and tensors { name, shape, kind, bytes }.
export function writeGguf(metadata, tensors) {
  const parts = [];
  const number = (value, size) => { const b = Buffer.alloc(size); size === 8 ? b.writeBigUInt64LE(BigInt(value)) : b.writeUInt32LE(value); parts.push(b); };
  const text = (value) => { const b = Buffer.from(value); number(b.length, 8); parts.push(b); };
  const scalar = (value) => typeof value === "string" ? [8, () => text(value)]
    : typeof value === "boolean" ? [7, () => parts.push(Buffer.from([Number(value)]))]
    : Number.isInteger(value) && value >= 0 ? [4, () => number(value, 4)]
    : [6, () => { const b = Buffer.alloc(4); b.writeFloatLE(value); parts.push(b); }];
  parts.push(Buffer.from("GGUF\x03\0\0\0", "latin1"));
  number(tensors.length, 8);
  number(Object.keys(metadata).length, 8);
  for (const [key, value] of Object.entries(metadata)) {
    text(key);
    if (!Array.isArray(value)) { const [type, write] = scalar(value); number(type, 4); write(); continue; }
    number(9, 4);
    number(value.length ? scalar(value[0])[0] : 8, 4);
    number(value.length, 8);
    for (const one of value) scalar(one)[1]();
  }
  let offset = 0;
  for (const { name, shape, kind, bytes } of tensors) {
    text(name);
    number(shape.length, 4);
    for (const d of [...shape].reverse()) number(d, 8);
    number(kind, 4);
    number(offset, 8);
    offset += 32 * Math.ceil(bytes.length / 32);
  }
  const pad = () => { const size = parts.reduce((sum, part) => sum + part.length, 0); parts.push(Buffer.alloc((32 - (size % 32)) % 32)); };
  for (const { bytes } of tensors) { pad(); parts.push(bytes); }
  pad();
  return Buffer.concat(parts);
}

// A llama of Hugging Face's as GGUF in F32.
export function llamaGguf(config, tensors, more = {}) {
  const head = config.head_dim ?? config.hidden_size / config.num_attention_heads;
  return writeGguf({
    "general.architecture": "llama", "llama.context_length": config.max_position_embeddings, "llama.embedding_length": config.hidden_size,
    "llama.block_count": config.num_hidden_layers, "llama.feed_forward_length": config.intermediate_size,
    "llama.attention.head_count": config.num_attention_heads, "llama.attention.head_count_kv": config.num_key_value_heads,
    "llama.rope.dimension_count": head, "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    "llama.rope.freq_base": (config.rope_parameters ?? config).rope_theta, ...more,
  }, tensors.map(({ name, shape, bytes }) => {
    const [, layer, own, part] = /^(?:model\.layers\.(\d+)\.)?(.*)\.(\w+)$/.exec(name);
    const short = `${layer === undefined ? "" : `blk.${layer}.`}${NAMES[own]}.${part}`;
    return { name: short, shape, kind: 0, bytes: /[qk]_proj/.test(name) ? paired(bytes, shape[0], head) : bytes };
  }));
}
