// The trainer as a page uses it.
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

// `work` runs in the page with a network, batches that it can learn, and the package's exports; what it returns goes to `check`.
const inPage = (name, work, check) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await page.evaluate(setUp);
  await check(await page.evaluate(work));
}));

async function setUp() {
  const L = await import("/dist/index.js");
  const [inner, tokens] = [12, 8];
  const layer = (name, inFeatures, outFeatures, seed) =>
    new L.LoraLinear(gpu, { name, inFeatures, outFeatures, rank: 4, alpha: 8, seed, weight: numbers(inFeatures * outFeatures, seed).map((v) => v / 4) });
  globalThis.L = L;
  globalThis.network = () => [layer("fc1", 6, inner, 1), L.tanh(), layer("fc2", inner, 5, 2)];
  globalThis.batches = Array.from({ length: 4 }, (_, i) => ({ x: numbers(tokens * 6, 10 + i), target: numbers(tokens * 5, 20 + i).map((v) => v / 8) }));
  globalThis.trainer = (layers = network(), more = {}) =>
    new L.Trainer(gpu, { layers, loss: L.mse(), optimizer: L.adamw({ lr: 0.02, weightDecay: 0 }), ...more });
  globalThis.collect = async (iterator) => {
    const records = [];
    for await (const record of iterator) records.push(record);
    return records;
  };
  globalThis.code = (promise) => promise.then(() => "success", (error) => error.code);
}

inPage("records come every logEvery steps and at the end, and the loss falls", async () => {
  const [layers, submits] = [network(), gpu.stats().submits];
  const t = trainer(layers);
  const records = await collect(t.train(batches, { epochs: 10, logEvery: 16 }));
  const evaluated = await t.evaluate(batches);
  const result = { records, evaluated, steps: t.steps, submits: gpu.stats().submits - submits };
  t.dispose();
  return { ...result, alive: (await layers[0].a.read()).every(Number.isFinite) };
}, ({ records, evaluated, steps, submits, alive }) => {
  assert.deepEqual(records.map((record) => record.step), [16, 32, 40]);
  assert.equal(steps, 40);
  assert.ok(records.at(-1).loss < records[0].loss / 2, JSON.stringify(records));
  assert.ok(evaluated <= records.at(-1).loss);
  assert.ok(records.every(({ gradNorm, tokensPerSecond, lr, skipped }) => gradNorm > 0 && tokensPerSecond > 0 && Math.abs(lr - 0.02) < 1e-8 && skipped === 0));
  // One a step; besides, the adapters' move, the four tensors of the first state, three read-backs of the log, and two
  // for each evaluated batch.
  assert.equal(submits, 40 + 1 + 4 + 3 + 2 * 4);
  assert.ok(alive, "the adapters outlive the trainer");
});

inPage("a trainer's pipelines are made ahead of its first step, side by side", async () => {
  const gpu = await Gpu.request();
  const { createComputePipeline, createComputePipelineAsync } = gpu.device;
  let [inTurn, ahead] = [0, 0];
  gpu.device.createComputePipeline = (...args) => (inTurn++, createComputePipeline.apply(gpu.device, args));
  gpu.device.createComputePipelineAsync = (...args) => (ahead++, createComputePipelineAsync.apply(gpu.device, args));
  const layer = new LoraLinear(gpu, { weight: numbers(15, 1), inFeatures: 5, outFeatures: 3, rank: 2 });
  const trainer = new Trainer(gpu, { layers: [layer], loss: mse(), optimizer: adamw({ lr: 0.01 }) });
  await trainer.saveState(); // moves the adapter into the optimizer's arena, which compiles a copy
  const before = inTurn;
  await trainer.step({ x: numbers(10, 2), target: numbers(6, 3) });
  const first = [inTurn - before, ahead];
  await trainer.step({ x: numbers(10, 2), target: numbers(6, 3) });
  const second = [inTurn - before, ahead];
  gpu.dispose();
  return { first, second };
}, ({ first, second }) => {
  assert.equal(first[0], 0, "none was made in turn");
  assert.ok(first[1] > 5, `${first[1]} were made ahead`);
  assert.deepEqual(second, first, "a second step makes none");
});

inPage("gradient accumulation over two halves is the step of the whole", async () => {
  const whole = batches[0];
  const half = (array, i) => array.slice((i * array.length) / 2, ((i + 1) * array.length) / 2);
  const halves = [0, 1].map((i) => ({ x: half(whole.x, i), target: half(whole.target, i) }));
  const run = async (batches, more) => {
    const layers = network();
    const records = await collect(trainer(layers, more).train(batches, { epochs: 5, logEvery: 1 }));
    return { losses: records.map((record) => record.loss), b: Array.from(await layers[2].b.read()) };
  };
  return { one: await run([whole], {}), two: await run(halves, { gradientAccumulation: 2 }) };
}, ({ one, two }) => {
  assert.equal(two.losses.length, 5);
  one.losses.forEach((loss, i) => assert.ok(Math.abs(loss - two.losses[i]) <= 1e-5 * loss, `${one.losses} ${two.losses}`));
  one.b.forEach((value, i) => assert.ok(Math.abs(value - two.b[i]) <= 1e-4, `${value} ${two.b[i]}`));
  assert.ok(one.b.some((value) => Math.abs(value) > 0.01), "B has moved");
});

