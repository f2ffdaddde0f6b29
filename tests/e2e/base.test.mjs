// Frozen weights of every kind in JavaScript: from bytes and from floats, in pieces, under an adapter, and what is refused.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  assert.ok(existsSync(join(root, "dist/index.js")), "dist is missing: npm run build");
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const inPage = (name, work, check) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await check(await page.evaluate(work));
}));

const close = (name, got, expected, tolerance) => {
  assert.equal(got.length, expected.length, name);
  assert.ok(expected.some((value) => Math.abs(value) > 0.1), `${name}: zeros would pass`);
  got.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) <= tolerance * (1 + Math.abs(expected[i])), `${name}[${i}]: ${value}, expected ${expected[i]}`));
};

// W in each kind from the same floats, or ternary codes, and what a file means; both ways, in parts, and its rows.
inPage("every kind, whole and in pieces, agrees with plain loops", async () => {
  const [T, I, O] = [3, 128, 8];
  const weight = numbers(O * I, 1), bias = numbers(O, 2), X = numbers(T * I, 3), D = numbers(T * O, 4);
  const codes = Uint8Array.from({ length: O * I }, (_, i) => (7 * i + (i >> 3)) % 3);
  const scale = 0.625;
  const i2s = new Uint8Array(O * I / 4 + 4), packed = new Uint8Array(O * I / 4);
  codes.forEach((code, i) => {
    i2s[(i >> 7) * 32 + i % 32] |= code << (6 - 2 * ((i % 128) >> 5));
    const [row, column] = [Math.floor(i / I), i % I];
    packed[(row % (O / 4)) * I + column] |= code << (2 * Math.floor(row / (O / 4)));
  });
  new DataView(i2s.buffer).setFloat32(i2s.length - 4, scale, true);
  const ternary = Float32Array.from(codes, (code) => scale * (code - 1));
  const floats = new Uint8Array(weight.buffer);
  const cases = [
    ["f32", { weight }, weight, 1e-5],
    ["f32 as bytes", { kind: "f32", weight: floats }, weight, 1e-5],
    ["f16", { kind: "f16", weight }, weight, 2e-3],
    ["bf16", { kind: "bf16", weight }, weight, 2e-2],
    ["q8_0", { kind: "q8_0", weight }, weight, 2e-2],
    ["i2_s", { kind: "bitlinear", packing: "i2_s", weight: i2s }, ternary, 1e-5],
    ["transformers", { kind: "bitlinear", packing: "transformers", scale, weight: packed }, ternary, 1e-5],
  ];
  const rows = [];
  const x = tensor("x", [T, I], X), dOutput = tensor("dOutput", [T, O], D);
  const read = async (record, ...tensors) => {
    const rec = gpu.record();
    record(rec);
    await rec.submit();
    return Promise.all(tensors.map(async (t) => [...await t.read()]));
  };
  const unset = (shape) => tensor("unset", shape, new Float32Array(shape[0] * shape[1]).fill(NaN));
  const ids = new Tensor(gpu, { shape: [2], data: Int32Array.of(5, 0) });
  for (const [name, { weight: given, ...options }, W, tolerance] of cases) {
    const shape = { inFeatures: I, outFeatures: O, bias };
    const whole = new FrozenLinear(gpu, { ...shape, ...options, weight: given });
    const output = unset([T, O]), dInput = unset([T, I]), row = unset([2, I]), part = unset([T, 3]);
    const found = await read((rec) => {
      whole.forward(rec, { x, output });
      whole.backwardInput(rec, { dOutput, dInput });
      whole.forwardRows(rec, { first: 2, end: 5, x, output: part });
      whole.embed(rec, { ids, output: row });
    }, output, dInput, part, row);
    const dot = (n, a, b) => Array.from({ length: n }, (_, k) => a(k) * b(k)).reduce((sum, v) => sum + v, 0);
    const y = Array.from({ length: T * O }, (_, i) => bias[i % O] + dot(I, (k) => X[Math.floor(i / O) * I + k], (k) => W[(i % O) * I + k]));
    const dx = Array.from({ length: T * I }, (_, i) => dot(O, (k) => D[Math.floor(i / I) * O + k], (k) => W[k * I + i % I]));
    const columns = Array.from({ length: T * 3 }, (_, i) => y[Math.floor(i / 3) * O + 2 + i % 3]);
    const looked = [...W.slice(5 * I, 6 * I), ...W.slice(0, I)];
    rows.push([name, found, [y, dx, columns, looked], tolerance]);

    // The same bytes in pieces give the same bits; of packed floats the bytes are not at hand here.
    if (given instanceof Uint8Array) {
      const pieces = new FrozenLinear(gpu, { ...shape, ...options });
      if (pieces.finished) throw new Error("finished before its bytes came");
      for (let at = 0; at < given.length; at += 37) pieces.write(at, given.subarray(at, at + 37));
      pieces.finish();
      const again = unset([T, O]);
      const [bits] = await read((rec) => pieces.forward(rec, { x, output: again }), again);
      rows.push([`${name} in pieces`, [bits], [found[0]], 0]);
      pieces.dispose();
    }
    whole.dispose();
    whole.dispose();
  }
  return rows;
}, (rows) => {
  assert.equal(rows.length, 10);
  for (const [name, found, expected, tolerance] of rows) found.forEach((got, i) => close(`${name} ${i}`, got, expected[i], tolerance));
});

