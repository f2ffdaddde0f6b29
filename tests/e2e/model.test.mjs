// Language models as a page uses them: loading, generation, training, adapters saved and loaded.
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

const FOLDER = "tests/golden/models/llama_tied_all";

// The integers of a tensor of the folder's trace, and its metadata.
function trace() {
  const bytes = readFileSync(join(root, FOLDER, "trace.safetensors"));
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length));
  const ints = (name) => {
    const [start, end] = header[name].data_offsets.map((at) => 8 + length + at);
    return Array.from({ length: (end - start) / 4 }, (_, i) => bytes.readInt32LE(start + 4 * i));
  };
  return { ints, metadata: header.__metadata__, shape: (name) => header[name].shape };
}

const inPage = (name, work, argument, check) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await page.evaluate(async (folder) => {
    globalThis.L = await import("/dist/index.js");
    globalThis.file = async (name) => new Uint8Array(await (await fetch(`/${folder}/${name}`)).arrayBuffer());
    globalThis.source = async () => ({ config: await file("config.json"), weights: await file("model.safetensors") });
    globalThis.code = (promise) => promise.then(() => "success", (error) => `${error.code}: ${error.message}`);
    globalThis.examplesOf = (lengths) => lengths.map((length, i) => {
      const inputIds = Int32Array.from({ length }, (_, t) => (7 * i + 3 * t) % 50);
      return { inputIds, labels: inputIds.slice() };
    });
    globalThis.collect = async (iterator) => {
      const all = [];
      for await (const item of iterator) all.push(item);
      return all;
    };
  }, FOLDER);
  await check(await page.evaluate(work, argument));
}));

inPage("transformers' greedy tokens, from bytes and from a Blob", async ({ prompt, count }) => {
  const { config, weights } = await source();
  const progress = [];
  const models = [
    await L.CausalLM.load(gpu, { config, weights, onProgress: (p) => progress.push(p) }),
    await L.CausalLM.load(gpu, { config: JSON.parse(new TextDecoder().decode(config)), weights: new Blob([weights]) }),
  ];
  const texts = [];
  for (const model of models) texts.push(await collect(model.generate(prompt, { maxTokens: count, stopTokenIds: [] })));
  const stopped = await collect(models[0].generate(prompt, { maxTokens: count, stopTokenIds: [texts[0][3]] }));
  const { vocabSize, maxPositions, layers, modules } = models[0];
  models.forEach((model) => model.dispose());
  return { texts, stopped, vocabSize, maxPositions, layers, modules: modules.length, last: progress.at(-1) };
}, (({ ints, metadata }) => {
  const count = Number(metadata.greedy_prompt_len), ids = ints("greedy_ids");
  return { prompt: ids.slice(0, count), count: ids.length - count };
})(trace()), ({ texts, stopped, vocabSize, modules, layers, last }) => {
  const { ints, metadata } = trace();
  const expected = ints("greedy_ids").slice(Number(metadata.greedy_prompt_len));
  assert.deepEqual(texts, [expected, expected]);
  assert.deepEqual(stopped, expected.slice(0, expected.indexOf(expected[3])));
  assert.equal(modules, 7 * layers);
  assert.ok(vocabSize > 0 && last.loaded === last.total && last.total > 0);
});