inPage("break and the signal end after the submitted steps, and the trainer goes on", async () => {
  const t = trainer();
  for await (const { step } of t.train(batches, { epochs: 1000, logEvery: 2 })) if (step >= 4) break;
  const broken = t.steps;
  const controller = new AbortController();
  const records = [];
  for await (const record of t.train(batches, { epochs: 1000, logEvery: 2, signal: controller.signal })) {
    records.push(record.step);
    controller.abort();
  }
  const aborted = t.steps;
  const { step, loss } = await t.step(batches[0]);
  return { broken, aborted, records, step, loss };
}, ({ broken, aborted, records, step, loss }) => {
  assert.ok(broken >= 4 && broken <= 8, `${broken}`);
  assert.ok(aborted > broken && aborted <= broken + 6, `${aborted}`);
  assert.equal(records[0], broken + 2);
  assert.equal(step, aborted + 1);
  assert.ok(Number.isFinite(loss));
});

inPage("validation is said with the records, and training stops early when it no longer gets better", async () => {
  const t = trainer(network(), { optimizer: L.sgd({ lr: 0 }) });
  const validation = { batches: batches.slice(0, 2), every: 2, patience: 3 };
  return { records: await collect(t.train(batches, { epochs: 100, logEvery: 2, validation })), steps: t.steps };
}, ({ records, steps }) => {
  // The first evaluation is the lowest so far, three more are not lower.
  assert.equal(steps, 8);
  assert.ok(records.every((record) => record.validationLoss > 0));
});

inPage("labels train by cross-entropy, with norms and a residual, on a schedule", async () => {
  const weight = new Float32Array(6).fill(1);
  const [inner, last] = [network()[0], new L.LoraLinear(gpu, { inFeatures: 6, outFeatures: 5, rank: 4, seed: 9, weight: numbers(30, 9) })];
  const back = new L.LoraLinear(gpu, { inFeatures: 12, outFeatures: 6, rank: 4, seed: 8, weight: numbers(72, 8) });
  const layers = [L.rmsNorm({ weight }), L.residual([inner, L.silu(), back]), L.layerNorm({ weight }), L.gelu(), last];
  const t = trainer(layers, { loss: L.crossEntropy(), optimizer: L.adamw({ lr: 0.02 }), schedule: L.linearSchedule({ warmup: 5, total: 60 }), maxGradNorm: 1 });
  const labelled = batches.map(({ x }, i) => ({ x, target: Int32Array.from({ length: 8 }, (_, t) => (t === 0 ? -100 : (3 * i + t) % 5)) }));
  const records = await collect(t.train(labelled, { epochs: 15, logEvery: 1 }));
  const ignored = await t.step({ x: batches[0].x, target: new Int32Array(8).fill(-100) });
  const bad = await code(t.step({ x: batches[0].x, target: new Int32Array(8).fill(5) }));
  return { losses: records.map((record) => record.loss), rates: records.map((record) => record.lr), ignored: ignored.loss, bad };
}, ({ losses, rates, ignored, bad }) => {
  assert.ok(losses.at(-1) < 0.85 * Math.log(5), `better than guessing: ${losses[0]} → ${losses.at(-1)}`);
  assert.equal(rates[0], 0);
  assert.ok(Math.abs(rates[5] - 0.02) < 1e-8 && Math.abs(rates[59] - 0.02 / 55) < 1e-8, `${rates}`);
  assert.equal(ignored, 0);
  assert.equal(bad, "invalid-argument");
});

