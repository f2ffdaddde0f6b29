// A device that is lost in the middle of training: everything pending says so, and the training goes on on another one.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { figures, launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const inPage = (name, work, data, check) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await page.evaluate(setUp);
  check(await page.evaluate(work, data));
}));

async function setUp() {
  // A Gpu with `destroy()`, which takes its device away as a crash does.
  globalThis.request = async () => {
    const original = GPUAdapter.prototype.requestDevice;
    let device;
    GPUAdapter.prototype.requestDevice = async function (descriptor) { return (device = await original.call(this, descriptor)); };
    const own = await Gpu.request();
    GPUAdapter.prototype.requestDevice = original;
    return { own, destroy: () => device.destroy() };
  };
  globalThis.network = (gpu) => {
    const layer = (name, inFeatures, outFeatures, more) => new LoraLinear(gpu, { name, inFeatures, outFeatures, rank: 3, weight: numbers(inFeatures * outFeatures, 1).map((v) => v / 4), seed: 4, ...more });
    return [layer("first", 6, 6), residual([layerNorm({ weight: new Float32Array(6).fill(1) }), layer("inner", 6, 6, { dropout: 0.25 }), tanh()]), layer("last", 6, 5, { useRslora: true })];
  };
  globalThis.loras = (layers) => [layers[0], layers[1].layers[1], layers[2]];
  globalThis.batches = Array.from({ length: 5 }, (_, i) => ({ x: numbers(8 * 6, 10 + i), target: numbers(8 * 5, 20 + i).map((v) => v / 8) }));
  globalThis.trainer = (gpu, layers, more) =>
    new Trainer(gpu, { layers, loss: mse(), optimizer: adamw({ lr: 0.02 }), schedule: cosineSchedule({ warmup: 2, total: 20 }), maxGradNorm: 1, seed: 7, ...more });
  globalThis.bits = async (layers) => {
    const all = await Promise.all(loras(layers).flatMap(({ a, b }) => [a.read(), b.read()]));
    return all.map((values) => Array.from(new Uint32Array(values.buffer)).join());
  };
  // The code of a promise's error; "hangs" where nothing comes.
  globalThis.code = (promise) => Promise.race([
    promise.then(() => "success", (error) => error.code ?? String(error)),
    new Promise((done) => setTimeout(done, 60_000, "hangs")),
  ]);
  globalThis.run = async (training, each = () => {}) => {
    for await (const record of training) await each(record);
  };
}

// Where in a step the device goes: before or after a call of WebGPU's, or while the step computes.
const STAGES = [
  ["before", "writeBuffer"], ["before", "finish"], ["before", "submit"], ["after", "submit"], ["after", "popErrorScope"],
  ["after", "onSubmittedWorkDone"], ["before", "mapAsync"], ["after", "mapAsync"], ["before", "getMappedRange"],
];
const CASES = [...STAGES.map((stage) => [1, ...stage]), ...STAGES.slice(0, 4).map((stage) => [2, ...stage])];
inPage("a device lost at any stage of a step: everything pending ends, and the rest has the same bits on another", async (cases) => {
  const options = { epochs: 4, logEvery: 2, validation: { split: 0.2, every: 4, patience: 1000 }, checkpoints: { every: 3 } };
  const expected = {};
  const straight = async (gradientAccumulation) => {
    const layers = network(gpu);
    await run(trainer(gpu, layers, { gradientAccumulation }).train(batches, options));
    return bits(layers);
  };
  const results = [];
  for (const [gradientAccumulation, when, stage] of cases) {
    expected[gradientAccumulation] ??= await straight(gradientAccumulation);
    const { own, destroy } = await request();
    const layers = network(own);
    const t = trainer(own, layers, { gradientAccumulation });
    const prototype = [GPUQueue, GPUDevice, GPUCommandEncoder, GPUBuffer].map((each) => each.prototype).find((each) => stage in each);
    const original = prototype[stage];
    let pending = [];
    const lose = () => {
      prototype[stage] = original;
      destroy();
    };
    const training = code(run(t.train(batches, options), ({ step }) => {
      if (step !== 4) return;
      let calls = 0;
      prototype[stage] = function (...args) {
        if (++calls < 3) return original.apply(this, args);
        if (when === "before") lose();
        const result = original.apply(this, args);
        if (when === "after") lose();
        return result;
      };
      pending = [t.saveState(), layers[0].a.read(), own.finished(), own.record().submit()].map(code);
    }));
    const ended = await training;
    const after = [own.lost, t.step(batches[0]), t.evaluate(batches), t.recover(own), layers[0].a.read()].map(code);
    const result = { case: `${when} ${stage}, ${gradientAccumulation}`, ended, pending: await Promise.all(pending), after: await Promise.all(after), at: t.steps };
    const { bitsMayDiffer } = await t.recover(gpu);
    result.from = t.steps;
    await run(t.train(batches, options));
    const same = JSON.stringify(await bits(layers)) === JSON.stringify(expected[gradientAccumulation]);
    results.push({ ...result, bitsMayDiffer, same, end: t.steps - 16 / gradientAccumulation });
    t.dispose();
  }
  return results;
}, CASES, (results) => {
  for (const { pending, at, from, ...rest } of results) {
    assert.ok(pending.every((code) => ["device-lost", "success"].includes(code)), `${rest.case}: ${pending}`);
    assert.ok(from >= 3 && from <= at, `${rest.case}: lost at step ${at}, gone on from ${from}`);
    const after = ["success", ...Array(4).fill("device-lost")];
    assert.deepEqual(rest, { case: rest.case, ended: "device-lost", after, bitsMayDiffer: false, same: true, end: 0 });
  }
  figures("trainer's device lost", { stages: results.length, hangs: results.filter(({ ended, pending, after }) => [ended, ...pending, ...after].includes("hangs")).length, sameBits: results.filter(({ same }) => same).length });
  assert.ok(results.length === CASES.length && results.some(({ pending }) => pending.includes("device-lost")));
});

