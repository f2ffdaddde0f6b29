// TensorFlow.js encodes, an adapter learns on its activations, TensorFlow.js goes on with the adapter's output: three steps
// on one GPUDevice, and nothing comes through JavaScript on the way.
import { WebGPUBackend } from "@tensorflow/tfjs-backend-webgpu";
import * as tf from "@tensorflow/tfjs-core";
import { adamw, Gpu, LoraLinear, Optimizer, Tensor } from "lora-webgpu";
import { accuracy, batches, classes, encoder, headWeight, hiddenFeatures, inFeatures, show, tokens } from "../task.js";

export async function run({ steps, report }) {
  // The page's device, for both. Gpu.request() would do as well: its `gpu.device` is what the backend takes.
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  tf.registerBackend("shared", () => new WebGPUBackend(device, adapter.info));
  // The kernels of the backend are known under its usual name.
  tf.copyRegisteredKernels("webgpu", "shared");
  await tf.setBackend("shared");
  const weight = tf.tensor2d(encoder.weight, [inFeatures, hiddenFeatures]), bias = tf.tensor1d(encoder.bias);

  const gpu = await Gpu.fromDevice(device);
  const layer = new LoraLinear(gpu, { inFeatures: hiddenFeatures, outFeatures: classes, rank: 4, alpha: 8, seed: 1, weight: headWeight });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 1e-2 }) });
  const targets = batches.map(({ labels }) => new Tensor(gpu, { shape: [tokens], data: labels }));
  const dOutput = new Tensor(gpu, { shape: [tokens, classes] }), loss = new Tensor(gpu, { shape: [1] });

  /** Gives `work` the host's activations of a batch, in a buffer of the host's. */
  async function withHidden(batch, work) {
    const hidden = tf.tidy(() => tf.tanh(tf.add(tf.matMul(tf.tensor2d(batch.x, [tokens, inFeatures]), weight), bias)));
    const { buffer, tensorRef } = hidden.dataToGPU(); // submits what the host has recorded so far
    const x = Tensor.fromBuffer(gpu, { label: "hidden", buffer, shape: [tokens, hiddenFeatures] });
    try {
      return await work(x);
    } finally {
      x.dispose(); // lets go of the buffer,
      tf.dispose([hidden, tensorRef]); // and the host takes it back
    }
  }

  const evaluate = (batch) => withHidden(batch, async (x) => {
    const rec = gpu.record();
    const output = layer.forward(rec, x);
    await rec.submit();
    const scores = tf.tensor({ buffer: output.buffer, zeroCopy: true }, [tokens, classes], "float32");
    const softmax = tf.softmax(scores);
    const probabilities = await softmax.data();
    tf.dispose([scores, softmax]);
    return { scores: await output.read(), probabilities, accuracy: accuracy(probabilities, batch.labels) };
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
    const { scores, ...after } = await evaluate(batches[0]);
    return { losses, before, after, scores, a: await layer.a.read(), b: await layer.b.read(), device, tf };
  } finally {
    gpu.dispose(); // frees what is ours; the device stays the page's
  }
}

await show(run);