inPage("what cannot be trained on is refused by name, and the trainer stays usable", async () => {
  const t = trainer();
  const once = batches[Symbol.iterator]();
  const first = t.train(batches, { epochs: 100, logEvery: 1 });
  await first.next();
  const result = {
    busy: await code(t.train(batches).next()),
    busyStep: await code(t.step(batches[0])),
    ended: await code(first.return()),
    oneShot: await code(t.train(once, { epochs: 2 }).next()),
    empty: await code(t.train([]).next()),
    nothing: await code(t.train(undefined).next()),
    ragged: await code(t.step({ x: new Float32Array(7), target: new Float32Array(5) })),
    width: await code(t.step({ x: new Float32Array(6), target: new Float32Array(4) })),
    integers: await code(t.step({ x: new Float32Array(6), target: new Int32Array(5) })),
    unknown: await code(t.train(batches, { epoch: 3 }).next()),
    lr: await code((async () => trainer(network(), { optimizer: L.adamw({ lr: -1 }) }))()),
    order: await code((async () => trainer([...network()].reverse()))()),
    part: await code((async () => trainer([{ kind: "softmax" }]))()),
  };
  return { result, loss: (await t.step(batches[0])).loss };
}, ({ result, loss }) => {
  assert.deepEqual(result, {
    busy: "busy", busyStep: "busy", ended: "success", oneShot: "invalid-argument", empty: "invalid-argument", nothing: "invalid-argument",
    ragged: "shape", width: "shape", integers: "invalid-argument", unknown: "unknown-option", lr: "invalid-argument", order: "shape", part: "invalid-argument",
  });
  assert.ok(Number.isFinite(loss));
});

inPage("a resumed training has the bits of one that was not interrupted", async () => {
  const bits = async (layers) => (await Promise.all([layers[0].a, layers[0].b, layers[2].a, layers[2].b].map((t) => t.read()))).map((v) => Array.from(new Uint32Array(v.buffer)));
  const options = { schedule: L.cosineSchedule({ warmup: 2, total: 20 }), maxGradNorm: 0.5 };
  const [straight, before, after] = [network(), network(), network()];
  await collect(trainer(straight, options).train(batches, { epochs: 5 }));
  // Interrupted in the middle of the third epoch.
  const first = trainer(before, options);
  let state;
  for await (const { step } of first.train(batches, { epochs: 5, logEvery: 5, inFlight: 1 })) {
    if (step === 10) { state = await first.saveState(); break; }
  }
  const second = trainer(after, options);
  const { bitsMayDiffer } = second.loadState(state);
  const records = await collect(second.train(batches, { epochs: 5, logEvery: 100 }));
  const broken = async (bytes) => code((async () => second.loadState(bytes))());
  const other = trainer([network()[0]]);
  return {
    bitsMayDiffer, steps: records.map((record) => record.step), straight: await bits(straight), resumed: await bits(after),
    truncated: await broken(state.slice(0, 100)), garbage: await broken(new Uint8Array(64).fill(255)), text: await broken("state"),
    foreign: await code((async () => other.loadState(state))()),
    usable: (await second.step(batches[0])).loss,
  };
}, ({ bitsMayDiffer, steps, straight, resumed, truncated, garbage, text, foreign, usable }) => {
  assert.equal(bitsMayDiffer, false);
  assert.deepEqual(steps, [20]);
  assert.deepEqual(resumed, straight);
  assert.deepEqual([truncated, garbage, text, foreign], ["checkpoint", "checkpoint", "invalid-argument", "checkpoint"]);
  assert.ok(Number.isFinite(usable));
});

inPage("a trainer knows when an adapter is switched off, and frees its tensors", async () => {
  const run = async () => {
    const layers = network();
    const t = trainer(layers);
    await collect(t.train(batches, { epochs: 3 }));
    const on = await t.evaluate(batches);
    layers[0].enabled = layers[2].enabled = false;
    const off = await t.evaluate(batches);
    layers[0].enabled = layers[2].enabled = true;
    const again = await t.evaluate(batches);
    for (let tokens = 1; tokens <= 12; tokens++) await t.step({ x: new Float32Array(6 * tokens), target: new Float32Array(5 * tokens) });
    const held = gpu.memory().bytes;
    t.dispose();
    for (const layer of [layers[0], layers[2]]) layer.dispose();
    return { on, off, again, held, left: gpu.memory().bytes, code: await code(t.step(batches[0])) };
  };
  return [await run(), await run()]; // what the first one leaves are buffers to read into
}, ([first, { on, off, again, held, left, code }]) => {
  assert.notEqual(on, off);
  assert.equal(on, again);
  assert.ok(held > left && left === first.left, `${first.left}, ${held} → ${left}: the trainer's tensors are freed, then the layers'`);
  assert.equal(code, "disposed");
});

inPage("calls queue, and dispose() waits for those under way", async () => {
  const t = trainer();
  const records = await Promise.all([t.step(batches[0]), t.step(batches[1]), t.evaluate(batches), t.step(batches[2])]);
  const last = t.step(batches[3]);
  await Promise.resolve();
  t.dispose();
  const waited = await code(last);
  const other = await L.Gpu.request();
  const tensor = new L.Tensor(other, { shape: [3], data: new Float32Array([1, 2, 3]) });
  const [reading, recording] = [tensor.read(), other.record().submit()];
  other.dispose();
  return { steps: [records[0], records[1], records[3]].map((r) => r.step), waited, read: Array.from(await reading), submitted: await code(recording) };
}, (result) => assert.deepEqual(result, { steps: [1, 2, 3], waited: "success", read: [1, 2, 3], submitted: "success" }));

