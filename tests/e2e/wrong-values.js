// Every export of the package with arguments that it takes, and then with each of them, and each of its options, of a wrong kind:
// what is thrown must be a LoraError. Runs on bare.html.
import * as L from "/dist/index.js";

const { gpu, numbers } = globalThis;
const circular = {};
circular.self = circular;

/** Values that next to nothing takes. */
const WRONG = {
  undefined: undefined, null: null, minus: -1, fraction: 0.5, NaN: NaN, huge: 2 ** 60, bigint: 10n, true: true, "no text": "", text: "text", symbol: Symbol("s"),
  function: () => 3, array: [], "array of null": [null], bare: Object.create(null), circular, map: new Map(), floats: new Float32Array(3), bytes: new Uint8Array(5),
  "fake file": { size: 9, name: "x", slice: () => ({}) }, blob: new Blob(["x"]), gpu, "fake gpu": { __proto__: L.Gpu.prototype }, url: new URL("http://127.0.0.1:1/x"),
};

const plain = (value) => typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;

/** Where a wrong value can stand in arguments: each of them, and all that plain objects and arrays among them hold. */
function places(value, path = []) {
  const inner = plain(value) || Array.isArray(value) ? Object.keys(value).flatMap((key) => places(value[key], [...path, key])) : [];
  return path.length ? [path, ...inner] : inner;
}

function replaced(value, [key, ...rest], by) {
  const copy = Array.isArray(value) ? [...value] : { ...value };
  copy[key] = rest.length ? replaced(copy[key], rest, by) : by;
  return copy;
}

const file = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());