inPage("an adapter is trained, saved and loaded, and on, off and on again", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 8, alpha: 16, targetModules: ["q_proj", "v_proj", "down_proj"], seed: 1 });
  const example = (seed) => {
    const inputIds = Int32Array.from({ length: 6 + seed }, (_, i) => (7 * i + 13 * seed) % 150);
    return { inputIds, labels: inputIds };
  };
  const examples = [0, 1, 2, 3].map(example);
  const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 0.02, weightDecay: 0 }), batchSize: 3 });
  const before = await trainer.evaluate(examples);
  const records = await collect(trainer.train(examples, { epochs: 15 }));
  const after = await trainer.evaluate(examples);
  const saved = await model.saveAdapter();
  const prompt = examples[1].inputIds.slice(0, 3);
  const text = (m) => collect(m.generate(prompt, { maxTokens: 4, stopTokenIds: [] }));
  const adapted = await text(model);
  model.adapterEnabled = false;
  const base = await text(model);
  model.adapterEnabled = true;
  const again = await text(model);
  const fresh = await L.CausalLM.load(gpu, await source());
  await fresh.loadAdapter(saved);
  const loaded = await text(fresh);
  const same = (await fresh.saveAdapter()).weights.every((byte, i) => byte === saved.weights[i]);
  const second = await code(fresh.loadAdapter(saved));
  trainer.dispose();
  model.dispose();
  fresh.dispose();
  return { before, after, records, adapted, base, again, loaded, same, second, config: JSON.parse(saved.config), expected: Array.from(examples[1].inputIds.slice(3, 7)) };
}, undefined, ({ before, after, records, adapted, base, again, loaded, same, second, config, expected }) => {
  assert.equal(records.length, 30);
  assert.ok(records.every((record, i) => record.step === i + 1 && !record.skipped && record.gradNorm > 0));
  assert.ok(after.loss < before.loss / 4, JSON.stringify([before, after]));
  assert.deepEqual(adapted, expected);
  assert.notDeepEqual(base, adapted);
  assert.deepEqual(again, adapted);
  assert.deepEqual(loaded, adapted);
  assert.ok(same);
  assert.match(second, /^invalid-argument: adapter/);
  assert.deepEqual([config.peft_type, config.r, config.lora_alpha, config.target_modules], ["LORA", 8, 16, ["q_proj", "v_proj", "down_proj"]]);
});

inPage("adapters on embedding and head, and modules trained whole, learn, are switched off, saved and loaded", async () => {
  const inputIds = Int32Array.from({ length: 11 }, (_, i) => (7 * i + 3) % 90), examples = [{ inputIds, labels: inputIds }];
  const results = [];
  for (const options of [{ targetModules: ["embed_tokens", "lm_head"] }, { targetModules: ["q_proj"], modulesToSave: ["norm", "lm_head", "embed_tokens"] }]) {
    const model = await L.CausalLM.load(gpu, await source());
    const adapter = { rank: 4, alpha: 8, seed: 3, ...options };
    const estimate = model.estimate({ ...adapter, tokens: 11 });
    const logits = async (m) => Array.from(await m.logits(inputIds));
    const base = await logits(model);
    model.addAdapter(adapter);
    const begun = String(await logits(model)) === String(base);
    const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 0.01, weightDecay: 0 }) });
    const losses = (await collect(trainer.train(examples, { epochs: 12 }))).map(({ loss }) => loss);
    const busy = await code((async () => model.removeAdapter())());
    const learned = await logits(model), saved = await model.saveAdapter(), text = () => collect(model.generate(inputIds.slice(0, 3), { maxTokens: 5, stopTokenIds: [] }));
    const words = await text();
    trainer.dispose();
    model.adapterEnabled = false;
    const off = String(await logits(model)) === String(base);
    model.adapterEnabled = true;
    const on = String(await text()) === String(words);
    model.removeAdapter();
    const gone = String(await logits(model)) === String(base);
    await model.loadAdapter(saved);
    const loaded = String(await logits(model)) === String(learned);
    // In memory, and as that gives its files.
    const peft = await L.loadPeft(saved), others = [];
    for (const source of [peft, peft.files(), await L.loadPeft(peft.files().zip())]) {
      model.removeAdapter();
      await model.loadAdapter(source);
      others.push(String(await logits(model)) === String(learned));
    }
    model.dispose();
    results.push({ losses, same: [begun, off, on, gone, loaded], others, busy, fits: estimate.fits, config: JSON.parse(saved.config) });
  }
  const model = await L.CausalLM.load(gpu, await source());
  const refused = [];
  for (const more of [{ targetModules: ["lm_head"], useDora: true }, { targetModules: ["embed_tokens"], loraBias: true }, { modulesToSave: ["score"] }, { modulesToSave: "norm" }, { bias: "some" }]) {
    refused.push(await code((async () => model.addAdapter({ rank: 2, ...more }))()));
  }
  model.dispose();
  return { results, refused };
}, undefined, ({ results, refused }) => {
  for (const { losses, same, others, busy, fits, config } of results) {
    assert.ok(losses.at(-1) < losses[0] / 3, String(losses));
    assert.deepEqual(same, [true, true, true, true, true]);
    assert.deepEqual(others, [true, true, true]);
    assert.match(busy, /^invalid-argument: adapter/);
    assert.ok(fits);
    assert.equal(config.peft_type, "LORA");
  }
  assert.deepEqual(results[1].config.modules_to_save, ["norm", "lm_head", "embed_tokens"]);
  const expected = [/^unsupported: DoRA on `lm_head`/, /^unsupported: lora_bias on the embedding/, /^unmatched: modules_to_save: .*score/, /^invalid-argument: modulesToSave/, /^invalid-argument: bias/];
  refused.forEach((text, i) => assert.match(text, expected[i]));
});

