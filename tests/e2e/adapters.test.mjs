// Variants of an adapter, several on one base, and merging, as a page calls them.
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
  await page.evaluate(() => {
    globalThis.makeLayer = (options) => {
      const layer = new LoraLinear(gpu, { name: "fc", weight: numbers(15, 1), bias: numbers(3, 2), inFeatures: 5, outFeatures: 3, rank: 2, alpha: 3, ...options });
      layer.weight.b.write(numbers(6, 3));
      return layer;
    };
    globalThis.forward = async (layer, x, rows) => {
      const rec = gpu.record();
      const output = rows ? layer.forwardRows(rec, x, rows) : layer.forward(rec, x);
      await rec.submit();
      return [...(await output.read())];
    };
  });
  check(await page.evaluate(work));
}));

const near = (a, b, what) => a.forEach((v, i) => assert.ok(Math.abs(v - b[i]) <= 1e-5 * (1 + Math.abs(b[i])), `${what}[${i}]: ${v}, ${b[i]}`));

inPage("adapters are added, switched, scaled, mixed by row and removed", async () => {
  const layer = makeLayer(), x = tensor("x", [2, 5], numbers(10, 4));
  const second = layer.addAdapter("second", { rank: 1, seed: 9, loraBias: true });
  second.weight.b.write(numbers(3, 7));
  second.loraBias.value.write(numbers(3, 8));
  const outputs = {};
  for (const active of [[], ["default"], ["second"], ["default", "second"]]) {
    layer.active = active;
    outputs[active.join("+")] = await forward(layer, x);
  }
  outputs.rows = await forward(layer, x, [null, "second"]);
  layer.active = ["second"];
  second.scale = 2;
  outputs.scaled = await forward(layer, x);
  const failures = {
    "a taken name": [await failure(() => layer.addAdapter("second", { rank: 1 })), "invalid-argument", "second"],
    "no name": [await failure(() => layer.addAdapter("", { rank: 1 })), "invalid-argument", "name"],
    "an unknown option": [await failure(() => layer.addAdapter("third", { rank: 1, inFeatures: 5 })), "unknown-option", "inFeatures"],
    "a name of nobody": [await failure(() => (layer.active = ["third"])), "invalid-argument", "third"],
    "no array": [await failure(() => (layer.active = "second")), "invalid-argument", "array"],
    "too few rows": [await failure(() => layer.forwardRows(gpu.record(), x, [null])), "shape", "2"],
    "a scale that is no number": [await failure(() => (second.scale = NaN)), "invalid-argument", "scale"],
    "DoRA with a bias": [await failure(() => layer.addAdapter("third", { rank: 1, useDora: true, loraBias: true })), "invalid-argument", "DoRA"],
  };
  const names = [layer.adapters, layer.active, layer.weight.a.shape, second.rank, layer.adapter("default").rank];
  layer.removeAdapter("default");
  failures["the only one"] = [await failure(() => layer.removeAdapter("second")), "invalid-argument", "second"];
  layer.dispose();
  return { outputs, failures, names };
}, ({ outputs: o, failures, names }) => {
  assert.deepEqual(names, [["default", "second"], ["second"], [1, 5], 1, 2]);
  near(o["default+second"], o[""].map((base, i) => o.default[i] + o.second[i] - base), "both");
  near(o.rows, [...o[""].slice(0, 3), ...o.second.slice(3)], "rows");
  near(o.scaled, o[""].map((base, i) => base + 2 * (o.second[i] - base)), "scaled");
  assert.notDeepEqual(o.default, o[""]);
  for (const [name, [{ code, message }, expected, words]] of Object.entries(failures)) {
    assert.equal(code, expected, `${name}: ${message}`);
    assert.match(message, new RegExp(words), name);
  }
});