/** Name, a call, and arguments that it takes. What it gives is disposed of; an iterator is begun. */
async function table() {
  const MODEL = "/tests/golden/models/llama_tied_all/", PEFT = "/tests/golden/peft_files/all_linear/";
  const model = { config: await file(`${MODEL}config.json`), weights: await file(`${MODEL}model.safetensors`) };
  const peft = { config: await file(`${PEFT}adapter_config.json`), weights: await file(`${PEFT}adapter_model.safetensors`) };
  const base = await file("/tests/golden/peft_files/base_llama/model.safetensors");
  const tensor = (...shape) => new L.Tensor(gpu, { shape });
  const integers = new L.Tensor(gpu, { shape: [2], data: new Int32Array(2) });
  const linear = () => ({ inFeatures: 4, outFeatures: 4, rank: 2, alpha: 2, weight: numbers(16, 1), bias: numbers(4, 2), name: "fc", seed: 1, useRslora: false, dropout: 0, useDora: false, loraBias: false, trainBias: false, init: "peft" });
  const adapter = () => ({ rank: 2, alpha: 2, useRslora: false, dropout: 0, useDora: false, loraBias: false, trainBias: false, init: "peft", seed: 1 });
  const layer = new L.LoraLinear(gpu, linear()), trained = new L.LoraLinear(gpu, linear());
  const weight = new L.LoraWeight(gpu, { inFeatures: 4, outFeatures: 4, rank: 2 }), grad = new L.LoraGrad(gpu, weight);
  const frozen = new L.FrozenLinear(gpu, { inFeatures: 4, outFeatures: 4, weight: numbers(16, 1) });
  const pending = () => new L.FrozenLinear(gpu, { kind: "bitlinear", packing: "transformers", inFeatures: 4, outFeatures: 4 });
  const [x, y, h, output] = [tensor(2, 4), tensor(2, 4), tensor(2, 2), tensor(2, 4)], loss = tensor(1);
  const optimizer = new L.Optimizer(gpu, { layers: [layer], optimizer: L.adamw() });
  const batch = () => ({ x: numbers(8, 1), target: numbers(8, 2) });
  const trainer = new L.Trainer(gpu, { layers: [trained], loss: L.mse(), optimizer: L.sgd() });
  const state = await trainer.saveState();
  const lm = await L.CausalLM.load(gpu, model), bareLm = () => L.CausalLM.load(gpu, model);
  const other = await bareLm();
  other.addAdapter({ rank: 1 });
  const third = await bareLm();
  lm.addAdapter({ rank: 2 });
  const files = await lm.saveAdapter();
  const languageTrainer = new L.LanguageTrainer(lm, { optimizer: L.sgd() });
  const languageState = await languageTrainer.saveState();
  const example = () => ({ inputIds: new Int32Array([1, 2, 3]), labels: new Int32Array([1, 2, 3]) });
  const loaded = await L.loadPeft(peft), module = loaded.modules[0];
  const fits = new L.LoraLinear(gpu, { name: module.name, inFeatures: module.inFeatures, outFeatures: module.outFeatures, rank: module.rank, alpha: module.alpha, weight: new Float32Array(module.inFeatures * module.outFeatures) });
  const single = await L.makePeft({ layers: [fits] });
  const saved = () => ({ name: "fc", kind: "linear", rank: 2, alpha: 2, a: numbers(8, 1), b: numbers(8, 2) });
  const checkpoints = await L.Checkpoints.open("wrong values");
  const lmCheckpoints = await L.Checkpoints.open("wrong values of a model");
  const rec = () => gpu.record();
  const buffer = gpu.device.createBuffer({ size: 64, usage: 0x80 | 4 | 8 });

  const wrongKohya = saved();
  const kohya = (await L.makePeft({ layers: [wrongKohya] })).toKohya();
  const methods = (name, object, calls) => Object.entries(calls).map(([method, args]) => [`${name}.${method}`, (...given) => object[method](...given), args]);
  const record = (calls) => Object.entries(calls).map(([method, args]) => [`Recording.${method}`, (...given) => rec()[method](...given), [args]]);
  const set = (name, object, property, good) => [`${name}.${property}`, (value) => { object[property] = value; }, [good], undefined, () => { object[property] = good; }];
  const nothing = { signal: new AbortController().signal };
  const rows = [
    ["init", L.init, ["/dist/wasm/lora_webgpu_bg.wasm"]],
    ["Gpu.request", L.Gpu.request, [{ powerPreference: "low-power", forceFallbackAdapter: true, features: [], profile: "software" }]],
    ["Gpu.fromDevice", L.Gpu.fromDevice, [gpu.device, { profile: "software" }]],
    ...methods("Gpu", gpu, { record: [], finished: [], memory: [], stats: [] }),
    ["Tensor", (...args) => new L.Tensor(...args), [gpu, { shape: [2, 2], data: numbers(4, 1), label: "x" }]],
    ["Tensor.fromBuffer", L.Tensor.fromBuffer, [gpu, { buffer, shape: [4], byteOffset: 0, dtype: "float32", label: "x" }]],
    ...methods("Tensor", tensor(4), { write: [numbers(4, 1)], read: [] }),
    ["Tensor.readIntegers", () => integers.readIntegers(), []],
    ["FrozenLinear", (...args) => new L.FrozenLinear(...args), [gpu, { kind: "f32", inFeatures: 4, outFeatures: 4, weight: numbers(16, 1), bias: numbers(4, 1), int8Activations: false }]],
    ["FrozenLinear ternary", (...args) => new L.FrozenLinear(...args), [gpu, { kind: "bitlinear", packing: "transformers", inFeatures: 4, outFeatures: 4, weight: new Uint8Array(4).fill(85), scale: 1, int8Activations: true }]],
    ["FrozenLinear.fromTensors", (args) => L.FrozenLinear.fromTensors(args), [{ weight: tensor(4, 4), bias: tensor(4) }]],
    ["FrozenLinear.write", (...args) => pending().write(...args), [0, new Uint8Array(4)]],
    ["FrozenLinear.setBias", (...args) => pending().setBias(...args), [numbers(4, 1)]],
    ["FrozenLinear.setScale", (...args) => pending().setScale(...args), [1]],
    ["FrozenLinear.finish", () => frozen.finish(), [], "invalid-argument"],
    ["FrozenLinear.forward", (...args) => frozen.forward(...args), [rec(), { x, output }]],
    ["FrozenLinear.backwardInput", (...args) => frozen.backwardInput(...args), [rec(), { dOutput: x, dInput: output }]],
    ["FrozenLinear.forwardRows", (...args) => frozen.forwardRows(...args), [rec(), { first: 0, end: 4, x, output }]],
    ["FrozenLinear.backwardInputRows", (...args) => frozen.backwardInputRows(...args), [rec(), { first: 0, end: 4, dOutput: x, dInput: output, accumulate: true }]],
    ["FrozenLinear.embed", (...args) => frozen.embed(...args), [rec(), { ids: integers, output }]],
    ["LoraWeight", (...args) => new L.LoraWeight(...args), [gpu, { inFeatures: 4, outFeatures: 4, ...adapter() }]],
    ["LoraWeight.from", L.LoraWeight.from, [gpu, { a: tensor(2, 4), b: tensor(4, 2) }]],
    ["LoraGrad", (...args) => new L.LoraGrad(...args), [gpu, weight]],
    ...methods("LoraGrad", grad, { zero: [rec()] }),
    ["LoraAdapter", (...args) => new L.LoraAdapter(...args), [], "invalid-argument"],
    set("LoraAdapter", fits.adapter(), "scale", 1),
    ["LoraLinear", (...args) => new L.LoraLinear(...args), [gpu, linear()]],
    ["LoraLinear on a base", (...args) => new L.LoraLinear(...args), [gpu, { inFeatures: 4, outFeatures: 4, rank: 2, base: frozen }]],
    ["LoraLinear.addAdapter", (name, ...args) => layer.addAdapter(typeof name === "string" && name ? `${name}${Math.random()}` : name, ...args), ["new", adapter()]],
    ["LoraLinear.removeAdapter", (name) => { layer.addAdapter("gone", adapter()); return layer.removeAdapter(name === "gone" ? "gone" : name); }, ["gone"], undefined, () => layer.removeAdapter("gone")],
    ...methods("LoraLinear", layer, { adapter: ["default"], forward: [rec(), x], forwardRows: [rec(), x, ["default", null]], zeroGrad: [rec()], deltaWeight: [] }),
    ["LoraLinear.backward", (...args) => { layer.forward(rec(), x); layer.backward(...args); }, [rec(), { x, dOutput: y, dInput: output }]],
    ["LoraLinear.merge", async (...args) => { await fits.merge(...args); await fits.unmerge(); }, [{ keepOriginal: true }]],
    ["LoraLinear.unmerge", async () => { await fits.merge(); await fits.unmerge(); }, []],
    set("LoraLinear", fits, "active", ["default"]),
    set("LoraLinear", fits, "enabled", true),
    ["mse", L.mse, []], ["bceWithLogits", L.bceWithLogits, []],
    ["crossEntropy", L.crossEntropy, [{ ignoreIndex: -100, labelSmoothing: 0 }]],
    ["relu", L.relu, []], ["gelu", L.gelu, []], ["silu", L.silu, []], ["tanh", L.tanh, []],
    ["layerNorm", L.layerNorm, [{ weight: numbers(4, 1), bias: numbers(4, 1), eps: 1e-5 }]],
    ["rmsNorm", L.rmsNorm, [{ weight: numbers(4, 1), eps: 1e-6 }]],
    ["residual", L.residual, [[L.tanh()]]],
    ["adamw", L.adamw, [{ lr: 1, betas: [0.9, 0.99], eps: 1e-8, weightDecay: 0, lrRatioB: 1 }]],
    ["sgd", L.sgd, [{ lr: 1, momentum: 0, weightDecay: 0, lrRatioB: 1 }]],
    ["constantSchedule", L.constantSchedule, [{ warmup: 1 }]],
    ["linearSchedule", L.linearSchedule, [{ warmup: 1, total: 9 }]],
    ["cosineSchedule", L.cosineSchedule, [{ warmup: 1, total: 9 }]],
    ["Optimizer", (...args) => new L.Optimizer(...args), [gpu, { layers: [fits], optimizer: L.adamw(), schedule: L.linearSchedule({ total: 9 }), maxGradNorm: 1 }]],
    ...methods("Optimizer", optimizer, { step: [rec()], zeroGrad: [rec()], setLr: [1] }),
    ["Trainer", (...args) => new L.Trainer(...args), [gpu, { layers: [fits, L.residual([L.tanh()]), L.rmsNorm({ weight: new Float32Array(fits.outFeatures) })], loss: L.crossEntropy(), optimizer: L.sgd(), schedule: L.constantSchedule(), maxGradNorm: 1, gradientAccumulation: 1, seed: 0 }]],
    ...methods("Trainer", trainer, { step: [batch()], evaluate: [[batch()]], saveState: [], loadState: [state], recover: [gpu] }),
    ["Trainer.train", (...args) => trainer.train(...args), [[batch(), batch()], { epochs: 1, ...nothing, logEvery: 1, inFlight: 2, resume: true, validation: { split: 0.5, seed: 0, every: 1, patience: 9 }, checkpoints: { run: checkpoints, every: 1, onError: () => {} } }]],
    ["CausalLM.load", L.CausalLM.load, [gpu, { ...model, dtype: "f32", ...nothing, onProgress: () => {} }]],
    ["CausalLM.load of a folder", L.CausalLM.load, [gpu, { folder: MODEL, fetch: (...args) => fetch(...args) }]],
    ["CausalLM.load of the Hub", (...args) => L.CausalLM.load(...args), [gpu, { hub: "org/name", revision: "main", endpoint: location.origin, cache: false, fetch: async (url) => (String(url).includes("/api/") ? new Response("{}") : fetch(MODEL + String(url).split("/").pop())) }]],
    ["CausalLM.addAdapter", (options) => { third.removeAdapter(); third.addAdapter(options); }, [{ ...adapter(), trainBias: undefined, targetModules: ["q_proj"], modulesToSave: [] }].map(({ trainBias: _t, ...rest }) => rest)],
    ["CausalLM.loadAdapter", async (...args) => { third.removeAdapter(); await third.loadAdapter(...args); }, [files]],
    ...methods("CausalLM", lm, { estimate: [{ rank: 2, alpha: 2, targetModules: ["q_proj"], modulesToSave: [], dropout: 0, useRslora: false, useDora: false, loraBias: false, seed: 0, tokens: 4, batch: 1, checkpointing: true, budget: 1e9 }], saveAdapter: [], logits: [[1, 2]], generate: [[1], { maxTokens: 1, temperature: 0, topK: 1, topP: 1, repetitionPenalty: 1, stopTokenIds: [2], seed: 0, ...nothing }] }),
    ["CausalLM.removeAdapter", async () => { const model = await bareLm(); model.removeAdapter(); model.dispose(); }, []],
    set("CausalLM", lm, "adapterEnabled", true),
    set("CausalLM", lm, "adapterScale", 1),
    ["LanguageTrainer", (...args) => new L.LanguageTrainer(...args), [other, { optimizer: L.adamw(), schedule: L.constantSchedule(), maxGradNorm: 1, batchSize: 1, packTo: 8, gradientAccumulation: 1, checkpointing: true, seed: 0 }]],
    ...methods("LanguageTrainer", languageTrainer, { train: [[example()], { epochs: 1, ...nothing, logEvery: 1, inFlight: 2, resume: true, validation: { examples: [example()], every: 1, patience: 9 }, checkpoints: { run: lmCheckpoints, every: 1, onError: () => {} } }], evaluate: [[example()]], saveState: [], loadState: [languageState] }),
    ["LanguageTrainer.recover", (...args) => languageTrainer.recover(...args), [lm], "invalid-argument"], // a second trainer of its adapter
    ["loadPeft", L.loadPeft, [peft, { model: base, strict: false }]],
    ["importAdapter, Kohya", L.importAdapter, [{ format: "kohya", file: kohya, model: [{ name: "fc", kind: "linear", inFeatures: 4, outFeatures: 4, isOutputHead: false }] }]],
    ["importAdapter, MLX", L.importAdapter, [{ format: "mlx", file: peft.weights, config: { lora_parameters: { scale: 1 } } }], "unsupported"],
    ["importAdapter, Hesper", L.importAdapter, [{ format: "hesper", file: new Uint8Array(24), inFeatures: 1, qOutFeatures: 1, vOutFeatures: 1 }], "file"],
    ["importAdapter, GGUF", L.importAdapter, [{ format: "gguf", file: new Uint8Array(24), modelConfig: { model_type: "llama", num_attention_heads: 2 } }], "file"],
    ["makePeft", L.makePeft, [{ layers: [fits, saved()], adapter: "default", baseModel: "x", plain: false, config: { task_type: "CAUSAL_LM" } }]],
    ["savePeft", L.savePeft, [{ layers: [fits], like: single, dtype: "float16" }]],
    ["PeftAdapter", (...args) => new L.PeftAdapter(...args), [], "invalid-argument"],
    ["PeftModule", (...args) => new L.PeftModule(...args), [{}, () => undefined]],
    ["PeftModule.deltaWeight", () => module.deltaWeight(), []],
    ...methods("PeftAdapter", loaded, { report: [[{ name: module.name, kind: "linear", inFeatures: module.inFeatures, outFeatures: module.outFeatures }], { strict: false }], files: [{ dtype: "float32" }], canExport: ["gguf", { modelConfig: model.config }], toGguf: [{ modelConfig: model.config, name: "x" }], toKohya: [{ prefix: "lora_unet" }], toPlain: [{ model: base }] }),
    ["PeftAdapter.toHesper", () => loaded.toHesper(), [], "unsupported"],
    ["PeftAdapter.applyTo", (...args) => single.applyTo(...args), [[fits], { adapter: "default", strict: true }]],
    ["combine", L.combine, [[{ adapter: single, weight: 1 }, { adapter: single, weight: 0.5 }], { type: "svd", rank: 2 }]],
    ["merge", L.merge, [{ adapter: loaded, model: base }]],
    ["merge of several", L.merge, [{ adapter: loaded, model: [base] }]],
    ["mergeInto", L.mergeInto, [{ adapter: loaded, model: [new Blob([base])] }, async () => {}]],
    ["modelModules", L.modelModules, [[base]]],
    ["modelFile", L.modelFile, [{ folder: MODEL }, "config.json"]],
    ["clearModelCache", L.clearModelCache, []],
    ["readGguf", L.readGguf, [new Uint8Array(24)], "file"],
    ["parseJsonl", L.parseJsonl, ['{"text":"x"}']],
    ["tokenizeExamples", L.tokenizeExamples, [[{ prompt: "a", completion: "b" }, { text: "cd" }, { messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] }], { encode: (text) => [...text].map((c) => c.charCodeAt(0)), maxTokens: 9, bosTokenId: 0, eosTokenId: 1, chatTemplate: (messages) => messages.map(({ content }) => content).join("") }]],
    ["chunkTokens", L.chunkTokens, [[1, 2, 3], { length: 2, stride: 1 }]],
    ["Recording", (...args) => new L.Recording(...args), [gpu]],
    ["Recording.compile", (...args) => rec().compile(...args), [() => {}]],
    ["Recording.submit", () => rec().submit(), []],
    ["Recording.zero", (...args) => rec().zero(...args), [x]],
    ...record({
      projectA: { weight, x, h }, projectB: { weight, h, y }, addScaled: { y, output, scale: 1 }, fusedBAdd: { weight, h, output, scale: 1 },
      loraForward: { weight, x, h, y, output, scale: 1 }, loraForwardFused: { weight, x, h, output, scale: 1 }, saveActivation: { src: x, dst: output },
      gradB: { dOutput: x, h, dB: grad.b, scale: 1 }, gradDh: { weight, dOutput: x, dh: h }, gradA: { dh: h, x, dA: grad.a, scale: 1 }, inputGrad: { weight, dh: h, dInput: output, scale: 1 },
      loraBackward: { weight, dOutput: y, x, h, dh: tensor(2, 2), grad, dInput: output, scale: 1 }, mse: { output: x, target: y, dOutput: output, loss }, bceWithLogits: { output: x, target: y, dOutput: output, loss },
      crossEntropy: { output: x, target: integers, dOutput: output, loss, ignoreIndex: -100, labelSmoothing: 0 },
    }),
    ["Checkpoints.open", L.Checkpoints.open, ["another"]],
    ["Checkpoints.list", L.Checkpoints.list, []],
    ["Checkpoints.delete", L.Checkpoints.delete, ["none"]],
    ["Checkpoints.persist", L.Checkpoints.persist, []],
    ["Checkpoints.save", (...args) => checkpoints.save(...args), [trainer]],
    ["Checkpoints.restore", (...args) => checkpoints.restore(...args), [trainer]],
    ["Checkpoints.close", async () => { await (await L.Checkpoints.open("third")).close(); }, []],
  ];
  return rows;
}