inPage("a device lost before the first step, while data is waited for, or twice; adapters written by hand", async () => {
  const straight = network(gpu);
  const change = (layers) => layers[0].a.write(numbers(18, 3));
  change(straight);
  await run(trainer(gpu, straight).train(batches, { epochs: 2 }));
  const first = await request();
  const layers = network(first.own);
  const t = trainer(first.own, layers);
  change(layers);
  async function* hangs() {
    yield* batches.slice(0, 3);
    setTimeout(first.destroy, 100);
    await new Promise(() => {});
  }
  const waiting = await code(run(t.train(hangs())));
  const dead = await request();
  dead.destroy();
  const onDead = await code(t.recover(dead.own));
  const second = await request();
  await t.recover(second.own);
  const start = t.steps;
  const training = t.train(batches, { epochs: 2, logEvery: 1, checkpoints: { every: 2 } });
  for (let i = 0; i < 4; i++) await training.next();
  second.destroy();
  await second.own.lost;
  const busy = await code(t.recover(gpu));
  const ended = await code(training.next().then(() => training.next()));
  await t.recover(gpu);
  await run(t.train(batches, { epochs: 2 }));
  const same = JSON.stringify(await bits(layers)) === JSON.stringify(await bits(straight));

  const third = await request();
  const fresh = network(third.own);
  const other = trainer(third.own, fresh);
  third.destroy();
  await third.own.lost;
  await other.recover(gpu);
  const result = { waiting, onDead, start, busy, ended, same, finite: Number.isFinite((await other.step(batches[0])).loss), notGpu: await code(other.recover({})) };
  other.dispose();
  return { ...result, disposed: await code(other.recover(gpu)) };
}, undefined, (result) => {
  assert.deepEqual(result, { waiting: "device-lost", onDead: "device-lost", start: 0, busy: "busy", ended: "device-lost", same: true, finite: true, notGpu: "invalid-argument", disposed: "disposed" });
});