inPage("an abort does not wait for a source that hangs", async () => {
  const controller = new AbortController();
  async function* hangs() {
    yield* batches;
    await new Promise(() => {});
  }
  const training = collect(trainer().train(hangs(), { signal: controller.signal, logEvery: 4, inFlight: 1 }));
  setTimeout(() => controller.abort(), 300);
  return (await training).length;
}, (records) => assert.equal(records, 1));

inPage("a checkpoint of another network or other hyper-parameters is refused", async () => {
  const state = await trainer().saveState();
  const load = (layers, more) => code((async () => trainer(layers, more).loadState(state))());
  const [fc1, , fc2] = network();
  return {
    same: await load(),
    activation: await load([fc1, L.relu(), fc2]),
    clipped: await load(network(), { maxGradNorm: 1 }),
    ratio: await load(network(), { optimizer: L.adamw({ lr: 0.02, weightDecay: 0, lrRatioB: 4 }) }),
    rate: await load(network(), { optimizer: L.adamw({ lr: 0.01, weightDecay: 0 }) }),
  };
}, (result) => assert.deepEqual(result, { same: "success", activation: "checkpoint", clipped: "checkpoint", ratio: "checkpoint", rate: "success" }));

inPage("a step that the GPU refuses is no attempt, updates nothing, and the next one goes on", async () => {
  const layers = network();
  const t = trainer(layers);
  const before = (await t.step(batches[0])).step;
  const b = await layers[2].b.read();
  // Out of memory, as a device says it: the next buffers are far too large.
  const create = GPUDevice.prototype.createBuffer;
  const refuse = async (work) => {
    GPUDevice.prototype.createBuffer = function (descriptor) {
      return create.call(this, { ...descriptor, size: descriptor.size > 4096 ? 2 ** 40 : descriptor.size });
    };
    const result = code(work());
    await Promise.resolve();
    const settled = await result;
    GPUDevice.prototype.createBuffer = create;
    return settled;
  };
  const large = { x: numbers(300 * 6, 3), target: numbers(300 * 5, 4) };
  const whole = await refuse(() => t.step(large));
  const window = await refuse(() => t.step([batches[0], { x: numbers(301 * 6, 3), target: numbers(301 * 5, 4) }]));
  const unchanged = (await layers[2].b.read()).every((value, i) => value === b[i]);
  const after = await t.step(large);
  return { before, whole, window, unchanged, step: after.step, loss: after.loss, lr: after.lr };
}, ({ before, whole, window, unchanged, step, loss, lr }) => {
  assert.equal(before, 1);
  assert.ok([whole, window].every((code) => ["validation", "out-of-memory"].includes(code)), `${whole} ${window}`);
  assert.ok(unchanged, "nothing is half-written");
  assert.equal(step, 2);
  assert.ok(loss > 0 && Math.abs(lr - 0.02) < 1e-8);
});

inPage("a failed start keeps the place to go on from; a view that cannot be uploaded harms nothing", async () => {
  const first = trainer();
  for await (const { step } of first.train(batches, { logEvery: 2, inFlight: 1 })) if (step === 2) break;
  const second = trainer();
  second.loadState(await first.saveState());
  const failed = await second.train(() => { throw new Error("network"); }).next().catch((error) => error.message);
  const asked = [];
  await collect(second.train((...place) => { asked.push(place); return batches.slice(place[1]); }));
  const x = new L.Tensor(gpu, { shape: [4] });
  const resizable = new Float32Array(new ArrayBuffer(16, { maxByteLength: 64 }));
  const codes = new Set();
  for (let i = 0; i < 1100; i++) codes.add(await code((async () => x.write(resizable))()));
  x.write(new Float32Array([1, 2, 3, 4]));
  return { failed, asked, codes: [...codes], x: Array.from(await x.read()) };
}, ({ failed, asked, codes, x }) => {
  assert.equal(failed, "network");
  assert.deepEqual(asked, [[0, 2]]);
  assert.ok(codes.every((code) => ["validation", "success"].includes(code)), `${codes}`);
  assert.deepEqual(x, [1, 2, 3, 4]);
});

