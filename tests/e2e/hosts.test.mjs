// examples/onnxruntime and examples/tensorflow: another library and this package on one device, in the same buffers.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { packages } from "../../scripts/setup.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  await packages("ONNX Runtime for the Web", join(root, "examples/onnxruntime"));
  await packages("TensorFlow.js and its WebGPU backend", join(root, "examples/tensorflow"));
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

// Notes the bytes of each way between JavaScript's memory and the GPU's, beside what the page said at that time.
function watch() {
  globalThis.moves = [];
  const spy = (object, name, bytes) => {
    const original = object[name];
    object[name] = function (...args) {
      moves.push({ name, bytes: bytes.apply(this, args), at: document.querySelector("#status")?.value ?? "" });
      return original.apply(this, args);
    };
  };
  spy(GPUQueue.prototype, "writeBuffer", (buffer, offset, data, start = 0, size = undefined) => (size === undefined ? data.byteLength - start : size * (data.BYTES_PER_ELEMENT ?? 1)));
  spy(GPUDevice.prototype, "createBuffer", ({ mappedAtCreation, size }) => (mappedAtCreation ? size : 0));
  spy(GPUBuffer.prototype, "mapAsync", function (mode, offset = 0, size = this.size - offset) { return size; });
}

// What must come out, by plain loops in float64: the host's encoder, the layer with its trained adapter, the host's softmax.
async function expected() {
  const { batches, classes, encoder, headWeight, hiddenFeatures, inFeatures, tokens } = await import("/examples/task.js");
  const { a, b } = result, rank = a.length / hiddenFeatures, scaling = 2;
  const dot = (n, term) => Array.from({ length: n }, (_, k) => term(k)).reduce((sum, value) => sum + value, 0);
  const matrix = (rows, columns, at) => Array.from({ length: rows * columns }, (_, i) => at(Math.floor(i / columns), i % columns));
  const { x } = batches[0];
  const hidden = matrix(tokens, hiddenFeatures, (t, h) => Math.tanh(encoder.bias[h] + dot(inFeatures, (k) => x[t * inFeatures + k] * encoder.weight[k * hiddenFeatures + h])));
  const down = matrix(tokens, rank, (t, r) => dot(hiddenFeatures, (k) => hidden[t * hiddenFeatures + k] * a[r * hiddenFeatures + k]));
  const scores = matrix(tokens, classes, (t, c) =>
    dot(hiddenFeatures, (k) => hidden[t * hiddenFeatures + k] * headWeight[c * hiddenFeatures + k]) + scaling * dot(rank, (r) => down[t * rank + r] * b[c * rank + r]));
  const probabilities = matrix(tokens, classes, (t, c) => 1 / dot(classes, (k) => Math.exp(scores[t * classes + k] - scores[t * classes + c])));
  return { scores, probabilities, activations: 4 * hidden.length };
}

// The host's library after our gpu.dispose(): it softmaxes numbers of its own.
const goesOn = {
  onnxruntime: async () => {
    const { Tensor } = await import("onnxruntime-web/webgpu");
    const { probabilities } = await result.head.run({ scores: new Tensor("float32", new Float32Array(256), [64, 4]) });
    return { values: Array.from(probabilities.data), alive: await stillThere() };
  },
  tensorflow: async () => {
    const { tf } = result;
    return { values: Array.from(await tf.softmax(tf.zeros([64, 4])).data()), alive: await stillThere() };
  },
};
// Whether the device still makes buffers.
function helpers() {
  globalThis.stillThere = async () => {
    result.device.pushErrorScope("validation");
    result.device.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE }).destroy();
    const error = await result.device.popErrorScope();
    return error === null && (await Promise.race([result.device.lost.then(() => false), new Promise((done) => setTimeout(() => done(true), 50))]));
  };
}

for (const name of ["onnxruntime", "tensorflow"]) {
  test(`${name} encodes, an adapter learns on its buffers, ${name} goes on with the adapter's output`, () =>
    onPage(browser, `${server.url}examples/${name}/index.html?steps=100`, { init: `(${watch})(); (${helpers})();` }, async (page) => {
      const start = performance.now();
      await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.state));
      assert.equal(await page.evaluate(() => document.documentElement.dataset.state), "done", await page.evaluate(() => document.querySelector("#status").value));
      const seconds = (performance.now() - start) / 1000;
      const { losses, before: untrained, after: trained, scores, moves } = await page.evaluate(() => ({
        losses: result.losses, before: result.before.accuracy, scores: Array.from(result.scores), moves,
        after: { accuracy: result.after.accuracy, probabilities: Array.from(result.after.probabilities) },
      }));
      const { activations, ...wanted } = await page.evaluate(expected);
      const worst = (got, want) => Math.max(...want.map((value, i) => Math.abs(got[i] - value) / (1 + Math.abs(value))));
      console.log(`# ${name}: loss ${losses[0].toFixed(3)} → ${losses.at(-1).toFixed(3)}, right ${untrained} → ${trained.accuracy}; worst error of the output ${worst(scores, wanted.scores).toExponential(1)}, of the host's softmax of it ${worst(trained.probabilities, wanted.probabilities).toExponential(1)}; ${seconds.toFixed(1)} s`);
      assert.ok(losses.at(-1) < losses[0] / 5, `${losses}`);
      assert.ok(trained.accuracy > 0.9 && untrained < 0.6, `${untrained} → ${trained.accuracy}`);
      assert.ok(wanted.scores.some((value) => Math.abs(value) > 1), "the adapter has something to say");
      assert.ok(worst(scores, wanted.scores) < 1e-4, "our output, from the host's activations");
      assert.ok(worst(trained.probabilities, wanted.probabilities) < 1e-4, "the host's probabilities, from our output");

      const training = moves.filter(({ at }) => at.startsWith("step"));
      assert.ok(training.length > 100, `${training.length} calls were seen`);
      for (const { name: call, bytes } of training) assert.ok(bytes < activations / 4, `${call} of ${bytes} bytes; activations have ${activations}`);
      const read = training.filter((move) => move.name === "mapAsync" && move.bytes > 4);
      assert.ok(read.length <= 4, `only the loss is read while training, and the result after it: ${JSON.stringify(read)}`);

      const { values, alive } = await page.evaluate(goesOn[name]);
      assert.ok(alive, "the device outlives our dispose()");
      assert.ok(values.length === 256 && values.every((value) => Math.abs(value - 0.25) < 1e-6), `${values}`);
    }));
}