inPage("numbers that went with the device are told, and what was put in the first adapter's place comes back", async () => {
  const lose = async ({ own, destroy }) => { destroy(); await own.lost; };
  const written = await request();
  const layers = network(written.own), t = trainer(written.own, layers);
  layers[0].b.write(numbers(18, 3));
  await lose(written);
  const unsaved = await code(t.recover(gpu));

  const biased = await request();
  const own = new LoraLinear(biased.own, { inFeatures: 6, outFeatures: 6, rank: 3, weight: numbers(36, 1), bias: numbers(6, 2), trainBias: true });
  const w = trainer(biased.own, [own]);
  own.adapter().baseBias.value.write(numbers(6, 3));
  await lose(biased);
  const bias = await code(w.recover(gpu));

  const second = await request();
  const others = network(second.own);
  others[0].addAdapter("other", { rank: 2, seed: 5 });
  const u = trainer(second.own, others);
  await u.step(batches[0]);
  others[0].adapter("other").weight.b.write(numbers(12, 3));
  await lose(second);
  const inactive = await code(u.recover(gpu));
  others[0].removeAdapter("other");
  const removed = await code(u.recover(gpu));

  const third = await request();
  const again = network(third.own), first = again[0];
  first.addAdapter("second", { rank: 2, seed: 6 });
  first.active = ["second"];
  first.removeAdapter("default");
  first.addAdapter("default", { rank: 1, seed: 7 });
  first.active = ["default"];
  const v = trainer(third.own, again);
  await v.step(batches[0]);
  const straight = await bits(again);
  await v.saveState();
  await lose(third);
  const replaced = await code(v.recover(gpu));
  return { unsaved, bias, inactive, removed, replaced, adapters: first.adapters, rank: first.rank, same: String(await bits(again)) === String(straight), steps: v.steps };
}, undefined, (result) => assert.deepEqual(result, {
  unsaved: "checkpoint", bias: "checkpoint", inactive: "checkpoint", removed: "success", replaced: "success", adapters: ["second", "default"], rank: 1, same: true, steps: 1,
}));

inPage("a training that ended is not gone on with after a loss, and one that had begun anew begins anew", async () => {
  const options = { checkpoints: { every: 2 }, inFlight: 1, logEvery: 1 };
  const straight = network(gpu), s = trainer(gpu, straight);
  for (let i = 0; i < 3; i++) await run(s.train(batches, options));
  const lost = async (during) => {
    const { own, destroy } = await request();
    const layers = network(own), t = trainer(own, layers);
    await run(t.train(batches, options));
    const steps = [];
    const lose = async () => { destroy(); await own.lost; };
    const ended = (await during(t, lose)) ?? "by itself";
    await t.recover(gpu);
    steps.push(t.steps);
    for (let i = 0; i < 2; i++) {
      await run(t.train(batches, options));
      steps.push(t.steps);
    }
    const same = String(await bits(layers)) === String(await bits(straight));
    t.dispose();
    return { ended, steps, same };
  };
  return {
    after: await lost((_, lose) => lose()),
    saved: await lost(async (t, lose) => { await t.saveState(); await lose(); }),
    second: await lost((t, lose) => code(run(t.train(batches, { ...options, checkpoints: { every: 100 } }), lose))),
    middle: await lost((t, lose) => code(run(t.train(batches, options), ({ step }) => step === 8 && lose()))),
    broken: await lost(async (t, lose) => {
      for await (const { step } of t.train(batches, options)) if (step === 7) break;
      await lose();
    }),
    left: await lost(async (t, lose) => {
      for await (const { step } of t.train(batches, options)) if (step === 7) { await lose(); break; }
    }),
  };
}, undefined, ({ after, saved, second, middle, broken, left }) => {
  const whole = { ended: "by itself", steps: [5, 10, 15], same: true };
  assert.deepEqual([after, saved], [whole, whole]);
  assert.deepEqual(second, { ...whole, ended: "device-lost" });
  assert.deepEqual(middle, { ended: "device-lost", steps: [middle.steps[0], 10, 15], same: true });
  assert.ok([6, 8].includes(middle.steps[0]), `${middle.steps}`);
  assert.deepEqual(broken, { ended: "by itself", steps: [7, 12, 17], same: false }); // a break is an end
  assert.deepEqual(left, { ended: "by itself", steps: [left.steps[0], 10, 15], same: true }); // it would have gone on without the loss
  assert.equal(left.steps[0], 6);
});

inPage("a device lost while the consumer has a record ends a training that waits for data afterwards", async () => {
  const { own, destroy } = await request();
  const t = trainer(own, network(own));
  async function* stream() {
    yield batches[0];
    await new Promise(() => {});
  }
  const training = run(t.train(stream(), { logEvery: 1 }), async () => { destroy(); await own.lost; });
  return Promise.race([code(training), new Promise((done) => setTimeout(done, 10_000, "hangs"))]);
}, undefined, (ended) => assert.equal(ended, "device-lost"));