inPage("what was made by hand is checked as what adamw() and the like make, and nothing is coerced", async () => {
  const make = (more, layers = network()) => code((async () => trainer(layers, more).dispose())());
  const adam = { kind: "adamw", lr: 0.1, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, lrRatioB: 1 };
  const weight = new Float32Array(6).fill(1);
  const cyclic = L.residual([...network()]);
  cyclic.layers[1] = cyclic;
  let deep = L.tanh();
  for (let i = 0; i < 100_000; i++) deep = L.residual([deep]);
  const train = (options) => code(trainer().train(batches, options).next());
  const optimizers = {
    fine: adam, few: { kind: "sgd", lr: 0.1 }, text: { ...adam, lr: "0.1" }, eps: { ...adam, eps: null }, betas: { ...adam, betas: ["0.9", 0.999] }, decay: { ...adam, weightDecay: [1] },
    ratio: { ...adam, lrRatioB: "4" }, momentum: { kind: "sgd", lr: 0.1, momentum: true }, unknown: { ...adam, rate: 1 }, kind: { ...adam, kind: "adam" }, nothing: null,
  };
  const schedules = { fine: { kind: "linear", total: 10 }, text: { kind: "linear", warmup: "2", total: 10 }, total: { kind: "cosine" }, unknown: { kind: "constant", total: 3 } };
  const result = { optimizers: {}, schedules: {} };
  for (const [name, optimizer] of Object.entries(optimizers)) result.optimizers[name] = await make({ optimizer });
  for (const [name, schedule] of Object.entries(schedules)) result.schedules[name] = await make({ schedule });
  return {
    ...result,
    norm: await make({}, [{ kind: "layerNorm", weight: [1, 1, 1, 1, 1, 1], bias: undefined, eps: 1e-5 }, ...network()]),
    eps: await make({}, [{ kind: "rmsNorm", weight, eps: "1e-6" }, ...network()]),
    cyclic: await make({}, [cyclic]),
    deep: await make({}, [...network(), deep]),
    signal: [await train({ signal: {} }), await train({ signal: "now" }), await train({ signal: null }), await train({ signal: AbortSignal.abort() })],
    split: [await train({ validation: { split: 0.5 } }), await train({ validation: { split: 1, every: 1 } }), await train({ validation: { split: "0.5", every: 1 } }), await train({ validation: { split: 0.5, batches, every: 1 } }), await train({ validation: { every: 1 } }), await train({ validation: { split: 0.5, seed: -1, every: 1 } })],
    source: [await code(trainer().train(() => batches, { validation: { split: 0.5, every: 1 } }).next()), await code(trainer().train([batches[0]], { validation: { split: 0.5, every: 1 } }).next())],
    checkpoints: [await train({ checkpoints: {} }), await train({ checkpoints: { every: 0 } }), await train({ checkpoints: { every: 1, run: {} } }), await train({ checkpoints: { every: 1, onError: 1 } })],
  };
}, (result) => {
  const bad = "invalid-argument";
  assert.deepEqual(result, {
    optimizers: { fine: "success", few: "success", text: bad, eps: bad, betas: bad, decay: bad, ratio: bad, momentum: bad, unknown: "unknown-option", kind: bad, nothing: bad },
    schedules: { fine: "success", text: bad, total: bad, unknown: "unknown-option" },
    norm: bad, eps: bad, cyclic: bad, deep: bad, signal: [bad, bad, bad, "success"],
    split: Array(6).fill(bad), source: [bad, bad], checkpoints: Array(4).fill(bad),
  });
});

inPage("records say how far it is, and steps that counted nothing", async () => {
  const known = await collect(trainer(network(), { gradientAccumulation: 3 }).train(batches, { epochs: 3, logEvery: 1 }));
  const asked = await collect(trainer().train(() => batches, { epochs: 2, logEvery: 1 }));
  const t = trainer();
  for (let i = 0; i < 3; i++) await t.step(batches[0]); // steps before are no part of the plan, but of the count
  for await (const _ of t.train(batches, { epochs: 3, logEvery: 1, inFlight: 1 })) if (t.steps === 3 + 6) break;
  const resumed = trainer();
  resumed.loadState(await t.saveState());
  const rest = await collect(resumed.train(batches, { epochs: 3, logEvery: 1 }));
  const labelled = trainer(network(), { loss: L.crossEntropy() });
  const labels = [0, -100, -100].map((label) => ({ x: batches[0].x, target: new Int32Array(8).fill(label) }));
  const counted = await collect(labelled.train([...labels, labels[1]], { logEvery: 3 }));
  const { loss } = await trainer(network(), { loss: L.crossEntropy() }).step(labels[0]);
  const of = (records) => records.map(({ step, total, epoch }) => [step, total, epoch]);
  return { known: of(known), left: known.map((r) => r.secondsLeft), asked: of(asked), rest: of(rest), nothing: counted.map((r) => [r.nothingCounted, r.skipped, r.loss]), loss };
}, ({ known, left, asked, rest, nothing, loss }) => {
  assert.deepEqual(known, [[1, 6, 0], [2, 6, 0], [3, 6, 1], [4, 6, 1], [5, 6, 2], [6, 6, 2]]);
  assert.ok(left[0] > left[4] && left[5] === 0, `${left}`);
  assert.deepEqual(asked.map(([, total]) => total), [null, null, null, null, 8, 8, 8, 8].map((total) => total ?? undefined));
  assert.deepEqual(rest, [[10, 15, 1], [11, 15, 1], [12, 15, 2], [13, 15, 2], [14, 15, 2], [15, 15, 2]]);
  assert.ok(loss > 0);
  assert.deepEqual(nothing, [[2, 0, loss], [1, 0, 0]]);
});

