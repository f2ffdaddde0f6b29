// What a steady step asks of the browser: every call into WebGPU, and every call out of wasm.
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

// Before the page's scripts: counts calls of WebGPU's methods by name, of the functions that wasm imports by whatever they are
// called there, and of queueMicrotask, which is one of these, while `counting`.
function countCalls() {
  const calls = (globalThis.calls = { counting: false, gpu: {}, wasm: {}, microtasks: {} });
  const count = (table, name) => { if (calls.counting) table[name] = (table[name] ?? 0) + 1; };
  for (const type of Object.getOwnPropertyNames(globalThis).filter((name) => name.startsWith("GPU") && globalThis[name].prototype)) {
    const { prototype } = globalThis[type];
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
      if (typeof value !== "function" || name === "constructor") continue;
      prototype[name] = function (...args) { count(calls.gpu, name); return value.apply(this, args); };
    }
  }
  const counted = (module) => Object.fromEntries(Object.entries(module).map(([name, value]) =>
    [name, typeof value === "function" ? (...args) => { count(calls.wasm, name); return value(...args); } : value]));
  const { queueMicrotask } = globalThis;
  globalThis.queueMicrotask = (task) => { count(calls.microtasks, "queued"); queueMicrotask(task); };
  for (const name of ["instantiate", "instantiateStreaming"]) {
    const original = WebAssembly[name];
    WebAssembly[name] = (source, imports) => original.call(WebAssembly, source, Object.fromEntries(Object.entries(imports).map(([key, module]) => [key, counted(module)])));
  }
}

// In the page: what `work` calls after three times of it.
async function steady(work) {
  for (let i = 0; i < 3; i++) await work();
  await gpu.finished();
  const before = gpu.stats();
  [calls.gpu, calls.wasm, calls.microtasks, calls.counting] = [{}, {}, {}, true];
  await work();
  calls.counting = false;
  const now = gpu.stats();
  const made = Object.fromEntries(Object.keys(now).map((key) => [key, now[key] - before[key]]));
  return { made, gpu: { ...calls.gpu }, wasm: { ...calls.wasm }, microtasks: calls.microtasks.queued ?? 0 };
}

const sum = (table) => Object.values(table).reduce((total, value) => total + value, 0);

// A step whose loss is read: one pass of dispatches, then a copy of the record.
const aStep = (dispatches, writes) => ({
  writeBuffer: writes,
  pushErrorScope: 6, popErrorScope: 6, createCommandEncoder: 2, finish: 2, submit: 2, // of the step, and of the reading
  clearBuffer: 2, // gradients; the sums of loss and gradients
  beginComputePass: 1, end: 1,
  setPipeline: dispatches, setBindGroup: dispatches, dispatchWorkgroups: dispatches,
  copyBufferToBuffer: 1, mapAsync: 1, getMappedRange: 1, unmap: 1,
});

// Gives the calls out of wasm besides three for each dispatch.
function check(what, { made, gpu, wasm, microtasks }, { uploaded, writes, ...more }) {
  const { dispatches } = made;
  assert.ok(dispatches > 10, `${dispatches} dispatches`);
  assert.deepEqual(made, { submits: 2, dispatches, uploadedBytes: uploaded, pipelines: 0, bindGroups: 0, buffersCreated: 0 });
  assert.deepEqual(gpu, { ...aStep(dispatches, writes), ...more });
  const often = Object.values(wasm).filter((count) => count === dispatches).length;
  assert.ok(often >= 3, `setPipeline, setBindGroup and dispatchWorkgroups once for each dispatch: ${JSON.stringify(wasm)}`);
  const besides = sum(wasm) - 3 * dispatches;
  console.log(`# ${what}: ${dispatches} dispatches, ${sum(gpu)} calls of WebGPU; out of wasm 3 for each dispatch and ${besides} besides`);
  return besides - microtasks; // one more or less, as promises happen to be done
}

test("a steady step: three calls out of wasm a dispatch, the others as many whatever is trained, and nothing is made", () =>
  onPage(browser, `${server.url}tests/e2e/bare.html`, { init: `(${countCalls})();` }, async (page) => {
    await page.waitForFunction(() => globalThis.ready);
    await page.evaluate(`globalThis.steady = ${steady}`);
    const COUNTS = [1, 2, 4];
    const layers = await page.evaluate(async (counts) => {
      const results = [];
      for (const count of counts) {
        const layer = (_, i) => new LoraLinear(gpu, { weight: numbers(16 * 16, i), inFeatures: 16, outFeatures: 16, rank: 4, seed: i });
        const trainer = new Trainer(gpu, { layers: Array.from({ length: count }, layer), loss: mse(), optimizer: adamw({ lr: 1e-3 }) });
        const batch = { x: numbers(8 * 16, 1), target: numbers(8 * 16, 2) };
        results.push(await steady(() => trainer.step(batch)));
        trainer.dispose();
      }
      return results;
    }, COUNTS);
    const besides = layers.map((result, i) => check(`a step of ${COUNTS[i]} layers`, result, { uploaded: 4 * 2 * 8 * 16, writes: 2 }));
    assert.deepEqual(besides, COUNTS.map(() => besides[0]), "what else is called does not grow with the layers");

    const language = await page.evaluate(async (folder) => {
      const file = async (name) => new Uint8Array(await (await fetch(`/${folder}/${name}`)).arrayBuffer());
      const model = await CausalLM.load(gpu, { config: await file("config.json"), weights: await file("model.safetensors") });
      model.addAdapter({ rank: 4 });
      const inputIds = Int32Array.from({ length: 16 }, (_, i) => i), examples = Array.from({ length: 8 }, () => ({ inputIds, labels: inputIds }));
      const training = new LanguageTrainer(model, { optimizer: adamw({ lr: 1e-3 }), batchSize: 2 }).train(examples, { epochs: 8 });
      return steady(() => training.next());
    }, "tests/golden/models/llama_tied_all");
    // Ids, labels, positions and segments; and what says that the next step may begin.
    check("a step of a language model", language, { uploaded: 4 * 4 * 2 * 16, writes: 4, onSubmittedWorkDone: 1 });
  }));