inPage("an adapter on a base of half precision learns, and what it holds is freed", async () => {
  const [T, I, O] = [8, 32, 16];
  const train = async (steps) => {
    const base = new FrozenLinear(gpu, { kind: "f16", inFeatures: I, outFeatures: O, weight: numbers(I * O, 1) });
    const bytes = base.bytes;
    const layer = new LoraLinear(gpu, { base, inFeatures: I, outFeatures: O, rank: 4, seed: 1 });
    const trainer = new Trainer(gpu, { layers: [layer], loss: mse(), optimizer: adamw({ lr: 0.02 }) });
    const batch = { x: numbers(T * I, 2), target: numbers(T * O, 3) };
    const losses = [];
    for (let i = 0; i < steps; i++) losses.push((await trainer.step(batch)).loss);
    trainer.dispose();
    layer.dispose();
    return { bytes, losses };
  };
  // Of the buffers that are read into eight are kept, and counted, whatever their sizes: all of them are there before.
  const some = tensor("some", [4], numbers(4, 4));
  await Promise.all(Array.from({ length: 16 }, () => some.read()));
  const before = gpu.memory();
  return { ...(await train(30)), left: gpu.memory().buffers - before.buffers };
}, ({ bytes, losses, left }) => {
  assert.equal(bytes, 32 * 16 * 2);
  assert.ok(losses.at(-1) < 0.5 * losses[0], `${losses[0]} → ${losses.at(-1)}`);
  assert.equal(left, 0);
});

