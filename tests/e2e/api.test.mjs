// The package as a page imports it: every kernel by its name, and what it says to bad input.
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

// `work` runs in the page; what it returns goes to `check`.
const inPage = (name, work, check = () => {}, options = {}) => test(name, options, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await check(await page.evaluate(work));
}));

// Each failure must have the code and words expected of it: { name: [failure, code, words] }.
function refused(failures) {
  for (const [name, [{ code, message }, expected, words]] of Object.entries(failures)) {
    assert.equal(code, expected, `${name}: ${message}`);
    assert.match(message, new RegExp(words), name);
  }
}

for (const tokens of [5, 1]) {
  inPage(`every method of Recording by its name, against plain loops (${tokens} tokens)`, `(${kernels})(${tokens})`, (rows) => {
    const names = rows.map(({ name }) => name);
    for (const name of ["projectA", "projectB", "addScaled", "fusedBAdd", "loraForward", "loraForwardFused", "saveActivation", "gradB", "gradDh", "gradA", "inputGrad", "loraBackward", "mse", "zero"]) {
      assert.ok(names.some((row) => row.startsWith(name)), `${name} is missing`);
    }
    for (const { name, got, expected } of rows) {
      assert.equal(got.length, expected.length, name);
      assert.ok(expected.length === 1 || expected.some((value) => value !== 0) || name.startsWith("zero"), `${name}: zeros would pass`);
      got.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) <= 1e-5 * (1 + Math.abs(expected[i])), `${name}[${i}]: ${value}, expected ${expected[i]}`));
    }
  });
}

