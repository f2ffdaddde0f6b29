// The small base model and the texts beside it: whole, of the form that the loader reads, and read alike by the tokenizer of JavaScript.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { root } from "../../scripts/lib.mjs";

const model = join(root, "www/model"), texts = join(root, "www/texts");
const text = (...path) => readFileSync(join(...path), "utf8");
const json = (name) => JSON.parse(text(model, name));
const names = ["ballad.txt", "minutes.txt", "recipes.txt", "ships_log.txt"];

test("the files are the ones that training wrote, at most 12 MB", () => {
  const sums = text(model, "SHA256SUMS").trim().split("\n").map((line) => line.split("  "));
  assert.deepEqual(sums.map(([, name]) => name), ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
  for (const [sum, name] of sums) {
    assert.equal(createHash("sha256").update(readFileSync(join(model, name))).digest("hex"), sum, name);
    assert.equal(json("report.json").sha256[name], sum, name);
  }
  const bytes = readdirSync(model).reduce((sum, name) => sum + statSync(join(model, name)).size, 0);
  assert.ok(bytes <= 12e6, `${bytes}`);
});

test("config and tensors agree: a llama of 3 to 5.5 million parameters in f16", () => {
  const c = json("config.json");
  assert.equal(c.model_type, "llama");
  assert.equal(c.hidden_act, "silu");
  assert.equal(c.tie_word_embeddings, true);
  assert.ok(!c.rope_scaling && !c.attention_bias && !c.mlp_bias && !c.quantization_config);
  const width = c.hidden_size, inner = c.intermediate_size, q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const expected = { "model.embed_tokens.weight": [c.vocab_size, width], "model.norm.weight": [width] };
  for (let i = 0; i < c.num_hidden_layers; i += 1) {
    const layer = {
      "input_layernorm": [width], "post_attention_layernorm": [width],
      "self_attn.q_proj": [q, width], "self_attn.k_proj": [kv, width], "self_attn.v_proj": [kv, width], "self_attn.o_proj": [width, q],
      "mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width], "mlp.down_proj": [width, inner],
    };
    for (const [name, shape] of Object.entries(layer)) expected[`model.layers.${i}.${name}.weight`] = shape;
  }
  const file = readFileSync(join(model, "model.safetensors")), size = Number(file.readBigUInt64LE(0));
  const { __metadata__: metadata, ...tensors } = JSON.parse(file.toString("utf8", 8, 8 + size));
  assert.equal(metadata.format, "pt");
  assert.deepEqual(Object.fromEntries(Object.entries(tensors).map(([name, { shape }]) => [name, shape]).sort()), Object.fromEntries(Object.entries(expected).sort()));
  assert.ok(Object.values(tensors).every(({ dtype }) => dtype === "F16"));
  const values = new Uint16Array(file.buffer.slice(file.byteOffset + 8 + size, file.byteOffset + file.length));
  assert.ok(values.every((half) => (half & 0x7c00) !== 0x7c00), "a value is not finite");
  assert.equal(values.length, json("report.json").parameters);
  assert.ok(values.length >= 3e6 && values.length <= 5.5e6, `${values.length}`);
});

test("the report: below a 5-gram model on held-out text, ten samples", () => {
  const { held_out_bits_per_byte: bits, samples } = json("report.json"), readme = text(model, "README.md");
  assert.ok(bits.model > 0.5 && bits.model < bits["5-gram"], JSON.stringify(bits));
  for (const value of Object.values(bits)) assert.ok(readme.includes(value.toFixed(4)), `${value}`);
  assert.equal(samples.length, 10);
  assert.deepEqual(samples.map(({ seed }) => seed), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
});

test("JavaScript's tokenizer gives Python's ids and every text back", () => {
  const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
  const check = json("check.json");
  for (const { text: prompt, ids, greedy, continuation } of check.prompts) {
    assert.deepEqual(tokenizer.encode(prompt).ids, ids);
    assert.equal(tokenizer.decode(greedy), continuation);
  }
  for (const { file, tokens } of check.texts) {
    const whole = text(texts, file), { ids } = tokenizer.encode(whole);
    assert.equal(ids.length, tokens, file);
    assert.equal(tokenizer.decode(ids), whole, file);
  }
  for (const odd of [" ", "\r\n\t  x", "naïve 漢字 🙂🏳️‍🌈", "a<|endoftext|>b", "1234567890"]) {
    const { ids } = tokenizer.encode(odd);
    assert.ok(ids.every((id) => id >= 0 && id < 2048));
    assert.equal(tokenizer.decode(ids), odd);
  }
});

test("the texts: four of 8 to 20 KB that do not repeat themselves, and chat lines", () => {
  assert.deepEqual(readdirSync(texts).filter((name) => name.endsWith(".txt")).sort(), names);
  for (const name of names) {
    const whole = text(texts, name);
    assert.ok(whole.length >= 8000 && whole.length <= 20000, `${name} has ${whole.length}`);
    const words = whole.toLowerCase().match(/[a-z']+/g), runs = new Set(words.slice(7).map((_, i) => words.slice(i, i + 8).join(" ")));
    assert.ok(runs.size > 0.9 * (words.length - 7), `${name}: ${runs.size} of ${words.length} runs of eight words`);
  }
  const chats = text(texts, "chat.jsonl").trim().split("\n").map((line) => JSON.parse(line));
  assert.equal(chats.length, 60);
  for (const { messages } of chats) {
    messages.forEach(({ role, content }, i) => assert.ok(role === ["user", "assistant"][i % 2] && content.length > 1));
    assert.equal(messages.length % 2, 0);
  }
});
