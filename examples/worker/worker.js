// The worker: a two-layer network learns random targets by heart. Nothing here waits for a frame, so that a
// hidden tab goes on.
import { adamw, cosineSchedule, Gpu, LoraLinear, mse, tanh, Trainer } from "../../dist/index.js";

const [inFeatures, hidden, outFeatures, tokens] = [32, 48, 16, 64];
let controller;

// Numbers that are the same every time.
function* noise(seed) {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 31 - 1;
  }
}
const numbers = (length, scale, source) => Float32Array.from({ length }, () => scale * source.next().value);

async function train(steps) {
  const gpu = await Gpu.request();
  const source = noise(1);
  const layer = (name, i, o) => new LoraLinear(gpu, { name, inFeatures: i, outFeatures: o, rank: 4, alpha: 8, seed: i, weight: numbers(i * o, 0.3, source) });
  const layers = [layer("fc1", inFeatures, hidden), layer("fc2", hidden, outFeatures)];
  const batches = Array.from({ length: 8 }, () => ({ x: numbers(tokens * inFeatures, 1, source), target: numbers(tokens * outFeatures, 0.5, source) }));
  const trainer = new Trainer(gpu, {
    layers: [layers[0], tanh(), layers[1]],
    loss: mse(),
    optimizer: adamw({ lr: 5e-3 }),
    schedule: cosineSchedule({ warmup: 20, total: steps }),
    maxGradNorm: 1,
  });
  controller = new AbortController();
  let last;
  for await (const record of trainer.train(batches, { epochs: Math.ceil(steps / batches.length), signal: controller.signal })) {
    last = record;
    postMessage({ record });
  }
  postMessage({ done: { steps: trainer.steps, loss: last?.loss ?? NaN } });
  trainer.dispose();
  gpu.dispose();
}

onmessage = async ({ data: { start, stop } }) => {
  if (stop) controller?.abort();
  if (start) await train(start.steps).catch(({ code, message }) => postMessage({ error: { code, message } }));
};