async function kernels(T) {
  const [I, O, r, scale] = [7, 3, 2, 1.75];
  const weight = new LoraWeight(gpu, { inFeatures: I, outFeatures: O, rank: r });
  const A = numbers(r * I, 1), B = numbers(O * r, 2), X = numbers(T * I, 3), H = numbers(T * r, 4), D = numbers(T * O, 5);
  weight.a.write(A);
  weight.b.write(B);
  // Accumulating kernels start from these, overwriting ones from NaN.
  const before = (length) => numbers(length, 6);
  const nan = (length) => new Float32Array(length).fill(NaN);

  // left [m, k]·right [k, n] from accessors, in float64.
  const product = (m, n, k, left, right) => Array.from({ length: m * n }, (_, i) =>
    Array.from({ length: k }, (_, j) => left(Math.floor(i / n), j) * right(j, i % n)).reduce((sum, value) => sum + value, 0));
  const at = (matrix, columns) => (row, column) => matrix[row * columns + column];
  const turned = (matrix, columns) => (row, column) => matrix[column * columns + row];
  const plus = (start, factor, values) => values.map((value, i) => start[i] + factor * value);
  const xAt = product(T, r, I, at(X, I), turned(A, I));
  const hBt = product(T, O, r, at(H, r), turned(B, r));
  const deltaOfX = product(T, O, r, at(xAt, r), turned(B, r));
  const dhOf = product(T, r, O, at(D, O), at(B, r));
  const dB = product(O, r, T, turned(D, O), at(H, r));
  const dAOfH = product(r, I, T, turned(H, r), at(X, I)); // with H in the place of dh
  const dAOfDh = product(r, I, T, turned(dhOf, r), at(X, I));
  const dXOfH = product(T, I, r, at(H, r), at(A, I));
  const dXOfDh = product(T, I, r, at(dhOf, r), at(A, I));

  const x = tensor("x", [T, I], X), h = tensor("h", [T, r], H), dOutput = tensor("dOutput", [T, O], D), y = tensor("y", [T, O], D);
  const rows = [];
  // Runs one recording of one method and keeps what its written tensors hold.
  const run = async (name, record, ...written) => {
    const rec = gpu.record();
    record(rec);
    await rec.submit();
    for (const [what, target, expected] of written) rows.push({ name: `${name} ${what}`, got: Array.from(await target.read()), expected: Array.from(expected) });
  };
  let out = tensor("h", [T, r], nan(T * r));
  await run("projectA", (rec) => rec.projectA({ weight, x, h: out }), ["h", out, xAt]);
  out = tensor("y", [T, O], nan(T * O));
  await run("projectB", (rec) => rec.projectB({ weight, h, y: out }), ["y", out, hBt]);
  out = tensor("output", [T, O], before(T * O));
  await run("addScaled", (rec) => rec.addScaled({ y, output: out, scale }), ["output", out, plus(before(T * O), scale, Array.from(D))]);
  out = tensor("output", [T, O], before(T * O));
  await run("fusedBAdd", (rec) => rec.fusedBAdd({ weight, h, output: out, scale }), ["output", out, plus(before(T * O), scale, hBt)]);
  for (const name of ["loraForward", "loraForwardFused"]) {
    const output = tensor("output", [T, O], before(T * O)), ownH = tensor("h", [T, r], nan(T * r)), ownY = tensor("y", [T, O], nan(T * O));
    const args = { weight, x, h: ownH, output, scale, ...(name === "loraForward" && { y: ownY }) };
    await run(name, (rec) => rec[name](args), ["output", output, plus(before(T * O), scale, deltaOfX)], ["h", ownH, xAt]);
  }
  out = tensor("dst", [T, r], nan(T * r));
  await run("saveActivation", (rec) => rec.saveActivation({ src: h, dst: out }), ["dst", out, H]);
  out = tensor("dB", [O, r], before(O * r));
  await run("gradB", (rec) => rec.gradB({ dOutput, h, dB: out, scale }), ["dB", out, plus(before(O * r), scale, dB)]);
  out = tensor("dh", [T, r], nan(T * r));
  await run("gradDh", (rec) => rec.gradDh({ weight, dOutput, dh: out }), ["dh", out, dhOf]);
  out = tensor("dA", [r, I], before(r * I));
  await run("gradA", (rec) => rec.gradA({ dh: h, x, dA: out, scale }), ["dA", out, plus(before(r * I), scale, dAOfH)]);
  out = tensor("dInput", [T, I], before(T * I));
  await run("inputGrad", (rec) => rec.inputGrad({ weight, dh: h, dInput: out, scale }), ["dInput", out, plus(before(T * I), scale, dXOfH)]);
  const grad = new LoraGrad(gpu, weight), dh = tensor("dh", [T, r], nan(T * r)), dInput = tensor("dInput", [T, I], before(T * I));
  grad.a.write(before(r * I));
  grad.b.write(before(O * r));
  await run("loraBackward", (rec) => rec.loraBackward({ weight, dOutput, x, h, dh, grad, dInput, scale }),
    ["dB", grad.b, plus(before(O * r), scale, dB)], ["dh", dh, dhOf],
    ["dA", grad.a, plus(before(r * I), scale, dAOfDh)], ["dInput", dInput, plus(before(T * I), scale, dXOfDh)]);
  const output = tensor("output", [T, O], before(T * O)), loss = tensor("loss", [1], [NaN]), dOut = tensor("dOutput", [T, O], nan(T * O));
  const difference = Array.from(before(T * O), (value, i) => value - D[i]);
  await run("mse", (rec) => rec.mse({ output, target: y, dOutput: dOut, loss }),
    ["loss", loss, [difference.reduce((sum, value) => sum + value * value, 0) / (T * O)]], ["dOutput", dOut, difference.map((value) => (2 * value) / (T * O))]);
  await run("zero", (rec) => rec.zero(output), ["tensor", output, new Float32Array(T * O)]);
  return rows;
}

