// Benchmarks in a fresh page: a LoRA layer trained with mean squared error and AdamW, new inputs every step.
import { adamw, CausalLM, FrozenLinear, Gpu, init, LanguageTrainer, LoraLinear, Optimizer, Tensor } from "../dist/index.js";

const random = (length) => Float32Array.from({ length }, () => Math.random() * 2 - 1);

export async function bench({ tokens, inFeatures, outFeatures, rank, steps }) {
  await init();
  const weight = random(inFeatures * outFeatures);
  const batch = [random(tokens * inFeatures), random(tokens * outFeatures)];
  const start = performance.now(); // «first step» counts from an instantiated wasm
  const gpu = await Gpu.request();
  const layer = new LoraLinear(gpu, { weight, inFeatures, outFeatures, rank, alpha: 2 * rank, seed: 1 });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 1e-3 }) });
  const x = new Tensor(gpu, { shape: [tokens, inFeatures] });
  const target = new Tensor(gpu, { shape: [tokens, outFeatures] });
  const dOutput = new Tensor(gpu, { shape: [tokens, outFeatures] });
  const dInput = new Tensor(gpu, { shape: [tokens, inFeatures] });
  const loss = new Tensor(gpu, { shape: [1] });
  const rec = gpu.record();
  optimizer.zeroGrad(rec);
  const output = layer.forward(rec, x);
  rec.mse({ output, target, dOutput, loss });
  layer.backward(rec, { x, dOutput, dInput });
  optimizer.step(rec);

  const step = async () => {
    x.write(batch[0]);
    target.write(batch[1]);
    await rec.submit();
    await gpu.finished();
  };
  await step();
  const first = performance.now() - start;

  const before = gpu.stats();
  const times = [];
  for (let i = 0; i < steps; i++) {
    const began = performance.now();
    await step();
    times.push(performance.now() - began);
  }
  const after = gpu.stats();
  const each = (key) => (after[key] - before[key]) / steps;
  times.sort((a, b) => a - b);
  const { bytes, buffers } = gpu.memory();
  const report = {
    first,
    median: times[times.length >> 1],
    min: times[0],
    max: times.at(-1),
    dispatches: each("dispatches"),
    submits: each("submits"),
    uploaded: each("uploadedBytes"),
    inputs: 4 * (x.length + target.length),
    created: each("buffersCreated") + each("bindGroups") + each("pipelines"),
    bytes,
    buffers,
    loss: (await loss.read())[0],
    adapter: gpu.info,
  };
  gpu.dispose();
  return report;
}

/** Bytes of a weight of this kind that are random and fine: small numbers or factors, no ternary code 3. */
function weightBytes(kind, packing, inFeatures, outFeatures) {
  const count = inFeatures * outFeatures;
  const [unit, bytes, upper, value] = {
    f32: [1, 4, [3], 0x3b], f16: [1, 2, [1], 0x20], bf16: [1, 2, [1], 0x3b],
    q8_0: [32, 34, [1], 0x0c], q4_0: [32, 18, [1], 0x1c], q4_1: [32, 20, [1, 3], 0x14],
    bitlinear: [4, 1, [], 0],
  }[kind];
  const out = new Uint8Array(count / unit * bytes + (packing === "i2_s" ? 4 : 0));
  for (let i = 0; i < out.length; i += 65_536) crypto.getRandomValues(out.subarray(i, i + 65_536));
  for (const at of upper) for (let i = at; i < out.length; i += bytes) out[i] = value;
  if (kind === "bitlinear") for (let i = 0; i < out.length; i++) out[i] &= ~((out[i] >> 1) & 0x55);
  if (packing === "i2_s") new DataView(out.buffer).setFloat32(out.length - 4, 0.05, true);
  return out;
}

let gpu;

/** Milliseconds of a frozen layer's product and of its transpose, one of `count` in a submit, and bytes of the weight. */
export async function frozen({ kind, packing, tokens, inFeatures, outFeatures, count, repeats }) {
  await init();
  gpu ??= await Gpu.request();
  const weight = weightBytes(kind, packing, inFeatures, outFeatures);
  const scale = packing === "transformers" ? { scale: 0.05 } : {};
  const layer = new FrozenLinear(gpu, { kind, inFeatures, outFeatures, weight, ...(packing && { packing }), ...scale });
  const measured = { bytes: layer.bytes, adapter: gpu.info };
  const timed = async (way, rows, count) => {
    const [from, to] = way === "forward" ? [inFeatures, outFeatures] : [outFeatures, inFeatures];
    const given = new Tensor(gpu, { shape: [rows, from], data: random(rows * from) });
    const result = new Tensor(gpu, { shape: [rows, to] });
    const rec = gpu.record();
    for (let i = 0; i < count; i++) {
      if (way === "forward") layer.forward(rec, { x: given, output: result });
      else layer.backwardInput(rec, { dOutput: given, dInput: result });
    }
    const times = [];
    for (let i = 0; i < repeats; i++) {
      const began = performance.now();
      await rec.submit();
      await gpu.finished();
      times.push((performance.now() - began) / count);
    }
    const values = await result.read();
    if (!values.every(Number.isFinite) || !values.some(Boolean)) throw new Error(`${kind} ${way}: not finite, or all zeros`);
    given.dispose();
    result.dispose();
    return times.sort((a, b) => a - b)[times.length >> 1];
  };
  for (const way of ["forward", "transpose"]) {
    await timed(way, Math.min(tokens, 2), 1); // compiles what is used for one token, or for several
    measured[way] = await timed(way, tokens, count);
  }
  layer.dispose();
  return measured;
}

/** Milliseconds of the small base model's training steps and of each token that it writes, with adapters on all linear layers. */
export async function model({ batch, tokens, rank, steps, written }) {
  await init();
  const own = await Gpu.request();
  const lm = await CausalLM.load(own, { folder: new URL("../www/model", import.meta.url) });
  const estimate = lm.estimate({ rank, tokens, batch });
  lm.addAdapter({ rank, seed: 1 });
  const trainer = new LanguageTrainer(lm, { optimizer: adamw({ lr: 1e-3 }), batchSize: batch });
  const examples = Array.from({ length: batch }, () => {
    const inputIds = Int32Array.from({ length: tokens }, () => Math.random() * lm.vocabSize);
    return { inputIds, labels: inputIds };
  });
  const trained = [], generated = [];
  let before, losses = [], began = performance.now();
  for await (const { step, loss } of trainer.train(examples, { epochs: steps + 1 })) { // the first one compiles
    if (step > 1) trained.push(performance.now() - began);
    else before = own.stats();
    losses.push(loss);
    began = performance.now();
  }
  const after = own.stats(), held = own.memory().bytes;
  began = performance.now();
  for await (const _ of lm.generate(examples[0].inputIds.subarray(0, 16), { maxTokens: written + 1, stopTokenIds: [] })) {
    generated.push(performance.now() - began);
    began = performance.now();
  }
  const each = (name) => (after[name] - before[name]) / steps;
  const report = {
    trained, generated: generated.slice(1), losses, dispatches: each("dispatches"), submits: each("submits"), held, estimated: estimate.total, adapter: own.info,
  };
  own.dispose();
  return report;
}
