// Pipelines made ahead of their use.
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

inPage("a recording compiled ahead compiles nothing when submitted, and gives the same bits", async () => {
  const run = async (ahead) => {
    const gpu = await Gpu.request();
    const layer = new LoraLinear(gpu, { weight: numbers(33 * 20, 1), inFeatures: 33, outFeatures: 20, rank: 4 });
    layer.b.write(numbers(80, 2));
    const x = new Tensor(gpu, { label: "x", shape: [7, 33], data: numbers(7 * 33, 3) });
    const dOutput = new Tensor(gpu, { label: "dOutput", shape: [7, 20], data: numbers(140, 4) });
    const rec = gpu.record();
    const output = layer.forward(rec, x);
    layer.backward(rec, { x, dOutput });
    const progress = [];
    const own = gpu.device.createComputePipeline;
    if (ahead) {
      await rec.compile((done, total) => progress.push(`${done} of ${total}`));
      await rec.compile(() => progress.push("again"));
    }
    const compiled = gpu.stats().pipelines;
    await rec.submit();
    const result = { progress, compiled, after: gpu.stats().pipelines, output: [...(await output.read())], gradA: [...(await layer.gradA.read())] };
    result.untouched = gpu.device.createComputePipeline === own;
    gpu.dispose();
    return { ...result, late: await failure(() => rec.compile()) };
  };
  return [await run(true), await run(false)];
}, ([ahead, without]) => {
  assert.ok(ahead.compiled > 3 && ahead.compiled === ahead.after, `${ahead.compiled}, ${ahead.after}`);
  assert.deepEqual(ahead.progress, Array.from({ length: ahead.compiled }, (_, i) => `${i + 1} of ${ahead.compiled}`));
  assert.equal(without.compiled, 0);
  assert.equal(without.after, ahead.after);
  assert.ok(ahead.untouched);
  assert.deepEqual(ahead.output, without.output);
  assert.deepEqual(ahead.gradA, without.gradA);
  assert.equal(ahead.late.code, "disposed");
});

inPage("the browser is asked for each of a trainer's pipelines once, ahead of its first step", async () => {
  const gpu = await Gpu.request();
  const layer = new LoraLinear(gpu, { weight: numbers(32 * 24, 1), inFeatures: 32, outFeatures: 24, rank: 8 });
  const trainer = new Trainer(gpu, { layers: [layer], loss: mse(), optimizer: adamw({ lr: 1e-3 }), gradientAccumulation: 2 });
  const asked = [], own = gpu.device.createComputePipelineAsync;
  gpu.device.createComputePipelineAsync = function (descriptor) {
    asked.push(descriptor.label);
    return own.call(this, descriptor);
  };
  const batch = { x: numbers(9 * 32, 2), target: numbers(9 * 24, 3) };
  await trainer.step([batch, batch]);
  const { pipelines } = gpu.stats();
  await trainer.step(batch);
  const result = { asked, later: gpu.stats().pipelines - pipelines };
  gpu.dispose();
  return result;
}, ({ asked, later }) => {
  assert.ok(asked.includes("loss/mse") && asked.includes("optim/adamw"), String(asked));
  assert.deepEqual(asked, [...new Set(asked)]);
  assert.equal(later, 0);
});