inPage("wrong lengths and shapes name the tensor, what was expected and what came", async () => {
  const result = {};
  const x = tensor("x", [4, 6]), wrong = tensor("mine", [4, 5]);
  const options = { inFeatures: 6, outFeatures: 3, rank: 2, weight: numbers(18, 1) };
  const layer = new LoraLinear(gpu, options);
  const weight = new LoraWeight(gpu, { inFeatures: 6, outFeatures: 3, rank: 2 });
  const rec = gpu.record();
  result.data = [await failure(() => tensor("x", [2, 3], [1, 2])), "shape", "x.*6.*2"];
  result.write = [await failure(() => x.write(new Float32Array(7))), "shape", "x.*24.*7"];
  result.weight = [await failure(() => new LoraLinear(gpu, { ...options, weight: numbers(17, 1) })), "shape", "weight.*18.*17"];
  result.bias = [await failure(() => new LoraLinear(gpu, { ...options, bias: numbers(4, 1) })), "shape", "bias.*3.*4"];
  result.forward = [await failure(() => layer.forward(rec, wrong)), "shape", "x.*\\[4, 6\\].*\\[4, 5\\].*mine"];
  result.backward = [await failure(() => layer.backward(rec, { x, dOutput: wrong })), "shape", "d_?[oO]utput.*\\[4, 3\\].*\\[4, 5\\].*mine"];
  result.kernel = [await failure(() => rec.projectA({ weight, x, h: wrong })), "shape", "h.*\\[4, 2\\].*\\[4, 5\\].*mine"];
  result.empty = [await failure(() => tensor("nothing", [0, 6])), "invalid-argument", "shape.*0"];
  result.dimensions = [await failure(() => tensor("flat", [])), "shape", "flat"];
  const dispatches = rec.dispatches;
  layer.forward(rec, x); // everything goes on as before
  await rec.submit();
  return { result, dispatches };
}, ({ result, dispatches }) => {
  refused(result);
  assert.equal(dispatches, 0, "what fails records nothing");
});

inPage("numbers out of range and unknown options are refused by their names", async () => {
  const result = {};
  const options = { inFeatures: 6, outFeatures: 3, rank: 2, weight: numbers(18, 1) };
  const layer = (more) => failure(() => new LoraLinear(gpu, { ...options, ...more }));
  for (const rank of [0, -1, 1.5, NaN, "2", undefined]) result[`rank ${rank}`] = [await layer({ rank }), "invalid-argument", "rank"];
  for (const alpha of [NaN, Infinity, "8", 1e300]) result[`alpha ${alpha}`] = [await layer({ alpha }), "invalid-argument", "alpha"];
  for (const seed of [-1, 0.5, 2 ** 53]) result[`seed ${seed}`] = [await layer({ seed }), "invalid-argument", "seed"];
  result.init = [await layer({ init: "zeros" }), "invalid-argument", "init.*zeros"];
  result.weight = [await layer({ weight: Array(18).fill(0) }), "invalid-argument", "weight.*Float32Array.*Array"];
  result.unknown = [await layer({ rnak: 4 }), "unknown-option", "rnak"];
  result.useRslora = [await layer({ useRslora: 1 }), "invalid-argument", "useRslora"];
  result.request = [await failure(() => Gpu.request({ power: "high" })), "unknown-option", "power"];
  result.tensor = [await failure(() => new Tensor(gpu, { shape: [1], name: "x" })), "unknown-option", "name"];
  result.noOptions = [await failure(() => new Tensor(gpu)), "invalid-argument", "Tensor"];
  result.noGpu = [await failure(() => new Tensor({}, { shape: [1] })), "invalid-argument", "gpu"];
  const good = new LoraLinear(gpu, options);
  for (const [name, make] of [["adamw", adamw], ["sgd", sgd]]) {
    for (const lr of [NaN, Infinity, "1"]) result[`${name} lr ${lr}`] = [await failure(() => make({ lr })), "invalid-argument", "lr"];
    result[`${name} lr -1`] = [await failure(() => new Optimizer(gpu, { layers: [good], optimizer: make({ lr: -1 }) })), "invalid-argument", "lr"];
    result[`${name} unknown`] = [await failure(() => make({ learningRate: 1 })), "unknown-option", "learningRate"];
  }
  result.betas = [await failure(() => new Optimizer(gpu, { layers: [good], optimizer: adamw({ betas: [1, 0.9] }) })), "invalid-argument", "beta"];
  result.optimizer = [await failure(() => new Optimizer(gpu, { layers: [good], optimizer: {} })), "invalid-argument", "optimizer"];
  result.noLayers = [await failure(() => new Optimizer(gpu, { layers: [], optimizer: sgd() })), "invalid-argument", "layers"];
  result.notALayer = [await failure(() => new Optimizer(gpu, { layers: [{}], optimizer: sgd() })), "invalid-argument", "layers"];
  const optimizer = new Optimizer(gpu, { layers: [good], optimizer: sgd({ lr: 1 }) });
  result.twoOptimizers = [await failure(() => new Optimizer(gpu, { layers: [good], optimizer: sgd() })), "invalid-argument", "layers"];
  result.setLr = [await failure(() => optimizer.setLr(NaN)), "invalid-argument", "lr"];
  result.scale = [await failure(() => gpu.record().addScaled({ y: tensor("y", [1]), output: tensor("o", [1]), scale: NaN })), "invalid-argument", "scale"];
  result.missing = [await failure(() => gpu.record().addScaled({ y: tensor("y", [1]), scale: 1 })), "invalid-argument", "output"];
  result.extra = [await failure(() => gpu.record().addScaled({ y: tensor("y", [1]), output: tensor("o", [1]), scale: 1, x: 1 })), "unknown-option", "x"];
  const rec = gpu.record(); // and still it works
  optimizer.step(rec);
  await rec.submit();
  return result;
}, refused);