inPage("a language model's kernels are compiled ahead of its first step, which then makes none", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 4, seed: 3 });
  const inputIds = Int32Array.from({ length: 11 }, (_, i) => i), progress = [], asked = [];
  const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 0.01 }) });
  const own = gpu.device.createComputePipelineAsync;
  gpu.device.createComputePipelineAsync = function (descriptor) {
    asked.push(descriptor.label);
    return own.call(this, descriptor);
  };
  const before = gpu.stats().pipelines, began = performance.now();
  const steps = trainer.train([{ inputIds, labels: inputIds }], { epochs: 3, onCompile: (done, total) => progress.push([done, total]) });
  await steps.next();
  const first = performance.now() - began, made = gpu.stats().pipelines - before;
  await collect(steps);
  const later = gpu.stats().pipelines - before - made;
  const wrong = await code(collect(trainer.train([{ inputIds, labels: inputIds }], { onCompile: 5 })));
  trainer.dispose();
  model.dispose();
  return { progress, asked, made, later, first, wrong };
}, undefined, ({ progress, asked, made, later, first, wrong }) => {
  console.log(`${made} kernels compiled ahead; first step after ${(first / 1000).toFixed(1)} s`);
  assert.ok(asked.includes("nn/attention") && asked.includes("optim/adamw"), String(asked));
  assert.equal(new Set(asked).size, asked.length);
  assert.ok(made === asked.length || made === asked.length + 1, `${made} made, ${asked.length} ahead`); // zeros are no kernel's
  assert.deepEqual(progress, asked.map((_, i) => [i + 1, asked.length]));
  assert.equal(later, 0);
  assert.match(wrong, /^invalid-argument: onCompile/);
});