inPage("merging keeps the output, and unmerging the weight", async () => {
  const results = [];
  const halves = () => new FrozenLinear(gpu, { kind: "f16", inFeatures: 5, outFeatures: 3, weight: numbers(15, 1), bias: numbers(3, 2) });
  for (const options of [{}, { useDora: true }, { weight: undefined, bias: undefined, base: halves() }]) {
    const layer = makeLayer(options), x = tensor("x", [2, 5], numbers(10, 4));
    const beside = await forward(layer, x);
    await layer.merge({ keepOriginal: true });
    const merged = [layer.merged, await forward(layer, x)];
    const twice = await failure(() => layer.merge());
    await layer.unmerge();
    results.push({ beside, merged, after: [layer.merged, await forward(layer, x)], twice, none: await failure(() => layer.unmerge()) });
    layer.dispose();
  }
  return results;
}, (results) => {
  for (const [i, { beside, merged, after, twice, none }] of results.entries()) {
    assert.equal(merged[0], true);
    if (i < 2) near(merged[1], beside, "merged");
    // Five products of weights that were rounded to f16.
    else merged[1].forEach((v, k) => assert.ok(Math.abs(v - beside[k]) <= 5 * 2 ** -11 * 4, `${v}, ${beside[k]}`));
    assert.deepEqual(after, [false, beside]);
    assert.equal(twice.code, "invalid-argument");
    assert.equal(none.code, "invalid-argument");
  }
});

inPage("DoRA trains its magnitudes with A and B", async () => {
  const layer = makeLayer({ useDora: true, dropout: 0.1 });
  const { magnitude } = layer.adapter();
  const before = [...(await magnitude.value.read())];
  const trainer = new Trainer(gpu, { layers: [layer], loss: mse(), optimizer: adamw({ lr: 0.01 }) });
  const losses = [];
  for (let i = 0; i < 20; i++) losses.push((await trainer.step({ x: numbers(10, 4), target: numbers(6, 5) })).loss);
  trainer.dispose();
  const after = [...(await magnitude.value.read())];
  layer.dispose();
  return { before, after, losses };
}, ({ before, after, losses }) => {
  assert.ok(before.every((m) => m > 0), before.join());
  assert.ok(after.every((m, i) => Math.abs(m - before[i]) > 0.01), `${before}, ${after}`);
  assert.ok(losses.at(-1) < losses[0], losses.join());
});

inPage("an adapter whose start cannot be computed leaves nothing, and a merge that the GPU refuses is none", async () => {
  const layer = makeLayer();
  const odd = await failure(() => layer.addAdapter("odd", { rank: 1, init: "orthogonal" }));
  const names = layer.adapters;
  layer.addAdapter("odd", { rank: 2, init: "orthogonal" });
  const base = new FrozenLinear(gpu, { inFeatures: 5, outFeatures: 3, weight: numbers(15, 1) });
  const options = { base, inFeatures: 5, outFeatures: 3 };
  const onBase = await failure(() => new LoraLinear(gpu, { ...options, rank: 3, init: "orthogonal" }));
  const held = gpu.memory();
  const weight = await failure(() => new LoraWeight(gpu, { inFeatures: 5, outFeatures: 3, rank: 3, init: "orthogonal" }));
  const left = gpu.memory().bytes - held.bytes;
  const kept = new LoraLinear(gpu, { ...options, rank: 2 });

  const x = tensor("x", [2, 5], numbers(10, 4)), before = await forward(layer, x);
  const create = GPUDevice.prototype.createBuffer;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    return create.call(this, { ...descriptor, size: descriptor.label === "original" ? 2 ** 40 : descriptor.size });
  };
  const merge = await failure(() => layer.merge({ keepOriginal: true }));
  GPUDevice.prototype.createBuffer = create;
  const { merged } = layer, after = await forward(layer, x);
  await layer.merge({ keepOriginal: true });
  await layer.unmerge();
  return { codes: [odd, onBase, weight].map(({ code }) => code), names, left, alive: kept.rank, merge: merge.code, merged, before, after, again: await forward(layer, x) };
}, ({ codes, names, left, alive, merge, merged, before, after, again }) => {
  assert.deepEqual([codes, names, left, alive], [Array(3).fill("invalid-argument"), ["default"], 0, 2]);
  assert.ok(["validation", "out-of-memory"].includes(merge), merge);
  assert.equal(merged, false);
  assert.deepEqual([after, again], [before, before]);
});