inPage("a tensor of another Gpu, one buffer read and written, and sizes above the limits are refused, each with its code", async () => {
  const result = {};
  const other = await Gpu.request();
  const y = tensor("y", [4, 4], numbers(16, 1)), output = tensor("output", [4, 4]), foreign = new Tensor(other, { label: "stranger", shape: [4, 4] });
  const rec = gpu.record();
  result.foreign = [await failure(() => rec.addScaled({ y: foreign, output, scale: 1 })), "foreign-tensor", "stranger"];
  result.aliased = [await failure(() => rec.addScaled({ y: output, output, scale: 1 })), "aliased-buffer", "output"];
  const before = gpu.memory();
  result.limit = [await failure(() => tensor("huge", [1 << 20, 1 << 20])), "limit", "huge"];
  result.overflow = [await failure(() => tensor("huge", [4294967295, 4294967295, 4294967295])), "limit", "huge"];
  // A start that is computed for such a rank would fill the memory, or take minutes.
  const wide = { inFeatures: 6, outFeatures: 3, rank: 600_000_000 }, weight = numbers(18, 1), layer = new LoraLinear(gpu, { ...wide, rank: 2, weight });
  const began = performance.now();
  for (const init of ["peft", "hesper", "gaussian", "orthogonal"]) {
    result[`a layer, ${init}`] = [await failure(() => new LoraLinear(gpu, { ...wide, weight, init })), "limit", "lora"];
    result[`A and B, ${init}`] = [await failure(() => new LoraWeight(gpu, { ...wide, init })), "limit", "lora"];
    result[`another adapter, ${init}`] = [await failure(() => layer.addAdapter("more", { rank: wide.rank, init })), "limit", "lora"];
  }
  const took = performance.now() - began;
  layer.dispose();
  const after = gpu.memory();
  rec.addScaled({ y, output, scale: 2 });
  const { dispatches } = rec;
  await rec.submit();
  return { result, before, after, took, dispatches, output: Array.from(await output.read()), y: Array.from(await y.read()) };
}, ({ result, before, after, took, dispatches, output, y }) => {
  refused(result);
  assert.ok(took < 5000, `${took} ms`);
  assert.deepEqual(after, before, "nothing half-made is left");
  assert.equal(dispatches, 1);
  assert.deepEqual(output, y.map((value) => 2 * value));
});

inPage("use after dispose() is refused with code disposed, and dispose() may be called twice", async () => {
  const result = {};
  const layer = new LoraLinear(gpu, { inFeatures: 4, outFeatures: 4, rank: 2, weight: numbers(16, 1) });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw() });
  const x = tensor("x", [2, 4], numbers(8, 1)), dOutput = tensor("dOutput", [2, 4], numbers(8, 2));
  const rec = gpu.record();
  layer.forward(rec, x);
  optimizer.zeroGrad(rec);
  layer.backward(rec, { x, dOutput });
  optimizer.step(rec);
  await rec.submit();
  const { a } = layer;
  for (let time = 0; time < 2; time += 1) x.dispose();
  result.read = [await failure(() => x.read()), "disposed", "x"];
  result.write = [await failure(() => x.write(numbers(8, 1))), "disposed", "x"];
  result.record = [await failure(() => layer.forward(gpu.record(), x)), "disposed", "x"];
  result.submit = [await failure(() => rec.submit()), "disposed", "x"];
  for (let time = 0; time < 2; time += 1) optimizer.dispose();
  result.step = [await failure(() => optimizer.step(gpu.record())), "disposed", ""];
  const values = await a.read(); // the layer keeps its adapter
  for (let time = 0; time < 2; time += 1) layer.dispose();
  const fresh = tensor("fresh", [2, 4]);
  result.layer = [await failure(() => layer.forward(gpu.record(), fresh)), "disposed", ""];
  result.delta = [await failure(() => layer.deltaWeight()), "disposed", ""];
  result.a = [await failure(() => a.read()), "disposed", ""];
  if (Symbol.dispose) fresh[Symbol.dispose]();
  result.symbol = [Symbol.dispose ? await failure(() => fresh.read()) : { code: "disposed", message: "fresh" }, "disposed", "fresh"];
  const other = await Gpu.request();
  const last = new Tensor(other, { shape: [1] });
  for (let time = 0; time < 2; time += 1) other.dispose();
  result.gpu = [await failure(() => last.read()), "disposed", "Gpu"];
  result.gpuTensor = [await failure(() => new Tensor(other, { shape: [1] })), "disposed", "Gpu"];
  result.finished = [await failure(() => other.finished()), "disposed", "Gpu"];
  return { result, finite: values.every(Number.isFinite), lost: (await other.lost).reason };
}, ({ result, finite, lost }) => {
  refused(result);
  assert.ok(finite);
  assert.equal(lost, "destroyed");
});