inPage("what is no model is refused by name", async () => {
  const { config, weights } = await source();
  const text = new TextDecoder().decode(config);
  const load = (more) => code(L.CausalLM.load(gpu, { config, weights, ...more }));
  const before = gpu.memory().bytes;
  const results = {
    option: await load({ revisions: "main" }),
    type: await load({ config: text.replace('"llama"', '"gpt2"') }),
    cut: await load({ weights: weights.slice(0, weights.length - 5) }),
    short: await load({ weights: weights.slice(0, 5) }),
    twice: await load({ weights: [weights, weights] }),
    lacking: await load({ config: text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3') }),
    extra: await load({ config: text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 1') }),
    shape: await load({ config: text.replace('"intermediate_size": 160', '"intermediate_size": 162') }),
    aborted: await load({ signal: AbortSignal.abort() }).then((text) => text),
    file: await load({ weights: 5 }),
  };
  return { results, left: gpu.memory().bytes - before };
}, undefined, ({ results, left }) => {
  const expected = {
    option: /^unknown-option: .*revisions/,
    type: /^unsupported: .*model_type.*gpt2/,
    cut: /^file: .*weights 0/,
    short: /^file: .*weights 0/,
    twice: /^unmatched: two/,
    lacking: /^unmatched: .*lack.*model\.layers\.2/,
    extra: /^unmatched: .*model\.layers\.1/,
    shape: /^shape: .*mlp\.gate_proj.*162/,
    aborted: /AbortError|aborted/,
    file: /^invalid-argument: weights/,
  };
  for (const [name, pattern] of Object.entries(expected)) assert.match(results[name], pattern, name);
  assert.equal(left, 0, "what was loaded in part is freed");
});

inPage("a training saved in the middle goes on with the same bits, and the adapter's scale counts", async () => {
  const examples = Array.from({ length: 5 }, (_, i) => {
    const inputIds = Int32Array.from({ length: 9 }, (_, t) => (7 * i + 3 * t) % 50);
    return { inputIds, labels: inputIds.slice() };
  });
  const begin = async () => {
    const model = await L.CausalLM.load(gpu, await source());
    model.addAdapter({ rank: 2, alpha: 4, seed: 3 });
    return { model, trainer: new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }), batchSize: 2, seed: 5 }) };
  };
  const weights = async ({ model }) => Array.from((await model.saveAdapter()).weights);
  const whole = await begin(), half = await begin(), later = await begin();
  const losses = (await collect(whole.trainer.train(examples, { epochs: 3 }))).map(({ loss }) => loss);
  const first = [];
  for await (const { loss, step } of half.trainer.train(examples, { epochs: 3 })) {
    first.push(loss);
    if (step === 4) break;
  }
  const state = await half.trainer.saveState();
  const others = await code((async () => { later.trainer.loadState(state); for await (const _ of later.trainer.train(examples.slice(1))); })());
  const { bitsMayDiffer } = later.trainer.loadState(state);
  const rest = (await collect(later.trainer.train(examples, { epochs: 3 }))).map(({ loss }) => loss);
  const wrong = await code((async () => half.trainer.loadState(state.slice(0, 100)))());
  const same = String(await weights(whole)) === String(await weights(later));
  const prompt = [1, 2, 3];
  const logits = async (scale) => { later.model.adapterScale = scale; return Array.from((await later.model.logits(prompt)).slice(0, 8)); };
  const scaled = [await logits(0), await logits(1), await logits(2)];
  later.model.adapterScale = 1;
  later.model.adapterEnabled = false;
  const base = Array.from((await later.model.logits(prompt)).slice(0, 8));
  for (const { model, trainer } of [whole, half, later]) { trainer.dispose(); model.dispose(); }
  return { losses, first, rest, bitsMayDiffer, same, others, wrong, scaled, base };
}, undefined, ({ losses, first, rest, bitsMayDiffer, same, others, wrong, scaled, base }) => {
  assert.equal(losses.length, 9);
  assert.deepEqual([...first, ...rest], losses);
  assert.ok(same && !bitsMayDiffer);
  assert.match(others, /^checkpoint: examples: expected the 5 of the saved training, got 4/);
  assert.match(wrong, /^checkpoint: /);
  assert.deepEqual(scaled[0], base, "an adapter of scale 0 is none");
  assert.notDeepEqual(scaled[1], base);
  assert.notDeepEqual(scaled[2], scaled[1]);
});

inPage("another scale or none of the adapter: a step refuses it by name, and a state of that moment is taken over; of another adapter it names the first layer", async () => {
  const begin = async (more) => {
    const model = await L.CausalLM.load(gpu, await source());
    model.addAdapter({ rank: 2, seed: 3, ...more });
    return { model, trainer: new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }) }) };
  };
  const one = await begin(), other = await begin(), larger = await begin({ alpha: 3 });
  const train = ({ trainer }) => code(collect(trainer.train(examplesOf([5]))));
  const result = { trained: await train(one) };
  one.model.adapterScale = 1.5;
  const state = await one.trainer.saveState();
  result.taken = await code((async () => other.trainer.loadState(state))());
  result.scaled = await train(one);
  one.model.adapterScale = 1;
  one.model.adapterEnabled = false;
  result.disabled = await train(one);
  one.model.adapterEnabled = true;
  result.again = await train(one);
  result.larger = await code((async () => larger.trainer.loadState(state))());
  for (const { model, trainer } of [one, other, larger]) { trainer.dispose(); model.dispose(); }
  return result;
}, undefined, ({ larger, ...result }) => {
  assert.deepEqual(result, {
    trained: "success", taken: "success", scaled: "invalid-argument: adapterScale: expected 1 for a step of a training, got 1.5",
    disabled: "invalid-argument: adapterEnabled: expected true for a step of a training, got false", again: "success",
  });
  assert.match(larger, /^checkpoint: .*: layers: expected model\.layers\.0\.\S+q_proj\[[^\]]+\], got model\.layers\.0\.\S+q_proj\[[^\]]+\]$/);
});

