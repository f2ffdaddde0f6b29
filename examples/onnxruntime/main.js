// ONNX Runtime encodes, an adapter learns on its activations, ONNX Runtime goes on with the adapter's output: three steps on
// one GPUDevice, its own, and nothing comes through JavaScript on the way.
import { adamw, Gpu, LoraLinear, Optimizer, Tensor } from "lora-webgpu";
import * as ort from "onnxruntime-web/webgpu";
import { accuracy, batches, classes, headWeight, hiddenFeatures, inFeatures, show, tokens } from "../task.js";
import { encoderModel, headModel } from "./models.js";

export async function run({ steps, report }) {
  ort.env.wasm.numThreads = 1; // more would need a page that is cross-origin isolated
  const webgpu = { executionProviders: ["webgpu"] };
  const encoder = await ort.InferenceSession.create(encoderModel(), { ...webgpu, preferredOutputLocation: "gpu-buffer" });
  const head = await ort.InferenceSession.create(headModel(), webgpu);
  const device = await ort.env.webgpu.device; // there once a session is

  const gpu = await Gpu.fromDevice(device);
  const layer = new LoraLinear(gpu, { inFeatures: hiddenFeatures, outFeatures: classes, rank: 4, alpha: 8, seed: 1, weight: headWeight });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 1e-2 }) });
  const targets = batches.map(({ labels }) => new Tensor(gpu, { shape: [tokens], data: labels }));
  const dOutput = new Tensor(gpu, { shape: [tokens, classes] }), loss = new Tensor(gpu, { shape: [1] });

  // The page's own buffer for what the host goes on with.
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const scoresBuffer = device.createBuffer({ size: 4 * tokens * classes, usage });
  const scores = Tensor.fromBuffer(gpu, { label: "scores", buffer: scoresBuffer, shape: [tokens, classes] });

  /** Gives `work` the host's activations of a batch, in the host's buffer. */
  async function withHidden(batch, work) {
    const { hidden } = await encoder.run({ x: new ort.Tensor("float32", batch.x, [tokens, inFeatures]) });
    const x = Tensor.fromBuffer(gpu, { label: "hidden", buffer: hidden.gpuBuffer, shape: [tokens, hiddenFeatures] });
    try {
      return await work(x);
    } finally {
      x.dispose(); // lets go of the buffer,
      hidden.dispose(); // and the host takes it back
    }
  }

  const evaluate = (batch) => withHidden(batch, async (x) => {
    const rec = gpu.record();
    rec.saveActivation({ src: layer.forward(rec, x), dst: scores });
    await rec.submit();
    const input = ort.Tensor.fromGpuBuffer(scoresBuffer, { dataType: "float32", dims: [tokens, classes] });
    const { probabilities } = await head.run({ scores: input });
    return { probabilities: probabilities.data, accuracy: accuracy(probabilities.data, batch.labels) };
  });

  try {
    const before = await evaluate(batches[0]);
    const losses = [];
    for (let step = 1; step <= steps; step += 1) {
      const batch = (step - 1) % batches.length;
      await withHidden(batches[batch], async (x) => {
        const rec = gpu.record();
        optimizer.zeroGrad(rec);
        const output = layer.forward(rec, x);
        rec.crossEntropy({ output, target: targets[batch], dOutput, loss });
        layer.backward(rec, { x, dOutput });
        optimizer.step(rec);
        await rec.submit();
      });
      if (step % 10 === 0 || step === 1) {
        losses.push((await loss.read())[0]);
        report({ step, loss: losses.at(-1) });
      }
    }
    const after = await evaluate(batches[0]);
    return { losses, before, after, scores: await scores.read(), a: await layer.a.read(), b: await layer.b.read(), device, head, scoresBuffer };
  } finally {
    gpu.dispose(); // frees what is ours; the device and its buffers stay the host's
  }
}

await show(run);