inPage("dispose() frees the GPU memory, though a recording still names it", async () => {
  const start = gpu.memory();
  const layer = new LoraLinear(gpu, { inFeatures: 64, outFeatures: 64, rank: 2, weight: numbers(4096, 1) });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw() });
  const x = tensor("x", [32, 64]), dOutput = tensor("dOutput", [32, 64]);
  const rec = gpu.record();
  layer.forward(rec, x);
  layer.backward(rec, { x, dOutput });
  optimizer.step(rec);
  await rec.submit();
  for (const thing of [optimizer, layer, x, dOutput]) thing.dispose();
  const end = gpu.memory();
  return { start, end, code: (await failure(() => rec.submit())).code };
}, ({ start, end, code }) => {
  assert.deepEqual(end, start);
  assert.equal(code, "disposed");
});

inPage("init() twice is one loading; with B = 0 the layer is its base; a layer trains", async () => {
  const same = init() === init();
  await init();
  const [T, I, O] = [8, 6, 5];
  const weight = numbers(O * I, 1), X = numbers(T * I, 2), target = tensor("target", [T, O], numbers(T * O, 3));
  const layer = new LoraLinear(gpu, { inFeatures: I, outFeatures: O, rank: 5, weight, seed: 3 });
  const twin = new LoraLinear(gpu, { inFeatures: I, outFeatures: O, rank: 5, weight, seed: 3 });
  const optimizer = new Optimizer(gpu, { layers: [layer], optimizer: adamw({ lr: 0.05, weightDecay: 0 }) });
  const x = tensor("x", [T, I], X), dOutput = tensor("dOutput", [T, O]), loss = tensor("loss", [1]);
  const rec = gpu.record();
  const output = layer.forward(rec, x);
  rec.mse({ output, target, dOutput, loss });
  optimizer.zeroGrad(rec);
  layer.backward(rec, { x, dOutput });
  optimizer.step(rec);
  await rec.submit();
  const first = { output: Array.from(await output.read()), loss: (await loss.read())[0] };
  const base = Array.from({ length: T * O }, (_, i) => Array.from({ length: I }, (_, k) => X[Math.floor(i / O) * I + k] * weight[(i % O) * I + k]).reduce((sum, value) => sum + value, 0));
  for (let step = 0; step < 300; step += 1) await rec.submit();
  const delta = await layer.deltaWeight(), [a, b] = [await layer.a.read(), await layer.b.read()];
  const product = Array.from({ length: O * I }, (_, i) => Array.from({ length: 5 }, (_, r) => layer.scaling * b[Math.floor(i / I) * 5 + r] * a[r * I + (i % I)]).reduce((sum, value) => sum + value, 0));
  return { same, first, base, last: (await loss.read())[0], delta: Array.from(delta), product, sameSeed: JSON.stringify(Array.from(await twin.a.read())) !== JSON.stringify(Array.from(a)) };
}, ({ same, first, base, last, delta, product, sameSeed }) => {
  assert.ok(same);
  first.output.forEach((value, i) => assert.ok(Math.abs(value - base[i]) < 1e-5));
  assert.ok(last < first.loss / 2, `${first.loss} → ${last}`);
  delta.forEach((value, i) => assert.ok(Math.abs(value - product[i]) < 1e-5));
  assert.ok(sameSeed, "training moved A away from its start");
});