inPage("batches kept on the GPU train to the same bits as those in memory, and upload nothing", async () => {
  const tensor = (shape, data) => new L.Tensor(gpu, { shape, data });
  const kept = batches.map(({ x, target }) => ({ x: tensor([8, 6], x), target: tensor([8, 5], target) }));
  const mixed = batches.map(({ x }, i) => ({ x, target: kept[i].target }));
  const bits = async (data) => {
    const layers = network();
    const t = trainer(layers, { gradientAccumulation: 2 });
    const losses = (await collect(t.train(data, { epochs: 3, logEvery: 1, validation: { split: 0.25, every: 2 } }))).map((r) => [r.loss, r.validationLoss]);
    return JSON.stringify([losses, await t.evaluate(data), (await t.step(data[0])).loss, [...(await layers[0].a.read())]]);
  };
  const inMemory = await bits(batches);
  const same = [await bits(kept) === inMemory, await bits(mixed) === inMemory, inMemory.length > 500];
  const t = trainer();
  await t.step(kept[0]);
  const before = gpu.stats();
  await t.step(kept[1]);
  const after = gpu.stats();
  const foreign = await L.Gpu.request();
  const other = new L.Tensor(foreign, { shape: [8, 6] });
  const gone = tensor([8, 6], batches[0].x);
  gone.dispose();
  const target = kept[0].target;
  const codes = {
    wide: await code(t.step({ x: tensor([8, 12], new Float32Array(96)), target })),
    flat: await code(t.step({ x: tensor([48], batches[0].x), target })),
    odd: await code(t.step({ x: tensor([7], new Float32Array(7)), target })),
    rows: await code(t.step({ x: kept[0].x, target: tensor([4, 5], new Float32Array(20)) })),
    labels: await code(t.step({ x: kept[0].x, target: tensor([8, 5], new Int32Array(40)) })),
    foreign: await code(t.step({ x: other, target })),
    gone: await code(t.step({ x: gone, target })),
    fine: await code(t.step(kept[0])),
  };
  foreign.dispose();
  const labelled = trainer(network(), { loss: L.crossEntropy() });
  const labels = async (values) => (await labelled.step({ x: kept[0].x, target: tensor([8], Int32Array.from({ length: 8 }, (_, i) => values[i % values.length])) })).skipped;
  return { same, uploaded: after.uploadedBytes - before.uploadedBytes, codes, skipped: [await labels([0, 4, -100]), await labels([0, 5])] };
}, ({ same, uploaded, codes, skipped }) => {
  assert.deepEqual(same, [true, true, true]);
  assert.equal(uploaded, 0);
  assert.deepEqual(codes, {
    wide: "shape", flat: "shape", odd: "shape", rows: "shape", labels: "invalid-argument", foreign: "foreign-tensor", gone: "disposed", fine: "success",
  });
  assert.deepEqual(skipped, [0, 1]);
});

inPage("a share of the batches is kept for validation, the same one every time", async () => {
  const data = Array.from({ length: 10 }, (_, i) => ({ x: numbers(48, i), target: numbers(40, i) }));
  const used = async (validation) => {
    const trained = new Set(); // the batches that steps asked for; none is evaluated so early
    const watched = data.map((batch, i) => ({ get x() { return trained.add(i), batch.x; }, target: batch.target }));
    const t = trainer(network(), { optimizer: L.sgd({ lr: 0 }) });
    for await (const { validationLoss } of t.train(watched, { epochs: 2, logEvery: 1, inFlight: 1, validation: { every: 100, ...validation } })) void validationLoss;
    return [...trained].sort();
  };
  const one = await used({ split: 0.3, seed: 1 });
  const again = await used({ split: 0.3, seed: 1 });
  const other = await used({ split: 0.3, seed: 2 });
  const t = trainer();
  const [record] = await collect(t.train(data, { logEvery: 5, validation: { split: 0.3, seed: 1, every: 5 } }));
  const held = data.filter((_, i) => !one.includes(i));
  const fresh = trainer();
  for await (const _ of fresh.train(data, { logEvery: 5, inFlight: 1, validation: { split: 0.3, seed: 1, every: 100 } })) break;
  return { one, again, other, tiny: (await used({ split: 0.01 })).length, most: (await used({ split: 0.99 })).length, loss: record.validationLoss, expected: await fresh.evaluate(held) };
}, ({ one, again, other, tiny, most, loss, expected }) => {
  assert.equal(one.length, 7);
  assert.deepEqual(again, one);
  assert.notDeepEqual(other, one);
  assert.deepEqual([tiny, most], [9, 1]);
  assert.equal(loss, expected);
});

