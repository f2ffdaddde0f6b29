// Adapters of many kinds as the package writes them, for check_with_peft.py, which calls this and says what lies in FOLDER:
// base/model.safetensors and base/config.json, gpt2/model.safetensors, conv.safetensors, from_peft/* (adapters that PEFT saved).
// Usage: node tests/interop/write.mjs FOLDER SEED
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { combine, importAdapter, loadPeft, makePeft, merge, modelModules } from "../../dist/node.js";

const [folder, seed] = process.argv.slice(2);
const read = (...path) => new Uint8Array(readFileSync(join(folder, ...path)));
const model = read("base/model.safetensors"), gpt2 = read("gpt2/model.safetensors"), convolutions = read("conv.safetensors"), modelConfig = read("base/config.json");
const [modules, kernels] = await Promise.all([modelModules(model), modelModules(convolutions)]);

// Numbers in ±1, from SplitMix32.
let state = Number(seed);
const random = () => {
  state = (state + 0x9e3779b9) | 0;
  let z = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
  return ((z ^ (z >>> 15)) >>> 0) / 2 ** 31 - 1;
};
const numbers = (length, scale) => Float32Array.from({ length }, () => scale * random());

/** Layers of the modules whose names end so. */
const layers = (ends, options = {}, all = modules) =>
  all.filter(({ name, kind }) => kind !== "other" && ends.some((end) => name.endsWith(end))).map(({ name, inFeatures, outFeatures, kind }, i) => {
    const { rank = 4, alpha = 8, magnitude, loraBias, bias, ...rest } = typeof options === "function" ? options(name, i) : options;
    return {
      name, rank, alpha, a: numbers(rank * inFeatures, 0.3), b: numbers(outFeatures * rank, 0.1), ...(kind === "embedding" && { kind }), ...rest,
      ...(magnitude && { magnitude: numbers(outFeatures, 0.2).map((v) => v + 1.2) }), ...(loraBias && { loraBias: numbers(outFeatures, 0.1) }), ...(bias && { bias: numbers(outFeatures, 0.1) }),
    };
  });
const QV = ["q_proj", "v_proj"], ALL = [...QV, "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/** Writes `<name>/adapter_*`, what our side says of it, and the model with it merged. */
async function write(name, adapter, { dtype = "float32", base = model, merged = true } = {}) {
  const files = adapter.files({ dtype }), own = join(folder, "ours", name);
  mkdirSync(own, { recursive: true });
  writeFileSync(join(own, "adapter_config.json"), files.config);
  writeFileSync(join(own, "adapter_model.safetensors"), files.weights);
  const said = adapter.modules.map(({ name, kind, rank, alpha, scaling }) => ({ name, kind, rank, alpha, scaling }));
  writeFileSync(join(own, "said.json"), JSON.stringify({ modules: said, base: base === model ? "llama" : base === gpt2 ? "gpt2" : "conv" }));
  // Merged as it is when loaded again: with weights of the type that it was saved in.
  const again = await loadPeft({ config: Buffer.from(files.config), weights: files.weights });
  if (merged) writeFileSync(join(own, "merged.safetensors"), Buffer.from(await (await merge({ adapter: again, model: base })).arrayBuffer()));
  return adapter;
}
const make = (layers, config = {}) => makePeft({ layers, baseModel: "base", config: { task_type: "CAUSAL_LM", ...config } });

const plain = await write("plain", await make(layers(QV)));
const all = await write("all_linear", await make(layers(ALL)));
await write("rslora", await make(layers(QV, { alpha: 6 }), { use_rslora: true }));
const patterns = await write("patterns", await make(layers(ALL, (name, i) => ({ rank: 1 + (i % 4), alpha: 2 + (i % 3) }))));
await write("patterns_rslora", await make(layers(ALL, (name, i) => ({ rank: 1 + (i % 4), alpha: 2.5 + (i % 3) })), { use_rslora: true }));
await write("dora", await make(layers(ALL, { magnitude: true })));
await write("lora_bias_no_base_bias", await make(layers(QV, { loraBias: true })), { merged: false }); // the model has no biases to take them
await write("bias_lora_only", await make(layers(["fc"], { bias: true }, kernels), { task_type: null }), { base: convolutions });
await write("lora_bias", await make(layers(["fc"], { loraBias: true }, kernels), { task_type: null }), { base: convolutions });
await write("embedding", await make(layers(["embed_tokens", "q_proj"])));
await write("head", await make(layers(["lm_head", "v_proj"])));
await write("conv_1x1", await make([...layers(["conv"], { kind: "conv1x1" }, kernels), ...layers(["fc"], {}, kernels)], { task_type: null }), { base: convolutions });
await write("saved_f16", plain, { dtype: "float16" });
await write("saved_bf16", plain, { dtype: "bfloat16" });
for (const type of ["linear", "cat", "svd"]) {
  const second = await make(layers(QV, { alpha: 3 }));
  await write(`weighted_${type}`, await combine([{ adapter: plain, weight: 0.7 }, { adapter: second, weight: 0.4 }], { type }));
}
await write("from_gguf", await importAdapter({ format: "gguf", file: await patterns.toGguf({ modelConfig }), modelConfig }));
await write("from_kohya", await importAdapter({ format: "kohya", file: all.toKohya(), model }));
await write("from_hesper", await importAdapter({ format: "hesper", file: plain.toHesper(), inFeatures: plain.modules[0].inFeatures, qOutFeatures: plain.modules[0].outFeatures, vOutFeatures: plain.modules[1].outFeatures }));
// What PEFT saved goes through arrays, as layers in a page do, and keeps its configuration and other tensors.
for (const name of readdirSync(join(folder, "from_peft"))) {
  const base = name.startsWith("fan_in_fan_out") ? gpt2 : model;
  const adapter = await loadPeft({ config: read("from_peft", name, "adapter_config.json"), weights: read("from_peft", name, "adapter_model.safetensors") }, { model: base });
  const arrays = adapter.modules.map(({ name, kind, rank, alpha, a, b }) => ({ name, kind, rank, alpha, a, b }));
  await write(name, await makePeft({ layers: arrays, like: adapter }), { base });
  if (adapter.changesBase) await write(`${name}_to_plain`, await adapter.toPlain({ model: base }), { base });
}