inPage("an adapter starts as PEFT's does, by a normal or with B·A = 0; options that are none are refused by their names", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  const prompt = [1, 2, 3];
  const base = String(await model.logits(prompt));
  const starts = {};
  for (const init of [undefined, "peft", "gaussian", "orthogonal"]) {
    model.addAdapter({ rank: 2, seed: 3, targetModules: ["layers.0.self_attn.q_proj"], ...(init && { init }) });
    const { config, weights } = await model.saveAdapter();
    const { modules: [{ a, b }] } = await L.loadPeft({ config: JSON.parse(config), weights });
    const deviation = Math.sqrt(a.reduce((sum, v) => sum + v * v, 0) / a.length);
    const logits = await model.logits(prompt), before = base.split(",").map(Number);
    starts[init] = { said: JSON.parse(config).init_lora_weights, a: Array.from(a), deviation, zero: b.every((v) => v === 0), off: Math.max(...logits.map((v, i) => Math.abs(v - before[i]))) };
    model.removeAdapter();
  }
  const refused = {};
  for (const [name, value] of Object.entries({ init: "pissa", bias: "some", useRslora: 1, useDora: "yes", loraBias: "no", rank: 2 ** 32 })) {
    refused[name] = await code((async () => model.addAdapter({ rank: 2, [name]: value }))());
  }
  const packed = (packTo) => code((async () => new L.LanguageTrainer(model, { optimizer: L.sgd(), packTo }))());
  refused.packTo = await packed(model.maxPositions + 1);
  model.addAdapter({ rank: 2 });
  const result = { starts, refused, fits: await packed(model.maxPositions), positions: model.maxPositions };
  model.dispose();
  return result;
}, undefined, ({ starts, refused, fits, positions }) => {
  const { undefined: none, peft, gaussian, orthogonal } = starts;
  assert.deepEqual([none.said, peft.said, gaussian.said, orthogonal.said], [true, true, "gaussian", "orthogonal"]);
  assert.deepEqual(none, peft);
  assert.ok(peft.zero && gaussian.zero && peft.off === 0 && gaussian.off === 0);
  assert.ok(Math.abs(gaussian.deviation - 1 / 2) < 0.15, `${gaussian.deviation}`);
  assert.ok(!orthogonal.zero && orthogonal.off < 1e-4, `${orthogonal.off}`);
  assert.equal(refused.useRslora, "invalid-argument: useRslora: expected true or false, got 1");
  assert.equal(refused.useDora, 'invalid-argument: useDora: expected true or false, got "yes"');
  assert.equal(refused.loraBias, 'invalid-argument: loraBias: expected true or false, got "no"');
  assert.equal(refused.rank, "invalid-argument: rank: expected an integer of at most 4294967295, got 4294967296");
  assert.equal(refused.init, 'invalid-argument: init: expected peft, gaussian, orthogonal, got "pissa"');
  assert.equal(refused.bias, 'invalid-argument: bias: expected none, lora_only, all, got "some"');
  assert.equal(refused.packTo, `invalid-argument: packTo: expected at most the model's ${positions} positions, got ${positions + 1}`);
  assert.equal(fits, "success");
});

inPage("a state saved at any moment of a training has as many steps in the optimiser as in the data; an end is the end of all epochs", async () => {
  const examples = Array.from({ length: 3 }, (_, i) => {
    const inputIds = Int32Array.from({ length: 5 }, (_, t) => (7 * i + 3 * t) % 50);
    return { inputIds, labels: inputIds };
  });
  const begin = async () => {
    const model = await L.CausalLM.load(gpu, await source());
    model.addAdapter({ rank: 2, seed: 3 });
    return { model, trainer: new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }) }) };
  };
  const one = await begin(), other = await begin();
  const states = [];
  let [done, seen] = [false, -1];
  const training = collect(one.trainer.train(examples)).finally(() => { done = true; });
  const { port1, port2 } = new MessageChannel();
  while (!done) { // as soon as there is a step more, which is before it is done
    if (one.trainer.steps !== seen) states.push(one.trainer.saveState());
    seen = one.trainer.steps;
    await new Promise((go) => { port1.onmessage = go; port2.postMessage(0); });
  }
  await training;
  const sums = [];
  for (const state of await Promise.all(states)) {
    other.trainer.loadState(state);
    const { steps } = other.trainer;
    sums.push(steps + (await collect(other.trainer.train(examples))).length);
  }
  const controller = new AbortController();
  for await (const _ of one.trainer.train(examples, { epochs: 1e9, signal: controller.signal })) controller.abort();
  for (const { model, trainer } of [one, other]) { trainer.dispose(); model.dispose(); }
  return { sums };
}, undefined, ({ sums }) => {
  assert.ok(sums.length > 1);
  assert.deepEqual(new Set(sums), new Set([3]));
});