inPage("early stopping goes on where a checkpoint stands, and another split is refused", async () => {
  const options = { epochs: 100, logEvery: 1, inFlight: 1, validation: { split: 0.5, every: 2, patience: 4 } };
  const still = { optimizer: L.sgd({ lr: 0 }) };
  const straight = trainer(network(), still);
  await collect(straight.train(batches, options));
  const first = trainer(network(), still);
  for await (const { step } of first.train(batches, options)) if (step === 5) break;
  const state = await first.saveState();
  const second = trainer(network(), still);
  second.loadState(state);
  const refused = [
    await code(second.train(batches, { ...options, validation: { ...options.validation, seed: 5 } }).next()),
    await code(second.train(batches, { ...options, validation: undefined }).next()),
    await code((async () => {
      const other = trainer(network(), { ...still, gradientAccumulation: 2 });
      other.loadState(state);
      await other.train(batches, options).next();
    })()),
  ];
  await collect(second.train(batches, options));
  const third = trainer(network(), still);
  third.loadState(await second.saveState());
  await collect(third.train(batches, options));
  return { straight: straight.steps, refused, second: second.steps, third: third.steps };
}, (result) => assert.deepEqual(result, { straight: 10, refused: Array(3).fill("checkpoint"), second: 10, third: 10 }));

inPage("an abort in the middle of a step leaves a whole state, from which the rest has the same bits", async () => {
  const bits = async (layers) => (await Promise.all([layers[0].a, layers[0].b, layers[2].a, layers[2].b].map((t) => t.read()))).map((v) => Array.from(new Uint32Array(v.buffer)).join()).join();
  const straight = network();
  await collect(trainer(straight, { gradientAccumulation: 2 }).train(batches, { epochs: 3 }));
  const results = [];
  const cases = [...[7, 8, 9].flatMap((nth) => [["writeBuffer", nth], ["submit", nth]]), ...[2, 3, 4].map((nth) => ["onSubmittedWorkDone", nth])];
  for (const [method, nth] of cases) {
    const controller = new AbortController();
    const original = GPUQueue.prototype[method];
    let calls = 0;
    const layers = network();
    const t = trainer(layers, { gradientAccumulation: 2 });
    await t.evaluate(batches);
    GPUQueue.prototype[method] = function (...args) {
      if (++calls === nth) controller.abort();
      return original.apply(this, args);
    };
    try {
      await collect(t.train(batches, { epochs: 3, signal: controller.signal }));
    } finally {
      GPUQueue.prototype[method] = original;
    }
    const stopped = t.steps;
    const again = network();
    const u = trainer(again, { gradientAccumulation: 2 });
    u.loadState(await t.saveState());
    await collect(u.train(batches, { epochs: 3 }));
    results.push([controller.signal.aborted, stopped < 6, (await bits(again)) === (await bits(straight)), Number.isFinite((await t.step(batches[0])).loss)]);
  }
  return results;
}, (results) => {
  assert.equal(results.length, 9);
  results.forEach((result) => assert.ok(result.every(Boolean), JSON.stringify(results)));
});

inPage("a training begins when the steps before it are done, and an evaluation may come at any time and changes no bit", async () => {
  const run = async (evaluate) => {
    const [layers, more] = [network(), { gradientAccumulation: 2 }];
    const t = trainer(layers, more);
    const steps = [t.step(batches[0]), t.step(batches[1])];
    const beside = evaluate ? [t.evaluate(batches), t.evaluate(batches.slice(1))] : [];
    const losses = [];
    for await (const { step } of t.train(batches, { epochs: 2, logEvery: 1 })) losses.push(step, evaluate ? await t.evaluate(batches) : 0);
    const result = { steps: (await Promise.all(steps)).map(({ step }) => step), losses, b: Array.from(await layers[2].b.read()), beside: await Promise.all(beside) };
    t.dispose();
    return result;
  };
  return [await run(false), await run(true)];
}, ([alone, evaluated]) => {
  assert.deepEqual([alone.steps, alone.losses.filter((_, i) => i % 2 === 0)], [[1, 2], [3, 4, 5, 6]]);
  assert.deepEqual(evaluated.b, alone.b);
  assert.ok(evaluated.beside.every((loss) => loss > 0) && evaluated.losses.every((loss) => loss > 0));
});