test("a page without WebGPU gets a LoraError", () => onPage(browser, `${server.url}tests/e2e/bare.html`, { init: () => { delete Navigator.prototype.gpu; } }, async (page, errors) => {
  const { code, message } = await page.evaluate(async () => {
    const { Gpu } = await import("/dist/index.js");
    return Gpu.request().catch((error) => ({ code: error.code, message: error.message }));
  });
  assert.equal(code, "no-webgpu");
  assert.match(message, /Chrome/);
  errors.splice(0, errors.length, ...errors.filter((text) => !text.includes("no WebGPU"))); // bare.html's own request
}));

inPage("a layer's adapter and gradients are a LoraWeight and a LoraGrad; a bias does not hide an error", async () => {
  const [T, I, O, rank] = [4, 6, 5, 2];
  const options = { inFeatures: I, outFeatures: O, rank, weight: numbers(I * O, 1), bias: numbers(O, 2) };
  const layer = new LoraLinear(gpu, options);
  layer.b.write(numbers(O * rank, 3));
  const x = tensor("x", [T, I], numbers(T * I, 4)), dOutput = tensor("dOutput", [T, O], numbers(T * O, 5));
  const [h, dh] = [tensor("h", [T, rank]), tensor("dh", [T, rank])];
  const grad = new LoraGrad(gpu, layer.weight);
  const rec = gpu.record();
  layer.forward(rec, x);
  layer.backward(rec, { x, dOutput });
  rec.projectA({ weight: layer.weight, x, h });
  rec.loraBackward({ weight: LoraWeight.from(gpu, { a: layer.a, b: layer.b }), dOutput, x, h, dh, grad, scale: layer.scaling });
  await rec.submit();
  const [own, byHand] = await Promise.all([layer.grad.b.read(), grad.b.read()]);
  const big = await failure(() => new LoraLinear(gpu, { ...options, rank: 2 ** 31 }));
  layer.forward(gpu.record(), tensor("more", [T + 1, I]));
  const stale = await failure(() => layer.backward(gpu.record(), { x, dOutput }));
  const labels = new Tensor(gpu, { shape: [2], data: new Int32Array([3, -100]) });
  return { own: Array.from(own), byHand: Array.from(byHand), big, stale, labels: Array.from(await labels.readIntegers()), floats: await failure(() => labels.read()) };
}, ({ own, byHand, big, stale, labels, floats }) => {
  assert.ok(own.some((value) => value !== 0));
  assert.deepEqual(own, byHand);
  assert.equal(big.code, "limit");
  assert.equal(stale.code, "invalid-argument", "the forward pass of other tokens took its place");
  assert.deepEqual(labels, [3, -100]);
  assert.equal(floats.code, "invalid-argument");
});

inPage("a logit of −∞ is a class of probability 0, and a label out of range trains nothing", async () => {
  const logits = tensor("logits", [2, 3], [0.5, -Infinity, 0.5, 1, 2, 3]);
  const dOutput = tensor("dOutput", [2, 3]), loss = tensor("loss", [1]);
  const run = async (labels) => {
    const rec = gpu.record();
    rec.crossEntropy({ output: logits, target: new Tensor(gpu, { shape: [2], data: new Int32Array(labels) }), dOutput, loss });
    await rec.submit();
    return { loss: (await loss.read())[0], gradient: Array.from(await dOutput.read()) };
  };
  return { good: await run([0, -100]), bad: await run([3, 0]), options: await failure(() => crossEntropy({ ignore_index: 0 })) };
}, ({ good, bad, options }) => {
  assert.ok(Math.abs(good.loss - Math.log(2)) < 1e-6);
  assert.deepEqual(good.gradient.map((value) => Math.round(value * 1e6) / 1e6), [-0.5, 0, 0.5, 0, 0, 0]);
  assert.equal(Number.isFinite(bad.loss), false);
  assert.ok(bad.gradient.some((value) => !Number.isFinite(value)));
  assert.equal(options.code, "unknown-option");
});
