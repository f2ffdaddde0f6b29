// A page's whole use of the package, small: the layer's output for B = 0 and for another B, and a step of training.
import { adamw, Gpu, init, LoraError, LoraLinear, Optimizer, Tensor } from "lora-webgpu";

async function run() {
  const gpu = await Gpu.request();
  try {
    const layer = new LoraLinear(gpu, { inFeatures: 2, outFeatures: 2, rank: 1, weight: Float32Array.of(1, 2, 3, 4), bias: Float32Array.of(0.5, -0.5) });
    layer.a.write(Float32Array.of(1, 1));
    const x = new Tensor(gpu, { shape: [1, 2], data: Float32Array.of(1, 2) });
    const dOutput = new Tensor(gpu, { shape: [1, 2], data: Float32Array.of(1, 1) });
    const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 0.5 }) });
    const outputs = [];
    for (const b of [0, 1]) {
      layer.b.write(Float32Array.of(b, b));
      const rec = gpu.record();
      const output = layer.forward(rec, x);
      await rec.submit();
      outputs.push(Array.from(await output.read()));
    }
    const step = gpu.record();
    optimizer.zeroGrad(step);
    layer.forward(step, x);
    layer.backward(step, { x, dOutput });
    optimizer.step(step);
    await step.submit();
    return { outputs, trained: (await layer.b.read()).every((value) => value < 1) };
  } finally {
    gpu.dispose();
  }
}

const scope = globalThis.document ? globalThis : undefined; // a page; else a worker
const done = run().catch((error) => ({ code: error instanceof LoraError ? error.code : String(error), message: error.message }));
if (scope) {
  scope.done = done;
  scope.again = run;
  scope.init = init;
} else {
  postMessage(await done);
}