inPage("epochs leave nothing behind that waits for the device to be lost", async () => {
  const { lost } = gpu;
  let waiting = 0;
  Object.defineProperty(gpu, "lost", { get: () => (waiting++, lost) });
  const t = trainer();
  for (let i = 0; i < 3; i++) await collect(t.train(batches, { epochs: 5 }));
  return waiting;
}, (waiting) => assert.ok(waiting <= 1, `waited ${waiting} times`));

inPage("a state with another's note is taken over, and other data than before is refused", async () => {
  const t = trainer();
  await collect(t.train(batches, { epochs: 1 }));
  const state = await t.saveState();
  // The same with a note that is no JSON, and the checksum of that.
  const text = new TextDecoder("latin1").decode(state);
  const [note, sum] = [text.indexOf('"note":"') + 8, text.indexOf('"checksum":"') + 12];
  const foreign = state.slice();
  foreign[note] = "x".charCodeAt(0);
  foreign.fill("0".charCodeAt(0), sum, sum + 8);
  let crc = ~0;
  for (const byte of foreign) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 * (crc & 1));
  }
  foreign.set(new TextEncoder().encode((~crc >>> 0).toString(16).padStart(8, "0")), sum);
  const other = trainer();
  const taken = await code((async () => other.loadState(foreign))());
  const rest = await collect(other.train(batches, { epochs: 2 }));
  other.loadState(state);
  const result = { taken, step: other.steps, end: rest.at(-1).step, fewer: await code(other.train(batches.slice(1), { epochs: 2 }).next()) };
  const afresh = await collect(other.train(batches.slice(1), { resume: false }));
  return { ...result, afresh: afresh.at(-1).step, wrong: await code(other.train(batches, { resume: 0 }).next()) };
}, (result) => assert.deepEqual(result, { taken: "success", step: 4, end: 8, fewer: "checkpoint", afresh: 4 + 3, wrong: "invalid-argument" }));

inPage("a state of a training's end has nothing left once, and the training after that takes its steps", async () => {
  const t = trainer();
  await collect(t.train(batches, { epochs: 1 }));
  t.loadState(await t.saveState());
  const steps = [];
  for (const options of [{ epochs: 1 }, { epochs: 1 }]) {
    await collect(t.train(batches, options));
    steps.push(t.steps);
  }
  return steps;
}, (steps) => assert.deepEqual(steps, [4, 8]));

inPage("a step that the GPU refuses during a training is none in the state, either; adapters stay where an optimizer cannot be made", async () => {
  const create = GPUDevice.prototype.createBuffer;
  const refusing = async (which, work) => {
    GPUDevice.prototype.createBuffer = function (descriptor) {
      return create.call(this, { ...descriptor, size: which(descriptor) ? 2 ** 40 : descriptor.size });
    };
    try {
      return await code(work());
    } finally {
      GPUDevice.prototype.createBuffer = create;
    }
  };
  const large = { x: numbers(300 * 6, 3), target: numbers(300 * 5, 4) };
  const t = trainer();
  const failed = await refusing(({ label, size }) => label === "x" && size > 4096, () => collect(t.train([batches[0], batches[1], large], { inFlight: 1 })));
  const asked = [];
  const later = trainer();
  later.loadState(await t.saveState());
  await collect(later.train((...place) => { asked.push(place); return [large]; }));

  const layers = network();
  const before = Array.from(await layers[0].a.read());
  let made;
  const moved = await refusing(({ label }) => label === "parameters", async () => { made = trainer(layers); await made.step(batches[0]); });
  const after = Array.from(await layers[0].a.read());
  made.dispose();
  const again = trainer(layers);
  return { failed, asked, at: t.steps, moved, same: String(before) === String(after), loss: (await again.step(batches[0])).loss };
}, ({ failed, asked, at, moved, same, loss }) => {
  assert.ok([failed, moved].every((code) => ["validation", "out-of-memory"].includes(code)), `${failed} ${moved}`);
  assert.deepEqual([at, asked], [2, [[0, 2]]]);
  assert.ok(same && loss > 0);
});

inPage("break and a state of that moment are a pause, break alone is an end", async () => {
  const bits = async (layers) => String(new Uint32Array((await layers[2].b.read()).buffer));
  const straight = network(), paused = network();
  await collect(trainer(straight).train(batches, { epochs: 2 }));
  const t = trainer(paused), at = [];
  const until = async (last, options) => {
    for await (const { step } of t.train(batches, { epochs: 2, logEvery: 1, inFlight: 1, ...options })) if (step === last) break;
    at.push(t.steps);
  };
  for (const last of [3, 6]) {
    await until(last);
    t.loadState(await t.saveState());
  }
  await until(8);
  const same = (await bits(paused)) === (await bits(straight));
  await until(10);
  await until(12, { epochs: 1 });
  await until(-1, { epochs: 1 });
  return { at, same };
}, (result) => assert.deepEqual(result, { at: [3, 6, 8, 10, 12, 16], same: true }));
