// Which kernels a device gets: by the adapter's word, by force, or by a moment of timing.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
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

// Notes the kernels that are compiled.
function watch() {
  globalThis.compiled = [];
  const original = GPUDevice.prototype.createComputePipeline;
  GPUDevice.prototype.createComputePipeline = function (descriptor) {
    compiled.push(descriptor.label);
    return original.call(this, descriptor);
  };
}

// An adapter that says nothing of itself.
function mask() {
  for (const [name, value] of Object.entries({ vendor: "", architecture: "", device: "", description: "", isFallbackAdapter: false })) {
    Object.defineProperty(GPUAdapterInfo.prototype, name, { configurable: true, get: () => value });
  }
}

// Storage that a page may not use.
function block() {
  Object.defineProperty(globalThis, "caches", { get() { throw new DOMException("denied", "SecurityError"); } });
}

const page = (body, ...inits) => onPage(browser, `${server.url}tests/e2e/blank.html`, { init: [watch, ...inits].map((init) => `(${init})();`).join("") }, body);

test("a profile can be forced, on a device of one's own and on an adopted one; each gives the same bits again, both the same numbers", () => page(async (page) => {
  const { said, forced, results } = await page.evaluate(async () => {
    const { FrozenLinear, Gpu, Tensor } = await import("/dist/index.js");
    const numbers = (length, seed) => Float32Array.from({ length }, (_, i) => Math.sin(i * 1.7 + seed));
    const own = await Gpu.request();
    const gpus = [await Gpu.request({ profile: "hardware" }), await Gpu.request({ profile: "software" }), await Gpu.fromDevice(own.device, { profile: "hardware" })];
    const results = [];
    for (const gpu of gpus) {
      compiled.length = 0;
      const weight = new FrozenLinear(gpu, { inFeatures: 68, outFeatures: 33, weight: numbers(68 * 33, 1) });
      const x = new Tensor(gpu, { shape: [19, 68], data: numbers(19 * 68, 2) }), output = new Tensor(gpu, { shape: [19, 33] });
      const bits = [];
      for (let i = 0; i < 3; i++) {
        const rec = gpu.record();
        weight.forward(rec, { x, output });
        await rec.submit();
        bits.push(Array.from(await output.read()));
      }
      results.push({ bits, compiled: [...compiled] });
    }
    const said = [own.info.profile, own.info.isSoftware], forced = gpus.map((gpu) => gpu.info.profile);
    for (const gpu of [...gpus, own]) gpu.dispose();
    return { said, forced, results };
  });
  assert.deepEqual(said, ["software", true]);
  assert.deepEqual(forced, ["hardware", "software", "hardware"]);
  assert.deepEqual(results.map((result) => result.compiled[0]), ["base/linear_f32", "base/linear_quad", "base/linear_f32"]);
  const [hardware, software, adopted] = results.map(({ bits }) => {
    assert.deepEqual(bits[1], bits[0]);
    assert.deepEqual(bits[2], bits[0]);
    return bits[0];
  });
  assert.deepEqual(adopted, hardware);
  assert.ok(hardware.every((value, i) => Math.abs(value - software[i]) < 1e-4) && hardware.some((value) => Math.abs(value) > 1));
}));

const request = async (page) => page.evaluate(async () => {
  const { Gpu } = await import("/dist/index.js");
  compiled.length = 0;
  const began = performance.now();
  const gpu = await Gpu.request();
  const found = { profile: gpu.info.profile, compiled: [...compiled].sort(), milliseconds: performance.now() - began, memory: gpu.memory(), quads: gpu.features.has("subgroups") };
  gpu.dispose();
  return found;
});

test("an adapter that says nothing is timed once: later requests and pages know the answer", async () => {
  let plain;
  await page(async (page) => { plain = await request(page); });
  assert.deepEqual([plain.profile, plain.compiled], ["software", []], "where the adapter says what it is nothing is timed");
  await page(async (page) => {
    const first = await request(page);
    console.log(`# timed: ${first.profile} after ${first.milliseconds.toFixed(0)} ms; otherwise a request takes ${plain.milliseconds.toFixed(0)} ms`);
    assert.equal(first.profile, "software", "the faster kernels here");
    for (const kernel of ["base/linear_f32", "base/linear_quad"]) assert.ok(first.compiled.includes(kernel), `${kernel}: ${first.compiled}`);
    assert.deepEqual(first.memory, plain.memory, "nothing is left of it");
    assert.ok(first.quads);
    const again = await request(page);
    assert.deepEqual([again.profile, again.compiled], ["software", []], "this page knows");
    await page.reload();
    const later = await request(page);
    assert.deepEqual([later.profile, later.compiled], ["software", []], "this browser knows");
    const keys = await page.evaluate(async () => (await (await caches.open("lora-webgpu")).keys()).map(({ url }) => new URL(url).searchParams.toString()));
    const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
    assert.ok(keys.length === 1 && keys[0].startsWith(`${version}%2C`), `the answer is this version's: ${keys}`);
    // What stands there is believed, and nonsense is not.
    for (const [text, profile, compiles] of [["hardware", "hardware", 0], ["nonsense", "software", first.compiled.length]]) {
      await page.evaluate(async (text) => {
        const cache = await caches.open("lora-webgpu");
        for (const key of await cache.keys()) await cache.put(key, new Response(text));
      }, text);
      await page.reload();
      const found = await request(page);
      assert.deepEqual([found.profile, found.compiled.length], [profile, compiles], text);
    }
  }, mask);
});

test("storage that a page may not use is done without", () => page(async (page) => {
  const first = await request(page), again = await request(page);
  assert.deepEqual([first.profile, first.compiled.length > 1, again.profile, again.compiled.length], ["software", true, "software", 0]);
}, mask, block));