const kindOf = (value) => (typeof value === "object" ? Object.prototype.toString.call(value) : typeof value);
const at = (value, path) => path.reduce((inner, key) => inner[key], value);

/** What no row can call: made or freed by the others, or not for callers. */
const PLAIN = ["dispose", "constructor", "submit", "free"];

export default async function () {
  const rows = await table();
  const names = new Set(["LoraError"].concat(rows.map(([name]) => name.split(/,| /)[0])));
  const missing = Object.entries(L).flatMap(([name, value]) => {
    if (typeof value !== "function" || value === L.Training) return []; // what trainers share is in their rows
    const own = value.prototype && Object.getOwnPropertyNames(value.prototype).length > 1 ? value.prototype : {};
    const calls = Object.entries(Object.getOwnPropertyDescriptors(own)).filter(([key, { value, set }]) => (value || set) && !PLAIN.includes(key) && name !== "LoraError");
    const statics = Object.entries(Object.getOwnPropertyDescriptors(value)).filter(([key, { value }]) => typeof value === "function" && key !== "prototype");
    return [name, ...[...calls, ...statics].map(([key]) => `${name}.${key}`)].filter((each) => !names.has(each) && !(each === name && [...names].some((other) => other.startsWith(`${each}.`)) && !/^[a-z]/.test(each) && ["Gpu", "CausalLM", "Checkpoints"].includes(each)));
  });
  const seen = { calls: 0, refused: 0, bad: [], accepted: 0, lenient: [], failed: [], slow: [], missing };
  const free = async (name, value) => {
    if (typeof value?.next === "function") {
      await value.next();
      await value.return?.();
    } else if (typeof value?.close === "function") await value.close();
    else if (value !== gpu && !(value instanceof L.LoraAdapter) && !name.includes("from") && !name.includes("on a base")) value?.dispose?.();
  };
  const attempt = async (name, call, args) => {
    let timer;
    const late = new Promise((resolve) => { timer = setTimeout(resolve, 20_000, "hangs"); });
    const work = (async () => free(name, await call(...args)))().then(() => undefined, (error) => error ?? "nothing");
    const error = await Promise.race([work, late]);
    clearTimeout(timer);
    return error;
  };
  for (const [name, call, good, code, after] of rows) {
    const first = await attempt(name, call, good);
    if (first?.code !== code) seen.failed.push(`${name}: ${first?.code} ${first?.message ?? first}`);
    const begin = performance.now();
    for (const path of places(good)) {
      for (const [what, value] of Object.entries(WRONG)) {
        const error = await attempt(name, call, replaced(good, path, value));
        if (after) try { after(); } catch { /* it was done */ }
        seen.calls++;
        const where = `${name}(${path.join(".")} = ${what})`;
        if (error === undefined) {
          seen.accepted++;
          if (value !== undefined && value !== null && kindOf(value) !== kindOf(at(good, path))) seen.lenient.push(where);
        } else if (error instanceof L.LoraError && error.code) seen.refused++;
        else seen.bad.push(`${where}: ${error}`);
      }
    }
    const error = await attempt(name, call, []);
    if (error && !(error instanceof L.LoraError)) seen.bad.push(`${name}(): ${error}`);
    seen.slow.push([name, Math.round(performance.now() - begin)]);
  }
  seen.slow.sort((a, b) => b[1] - a[1]);
  return seen;
}
