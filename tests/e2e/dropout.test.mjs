// What training steps do that evaluation does not: dropout, and saying where something was not finite.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const inPage = (name, work, check) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  check(await page.evaluate(work));
}));

inPage("a trainer's dropout comes from its seed; evaluation has none", async () => {
  const x = new Float32Array(64).fill(0.5), target = new Float32Array([-1]);
  const losses = [];
  for (const seed of [3, 3, 4]) {
    const layer = new LoraLinear(gpu, { weight: new Float32Array(64), inFeatures: 64, outFeatures: 1, rank: 1, dropout: 0.25 });
    layer.a.write(new Float32Array(64).fill(1));
    layer.b.write(new Float32Array([1]));
    const trainer = new Trainer(gpu, { layers: [layer], loss: mse(), optimizer: sgd({ lr: 0 }), seed });
    const evaluated = await trainer.evaluate([{ x, target }]);
    const first = await trainer.step({ x, target });
    const second = await trainer.step({ x, target });
    losses.push([evaluated, first.loss, second.loss]);
    trainer.dispose();
    layer.dispose();
  }
  const failure = (options) => {
    try {
      new LoraLinear(gpu, { weight: new Float32Array(4), inFeatures: 2, outFeatures: 2, rank: 1, ...options });
    } catch ({ code, message }) {
      return { code, message };
    }
  };
  return { losses, failures: [1, -0.1, NaN, "0.5"].map((dropout) => failure({ dropout })) };
}, ({ losses: [a, b, c], failures }) => {
  assert.ok(Math.abs(a[0] - 33 ** 2) < 1e-2, `${a[0]}`);
  assert.deepEqual(a, b);
  assert.equal(a[0], c[0]);
  assert.notEqual(a[1], c[1]);
  assert.notEqual(a[1], a[2]);
  for (const { code, message } of failures) {
    assert.equal(code, "invalid-argument");
    assert.match(message, /dropout/);
  }
});

inPage("a record names the layer in which something that is not finite began", async () => {
  const layer = (name, w) => new LoraLinear(gpu, { name, weight: new Float32Array(4).fill(w), inFeatures: 2, outFeatures: 2, rank: 1 });
  const layers = [layer("below", 1), layer("above", 3e38)];
  const trainer = new Trainer(gpu, { layers, loss: mse(), optimizer: sgd({ lr: 0.1 }) });
  const step = (x, target) => trainer.step({ x: new Float32Array(x), target: new Float32Array(target) });
  const records = [await step([1, 1], [0, 0]), await step([NaN, 1], [0, 0]), await step([0, 0], [0, 0])];
  trainer.dispose();
  const labels = new Trainer(gpu, { layers: [layers[0]], loss: crossEntropy(), optimizer: sgd({ lr: 0.1 }) });
  records.push(await labels.step({ x: new Float32Array(4), target: new Int32Array([-100, -100]) }));
  labels.dispose();
  layers.forEach((each) => each.dispose());
  return records.map(({ skipped, notFinite, nothingCounted }) => ({ skipped, notFinite, nothingCounted }));
}, (records) => {
  assert.deepEqual(records, [
    { skipped: 1, notFinite: [{ step: 0, in: "output", layer: 1, name: "above" }], nothingCounted: 0 },
    { skipped: 1, notFinite: [{ step: 1, in: "output", layer: 0, name: "below" }], nothingCounted: 0 },
    { skipped: 0, notFinite: [], nothingCounted: 0 },
    { skipped: 0, notFinite: [], nothingCounted: 1 },
  ]);
});
