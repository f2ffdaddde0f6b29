// One benchmark in one fresh page: a LoRA layer trained with mean squared error and AdamW, new inputs every step.
import { adamw, Gpu, init, LoraLinear, Optimizer, Tensor } from "../dist/index.js";

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