inPage("examples that are packed into rows learn the same in fewer tokens", async () => {
  const examples = [3, 9, 5, 2, 8, 4].map((length, i) => {
    const inputIds = Int32Array.from({ length }, (_, t) => (11 * i + 5 * t) % 90);
    return { inputIds, labels: inputIds.slice() };
  });
  const results = [];
  for (const more of [{ batchSize: 6 }, { batchSize: 6, packTo: 16 }, { batchSize: 1, packTo: 31, gradientAccumulation: 9 }]) {
    const model = await L.CausalLM.load(gpu, await source());
    model.addAdapter({ rank: 4, alpha: 8, seed: 3 });
    const trainer = new L.LanguageTrainer(model, { optimizer: L.sgd({ lr: 0.1 }), ...more });
    const { perplexity } = await trainer.evaluate(examples);
    const losses = (await collect(trainer.train(examples, { epochs: 3 }))).map(({ loss }) => loss);
    results.push({ perplexity, losses });
    if (more.packTo) results.at(-1).long = await code((async () => { for await (const _ of trainer.train([...examples, { inputIds: new Int32Array(40), labels: new Int32Array(40) }])); })());
    trainer.dispose();
    model.dispose();
  }
  return results;
}, undefined, ([one, ...packed]) => {
  assert.equal(one.losses.length, 3, "each epoch is one step");
  assert.ok(one.losses[2] < one.losses[0]);
  for (const { perplexity, losses, long } of packed) {
    assert.equal(losses.length, 3);
    losses.forEach((loss, i) => assert.ok(Math.abs(loss - one.losses[i]) < 1e-4 * loss, `${losses} ${one.losses}`));
    assert.ok(Math.abs(perplexity / one.perplexity - 1) < 1e-4);
    assert.match(long, /^shape: examples\[6\].*packTo, got 40/);
  }
});

// One that comes up after hours would end the training there.
inPage("examples that the model cannot take are refused by their index before the first step", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 2, targetModules: ["layers.0.self_attn.q_proj"] });
  const { vocabSize, maxPositions } = model;
  const good = examplesOf([4, 5, 6]);
  const odd = (ids, labels = ids) => [...good, { inputIds: Int32Array.from(ids), labels: Int32Array.from(labels) }];
  const cases = {
    long: odd(Array(maxPositions + 1).fill(1)), high: odd([1, vocabSize]), negative: odd([1, -1]),
    label: odd([1, 2, 3], [-100, -100, vocabSize]), ignored: odd([1, 2, 3], [-100, -1, 3]),
    fits: odd(Array(maxPositions).fill(vocabSize - 1)), none: odd([0, 1, 2], [-100, -100, -100]),
  };
  const results = {};
  for (const [name, examples] of Object.entries(cases)) {
    const trainer = new L.LanguageTrainer(model, { optimizer: L.sgd({ lr: 0 }) });
    let steps = 0;
    const drain = async (examples, options) => { for await (const record of trainer.train(examples, options)) steps = record.step; };
    results[name] = {
      train: await code(drain(examples)), trained: steps,
      validation: await code(drain(good, { validation: { examples, every: 1 } })), validated: steps,
      evaluate: await code(trainer.evaluate(examples)),
    };
    trainer.dispose();
  }
  model.dispose();
  return { results, vocabSize, maxPositions };
}, undefined, ({ results, vocabSize, maxPositions }) => {
  const ids = `token ids from 0 to ${vocabSize - 1}`, labels = `labels of -100 or ${ids}`;
  for (const [name, [code, expected]] of Object.entries({
    long: ["shape", `at most the model's ${maxPositions} positions, got ${maxPositions + 1}`],
    high: ["invalid-argument", `${ids}, got ${vocabSize}`], negative: ["invalid-argument", `${ids}, got -1`],
    label: ["invalid-argument", `${labels}, got ${vocabSize}`], ignored: ["invalid-argument", `${labels}, got -1`],
  })) {
    const train = `${code}: examples[3]: expected ${expected}`;
    assert.deepEqual(results[name], { train, trained: 0, validation: train.replace("examples", "validation.examples"), validated: 0, evaluate: train });
  }
  for (const { train, trained, validation, validated, evaluate } of [results.fits, results.none]) {
    assert.deepEqual([train, validation, evaluate, trained, validated], ["success", "success", "success", 4, 7]);
  }
});