inPage("what is wrong is refused by name", async () => {
  const failures = {};
  const fails = (name, work, ...expected) => {
    try {
      work();
      failures[name] = [{ code: "none", message: "nothing was refused" }, ...expected];
    } catch ({ code, message }) {
      failures[name] = [{ code, message }, ...expected];
    }
  };
  const shape = { inFeatures: 32, outFeatures: 4 };
  const make = (options) => new FrozenLinear(gpu, { ...shape, ...options });
  const bytes = (n) => new Uint8Array(n);
  const before = gpu.memory();
  fails("kind", () => make({ kind: "q5_0" }), "invalid-argument", "kind.*q8_0.*q5_0");
  fails("unknown", () => make({ weights: bytes(1) }), "unknown-option", "weights");
  fails("block", () => make({ kind: "q4_0", inFeatures: 33 }), "shape", "inFeatures.*32.*q4_0.*33");
  fails("packing", () => make({ kind: "bitlinear" }), "invalid-argument", "packing.*i2_s");
  fails("no packing", () => make({ kind: "f16", packing: "i2_s" }), "invalid-argument", "packing.*none.*f16");
  fails("i2_s", () => make({ kind: "bitlinear", packing: "i2_s" }), "shape", "inFeatures.*128.*32");
  fails("8 bits", () => make({ int8Activations: true }), "invalid-argument", "int8Activations");
  fails("scale", () => make({ scale: 2 }), "invalid-argument", "scale.*none");
  fails("code 3", () => make({ kind: "bitlinear", packing: "transformers", scale: 1, weight: bytes(32).fill(255) }), "invalid-argument", "weight.*code 3");
  fails("no scale", () => make({ kind: "bitlinear", packing: "transformers", weight: bytes(32) }), "invalid-argument", "scale.*number");
  fails("truncated", () => make({ kind: "q8_0", weight: bytes(4 * 34 - 1) }), "shape", "weight.*136 bytes.*135");
  fails("too long", () => make({ kind: "q8_0", weight: bytes(4 * 34 + 1) }), "shape", "weight.*136");
  fails("floats", () => make({ weight: new Float32Array(127) }), "shape", "weight.*128.*127");
  fails("floats into 4 bits", () => make({ kind: "q4_1", weight: new Float32Array(128) }), "invalid-argument", "kind.*q4_1");
  fails("neither", () => make({ weight: [1, 2] }), "invalid-argument", "weight.*Float32Array");
  fails("bias", () => make({ bias: new Float32Array(3), weight: new Float32Array(128) }), "shape", "bias.*4.*3");
  const open = make({ kind: "bf16" });
  const x = tensor("x", [1, 32], numbers(32, 1)), output = tensor("output", [1, 4], numbers(4, 1));
  fails("unfinished", () => open.forward(gpu.record(), { x, output }), "invalid-argument", "FrozenLinear.*finish");
  fails("under a layer", () => new LoraLinear(gpu, { ...shape, base: open, rank: 2 }), "invalid-argument", "FrozenLinear.*finish");
  fails("a gap", () => open.write(2, bytes(2)), "shape", "weight.*from 0 on.*from 2 on");
  fails("an offset", () => open.write(-1, bytes(2)), "invalid-argument", "byteOffset");
  fails("numbers", () => open.write(0, [1, 2]), "invalid-argument", "bytes.*Uint8Array");
  fails("early", () => open.finish(), "shape", "weight.*256 bytes.*0");
  open.write(0, bytes(256));
  open.finish();
  fails("late", () => open.write(256, bytes(1)), "invalid-argument", "still on its way");
  fails("another width", () => new LoraLinear(gpu, { inFeatures: 31, outFeatures: 4, base: open, rank: 2 }), "shape", "base.*4, 31.*4, 32");
  fails("both", () => new LoraLinear(gpu, { ...shape, base: open, weight: new Float32Array(128), rank: 2 }), "invalid-argument", "base");
  fails("neither of them", () => new LoraLinear(gpu, { ...shape, rank: 2 }), "invalid-argument", "weight.*Float32Array");
  fails("rows", () => open.forwardRows(gpu.record(), { first: 2, end: 5, x, output }), "invalid-argument", "rows.*0..4.*2..5");
  fails("ids", () => open.embed(gpu.record(), { ids: x, output: x }), "shape", "ids.*1.*32");
  open.dispose();
  fails("disposed", () => open.forward(gpu.record(), { x, output }), "disposed", "FrozenLinear");
  fails("disposed again", () => open.write(0, bytes(1)), "disposed", "FrozenLinear");
  x.dispose();
  output.dispose();
  return { failures, left: gpu.memory().bytes - before.bytes };
}, ({ failures, left }) => {
  assert.ok(Object.keys(failures).length > 25);
  for (const [name, [{ code, message }, expected, words]] of Object.entries(failures)) {
    assert.equal(code, expected, `${name}: ${message}`);
    assert.match(message, new RegExp(words), name);
  }
  assert.equal(left, 0, "what was refused holds nothing");
});

inPage("a layer over the page's tensors leaves them to the page, and outlives them", async () => {
  const cycle = async () => {
    const result = {};
    const weight = tensor("weight", [3, 5], numbers(15, 1)), bias = tensor("bias", [3], numbers(3, 2));
    const x = tensor("x", [2, 5], numbers(10, 3)), output = tensor("output", [2, 3]);
    const forward = async (linear) => {
      const rec = gpu.record();
      linear.forward(rec, { x, output });
      await rec.submit();
      return [...(await output.read())];
    };
    const [first, second] = [0, 1].map(() => FrozenLinear.fromTensors({ weight, bias }));
    const own = new FrozenLinear(gpu, { inFeatures: 5, outFeatures: 3, weight: numbers(15, 1), bias: numbers(3, 2) });
    result.expected = await forward(own);
    const layer = new LoraLinear(gpu, { name: "fc", inFeatures: 5, outFeatures: 3, rank: 2, base: first });
    result.first = await forward(second);
    layer.dispose();
    result.second = await forward(second);
    result.weight = [...(await weight.read())];
    result.bias = [...(await bias.read())];
    weight.dispose();
    bias.dispose();
    result.third = await forward(second);
    for (const thing of [second, own, x, output]) thing.dispose();
    return result;
  };
  await cycle(); // buffers to read into are kept
  const before = gpu.memory(), result = await cycle();
  return { ...result, numbers: [[...numbers(15, 1)], [...numbers(3, 2)]], left: gpu.memory().bytes - before.bytes };
}, ({ expected, first, second, third, weight, bias, numbers, left }) => {
  assert.ok(expected.some((value) => value !== 0));
  for (const output of [first, second, third]) assert.deepEqual(output, expected);
  assert.deepEqual([weight, bias], numbers);
  assert.equal(left, 0, "the memory goes with the last of them");
});
