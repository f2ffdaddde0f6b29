// The worker: trains, keeps checkpoints, and goes on from the last one.
import { adamw, Checkpoints, cosineSchedule, Gpu, LoraLinear, mse, tanh, Trainer } from "../../dist/index.js";

const [inFeatures, hidden, outFeatures, tokens] = [32, 48, 16, 64];
let run, trainer;

// Numbers that are the same every time: the data and the frozen weights are not in a checkpoint.
function* noise(seed) {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 31 - 1;
  }
}
const numbers = (length, scale, source) => Float32Array.from({ length }, () => scale * source.next().value);

async function train(name, steps) {
  run = await Checkpoints.open(name);
  const gpu = await Gpu.request();
  const source = noise(1);
  const layer = (i, o) => new LoraLinear(gpu, { inFeatures: i, outFeatures: o, rank: 4, alpha: 8, seed: i, weight: numbers(i * o, 0.3, source) });
  const layers = [layer(inFeatures, hidden), tanh(), layer(hidden, outFeatures)];
  const batches = Array.from({ length: 8 }, () => ({ x: numbers(tokens * inFeatures, 1, source), target: numbers(tokens * outFeatures, 0.5, source) }));
  trainer = new Trainer(gpu, { layers, loss: mse(), optimizer: adamw({ lr: 5e-3 }), schedule: cosineSchedule({ warmup: 20, total: steps }) });

  await run.restore(trainer); // does nothing the first time
  postMessage({ resumed: trainer.steps });
  const checkpoints = { run, every: 50 };
  let loss;
  for await (const record of trainer.train(batches, { epochs: steps / batches.length, checkpoints })) {
    loss = record.loss;
    postMessage({ record });
  }
  // A fingerprint of the adapter, bit by bit.
  const all = new Blob(await Promise.all([layers[0].a, layers[0].b, layers[2].a, layers[2].b].map((tensor) => tensor.read())));
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", await all.arrayBuffer()));
  postMessage({ done: { steps: trainer.steps, loss, adapter: Array.from(sum, (byte) => byte.toString(16).padStart(2, "0")).join("") } });
  await run.close();
  gpu.dispose();
}

const tell = ({ code, message }) => postMessage({ error: { code, message } });
onmessage = ({ data: { start, save } }) => {
  if (start) train(start.run, start.steps).catch(tell);
  if (save && trainer) {
    const saved = trainer.steps;
    run.save(trainer).then(() => postMessage({ saved }), tell);
  }
};