inPage("a language model's training gives a record every logEvery steps and at the end, with the loss over what is kept for validation", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 2, seed: 3 });
  const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }), batchSize: 2, seed: 5 });
  const examples = examplesOf([5, 9, 7, 4, 6]), kept = examples.slice(1, 3);
  const records = await collect(trainer.train(examples, { logEvery: 2, validation: { examples: kept, every: 3 } }));
  const { loss } = await trainer.evaluate(kept);
  trainer.dispose();
  model.dispose();
  return { records, loss };
}, undefined, ({ records, loss }) => {
  assert.deepEqual(records.map(({ step, total }) => [step, total]), [[2, 3], [3, 3]]);
  assert.ok(records.every(({ skipped, notFinite, nothingCounted, tokensPerSecond }) => skipped === 0 && notFinite.length === 0 && nothingCounted === 0 && tokensPerSecond > 0));
  assert.deepEqual(records.map(({ validationLoss }) => validationLoss), [undefined, loss]);
});

inPage("a language model's state is refused by trainers of other batches, and its place stays until there is a step; the rest has the same bits", async () => {
  const examples = examplesOf([5, 9, 7, 4, 6]);
  const begin = async (more) => {
    const model = await L.CausalLM.load(gpu, await source());
    model.addAdapter({ rank: 2, seed: 3 });
    return { model, trainer: new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }), batchSize: 2, seed: 5, ...more }) };
  };
  const one = await begin(), straight = await begin(), later = await begin();
  await collect(straight.trainer.train(examples, { epochs: 3 }));
  await collect(one.trainer.train(examples));
  const state = await one.trainer.saveState();
  const kind = async (promise) => (await code(promise)).split(":")[0];
  const refused = {};
  for (const more of [{ batchSize: 1 }, { gradientAccumulation: 2 }, { packTo: 16 }]) {
    const other = await begin(more);
    other.trainer.loadState(state);
    refused[Object.keys(more)[0]] = await kind(other.trainer.train(examples, { epochs: 3 }).next());
    for (const each of Object.values(other)) each.dispose();
  }
  later.trainer.loadState(state);
  const aborted = await collect(later.trainer.train(examples, { epochs: 3, signal: AbortSignal.abort() }));
  const unknown = examples.map(({ labels }) => ({ inputIds: labels.map(() => 1e6), labels }));
  const bad = await kind(later.trainer.train(unknown, { epochs: 3 }).next());
  const signal = await kind(later.trainer.train(examples, { signal: {} }).next());
  const rest = await collect(later.trainer.train(examples, { epochs: 3, logEvery: 100 }));
  const weights = async ({ model }) => String((await model.saveAdapter()).weights);
  const same = (await weights(later)) === (await weights(straight));
  for (const { model, trainer } of [one, straight, later]) { trainer.dispose(); model.dispose(); }
  return { refused, aborted: aborted.length, bad, signal, steps: rest.at(-1).step, same };
}, undefined, ({ refused, same, ...rest }) => {
  assert.deepEqual(refused, { batchSize: "checkpoint", gradientAccumulation: "checkpoint", packTo: "checkpoint" });
  assert.deepEqual(rest, { aborted: 0, bad: "invalid-argument", signal: "invalid-argument", steps: 9 });
  assert.ok(same, "the bits of a training without interruption");
});

inPage("a second training of a language model's trainer is refused as busy, and dispose() waits for the one under way", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 2, seed: 3 });
  const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }), batchSize: 2 });
  const examples = examplesOf([5, 9, 7, 4, 6]);
  const first = trainer.train(examples, { epochs: 2 });
  await first.next();
  const kind = async (promise) => (await code(promise)).split(":")[0];
  const busy = await kind(trainer.train(examples).next());
  trainer.dispose();
  const waited = await kind(first.next());
  await first.return();
  const disposed = await kind(trainer.evaluate(examples));
  model.dispose();
  return { busy, waited, disposed };
}, undefined, (result) => assert.deepEqual(result, { busy: "busy", waited: "success", disposed: "disposed" }));

inPage("ragged examples need few shapes, and orders differ by seed and epoch", async () => {
  const model = await L.CausalLM.load(gpu, await source());
  model.addAdapter({ rank: 2, seed: 3 });
  const counts = {};
  for (const packTo of [undefined, 32]) {
    const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 1e-2 }), ...(packTo && { packTo }) });
    const examples = examplesOf([3, 14, 9, 25, 6, 20, 11, 30, 17, 8]);
    const training = trainer.train(examples, { epochs: 3 });
    for (let i = 0; i < (packTo ? 2 : 10); i++) await training.next();
    const before = gpu.stats();
    await collect(training);
    const after = gpu.stats();
    counts[packTo] = [after.buffersCreated - before.buffersCreated, after.bindGroups - before.bindGroups];
    trainer.dispose();
  }
  const orders = [];
  for (const seed of [0, 1, 2 ** 32]) {
    const trainer = new L.LanguageTrainer(model, { optimizer: L.sgd({ lr: 0 }), seed });
    const losses = (await collect(trainer.train(examplesOf([5, 6, 7, 8, 9, 10]), { epochs: 2 }))).map(({ loss }) => loss);
    orders.push(String(losses.slice(0, 6)), String(losses.slice(6)));
    trainer.dispose();
  }
  model.dispose();
  return { counts, orders };
}, undefined, ({ counts, orders }) => {
  assert.deepEqual(counts, { undefined: [0, 0], 32: [0, 0] });
  assert.equal(new Set(orders).size, 6, JSON.stringify(orders));
});

inPage("a step without memory is made anew; an adapter that is trained stays; switches do not reach a text that has begun; another device", async () => {
  const examples = examplesOf([5, 9, 7, 4]);
  const load = async (on) => {
    const model = await L.CausalLM.load(on, await source());
    model.addAdapter({ rank: 4, seed: 3 });
    return model;
  };
  const make = (model) => new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 5e-2 }), batchSize: 2 });
  const model = await load(gpu), trainer = make(model);
  const create = GPUDevice.prototype.createBuffer;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    return create.call(this, { ...descriptor, size: descriptor.label === "hidden" ? 2 ** 40 : descriptor.size });
  };
  const refused = (await code(collect(trainer.train(examples)))).split(":")[0];
  GPUDevice.prototype.createBuffer = create;
  const steps = trainer.steps;
  const { loss } = await trainer.evaluate(examples);
  const records = await collect(trainer.train(examples, { epochs: 4 }));
  const removed = (await code((async () => model.removeAdapter())())).split(":")[0];
  const more = await collect(trainer.train(examples));
  const text = (m) => collect(m.generate([1, 2, 3], { maxTokens: 5, stopTokenIds: [] }));
  const expected = await text(model);
  const begun = model.generate([1, 2, 3], { maxTokens: 5, stopTokenIds: [] });
  const first = begun.next();
  model.adapterEnabled = false;
  const switched = [(await first).value, ...await collect(begun)], base = await text(model);
  model.adapterEnabled = true;
  trainer.dispose();
  model.removeAdapter();
  model.dispose();

  const own = await L.Gpu.request();
  const straight = await load(gpu), there = await load(own), going = make(there);
  await collect(make(straight).train(examples, { epochs: 2 }));
  const training = going.train(examples, { epochs: 2, checkpoints: { every: 1 } });
  for (let i = 0; i < 3; i++) await training.next();
  own.device.destroy();
  await own.lost;
  const lost = (await code(collect(training))).split(":")[0];
  const here = await load(gpu);
  await going.recover(here);
  await collect(going.train(examples, { epochs: 2 }));
  const weights = async (m) => String((await m.saveAdapter()).weights);
  return { refused, steps, loss, records: records.map((r) => r.loss), removed, more: more.length, expected, switched, base, lost, end: going.steps, same: (await weights(here)) === (await weights(straight)) };
}, undefined, ({ refused, steps, loss, records, removed, more, expected, switched, base, lost, end, same }) => {
  assert.ok(["validation", "out-of-memory"].includes(refused), refused);
  assert.equal(steps, 0);
  assert.ok(loss > 0 && records.length === 8 && records.at(-1) < records[0], `${records}`);
  assert.deepEqual([removed, more], ["invalid-argument", 2]);
  assert.deepEqual(switched, expected);
  assert.notDeepEqual(base, expected);
  assert.deepEqual([lost, end, same], ["device-lost", 4, true]);
});
