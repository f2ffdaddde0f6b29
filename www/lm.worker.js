// The language model: everything that computes. The page sends `{ kind, id, … }` and gets `{ kind: "answer", id, … }` for each,
// besides what this worker tells by itself.
import { Tokenizer } from "@huggingface/tokenizers";
import { adamw, CausalLM, Checkpoints, chunkTokens, Gpu, LanguageTrainer, linearSchedule, parseJsonl, tokenizeExamples } from "lora-webgpu";

const tell = (kind, data) => postMessage({ kind, ...data });

let gpu, model, tokenizer, trainer, run, training; // training: { settings, text, name, step, losses, samples, … }
let adapter = false; // whether there is one on the model

// ── The model ──

async function fetched(url, onProgress) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const total = Number(response.headers.get("content-length")), parts = [];
  let loaded = 0;
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts);
    parts.push(value);
    onProgress?.((loaded += value.length), total || loaded);
  }
}

/** The base model of the site, from below `base`. */
async function load({ base }) {
  gpu = await Gpu.request();
  gpu.lost.then(({ message }) => tell("lost", { message }));
  tell("device", { info: gpu.info });
  const get = (name, onProgress) => fetched(new URL(`model/${name}`, base), onProgress);
  const json = async (name) => JSON.parse(await (await get(name)).text());
  const [config, tokens, tokensConfig, weights] = await Promise.all([
    json("config.json"), json("tokenizer.json"), json("tokenizer_config.json"),
    get("model.safetensors", (loaded, total) => tell("loading", { loaded, total })),
  ]);
  tokenizer = new Tokenizer(tokens, tokensConfig);
  model = await CausalLM.load(gpu, { config, weights, dtype: "f32" }); // small as it is, and faster so
  return { modules: model.modules, maxPositions: model.maxPositions, bytes: weights.size };
}

// ── Texts ──

const END = 0; // <|endoftext|>, which begins and ends every document
const encode = (text) => (text ? tokenizer.encode(text, { add_special_tokens: false }).ids : []);
const decode = (ids) => (ids.length ? tokenizer.decode(ids, { skip_special_tokens: true }) : ""); // the library refuses none

/** As the model's template in tokenizer_config.json. */
const chatTemplate = (messages, addGenerationPrompt) => messages.map(({ role, content }) => (
  role === "user" ? `Question: ${content}\n\n` : role === "assistant" ? `Answer: ${content}<|endoftext|>` : `${content}\n\n`
)).join("") + (addGenerationPrompt ? "Answer:" : "");

const problem = (code, line) => Object.assign(new Error(), { code, line });

/** A text's examples: of JSON lines each its own, else pieces of `length` tokens. The last tenth is held out. */
function prepare(text, length) {
  if (!text.trim()) throw problem("empty-text");
  let examples, notes = {};
  if (/^\s*\{/.test(text)) {
    const { examples: parsed, errors } = parseJsonl(text);
    if (!parsed.length) throw problem("bad-lines", errors[0]);
    const tokenized = tokenizeExamples(parsed, { encode, maxTokens: length, bosTokenId: END, eosTokenId: END, chatTemplate });
    examples = tokenized.examples;
    notes = { badLines: errors.length, firstBad: errors[0], truncated: tokenized.truncated };
  } else {
    examples = chunkTokens([END, ...encode(text), END], { length });
  }
  if (!examples.length) throw problem("empty-text");
  const kept = examples.length >= 10 ? examples.slice(-Math.max(1, Math.min(4, Math.floor(examples.length / 10)))) : [];
  return { examples: examples.slice(0, examples.length - kept.length), kept, notes };
}

// ── Writing ──

/** The model's continuation; `onText` hears of it as it grows. */
async function write(prompt, { enabled, maxTokens, temperature, seed, onText }) {
  const ids = [];
  model.adapterEnabled = enabled;
  try {
    for await (const id of model.generate([END, ...encode(prompt)], { maxTokens, temperature, topP: 0.95, seed, stopTokenIds: [END] })) {
      ids.push(id);
      onText?.(decode(ids));
      if (stopWriting) break;
    }
  } finally {
    model.adapterEnabled = true;
  }
  return decode(ids);
}

let stopWriting = false;

/** Base and adapter, one after the other, with the same prompt and seed. */
async function compare({ prompt, maxTokens, temperature, seed, scale }) {
  stopWriting = false;
  if (adapter) model.adapterScale = scale;
  const texts = {};
  try {
    for (const who of adapter ? ["adapter", "base"] : ["base"]) {
      const onText = (text) => tell("text", { who, text });
      texts[who] = await write(prompt, { enabled: who === "adapter", maxTokens, temperature, seed, onText });
    }
  } finally {
    if (adapter) model.adapterScale = 1;
  }
  return texts;
}

// ── Training ──

// What a checkpoint holds: the length of the run's facts, these as JSON, and the trainer's own state, which has the adapter.
const state = {
  async saveState() {
    const { examples, kept, ...facts } = training;
    const head = new TextEncoder().encode(JSON.stringify(facts)), saved = await trainer.saveState();
    const bytes = new Uint8Array(4 + head.length + saved.length);
    new DataView(bytes.buffer).setUint32(0, head.length);
    bytes.set(head, 4);
    bytes.set(saved, 4 + head.length);
    return bytes;
  },
  loadState(bytes) {
    const end = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
    this.facts = JSON.parse(new TextDecoder().decode(bytes.subarray(4, end)));
    this.trainer = bytes.slice(end);
    return { bitsMayDiffer: false };
  },
};

const MODULES = { all: [], attention: ["q_proj", "k_proj", "v_proj", "o_proj"], qv: ["q_proj", "v_proj"] };

function makeTrainer({ rank, alpha, modules, lr, steps, batchSize, seed }) {
  model.addAdapter({ rank, alpha, targetModules: MODULES[modules], seed });
  trainer = new LanguageTrainer(model, {
    optimizer: adamw({ lr, weightDecay: 0 }), schedule: linearSchedule({ warmup: Math.min(5, steps), total: steps + 1 }),
    maxGradNorm: 1, batchSize, seed,
  });
  adapter = true;
}

function forget() {
  trainer?.dispose();
  trainer = undefined;
  if (adapter) model.removeAdapter();
  adapter = false;
}

async function begin({ text, name, settings }) {
  const { examples, kept, notes } = prepare(text, settings.length);
  await run?.close();
  run = undefined;
  forget();
  makeTrainer(settings);
  training = { text, name, settings, step: 0, seconds: 0, losses: [], samples: [], examples, kept };
  run = await Checkpoints.open(name).catch((error) => void tell("unsaved", { message: error.message }));
  go();
  return { notes, examples: examples.length, held: kept.length };
}

/** Goes on with a run that was saved, perhaps by a page that is no more. */
async function resume({ name }) {
  await run?.close();
  run = await Checkpoints.open(name);
  const found = await run.restore(state);
  if (!found) throw problem("nothing-saved");
  forget();
  training = { ...state.facts, ...prepare(state.facts.text, state.facts.settings.length) };
  makeTrainer(training.settings);
  trainer.loadState(state.trainer);
  const { examples, kept, ...rest } = training;
  return rest;
}

let pausing = false, finished = Promise.resolve();

function go() {
  pausing = false;
  finished = loop().catch((error) => tell("failed", { message: error.message, code: error.code }));
}

async function loop() {
  const { settings } = training;
  const tokens = settings.batchSize * settings.length;
  if (!training.samples.length) await sample();
  let began = performance.now();
  const epochs = Math.ceil((settings.steps * settings.batchSize) / training.examples.length) + 1;
  for await (const { step, loss, gradNorm, skipped } of trainer.train(training.examples, { epochs })) {
    const seconds = (performance.now() - began) / 1000;
    training.step = step;
    training.seconds += seconds;
    training.losses.push([step, loss]);
    tell("step", { step, loss, gradNorm, skipped, tokensPerSecond: tokens / seconds, left: ((settings.steps - step) * training.seconds) / step });
    const last = step >= settings.steps;
    if (last || step % settings.every === 0) await sample();
    if (last || pausing || step % 10 === 0) await keep();
    if (last || pausing) break;
    began = performance.now();
  }
  tell("rest", { step: training.step, done: training.step >= settings.steps });
}

/** What the base and the adapter write now, and the loss of what was held out. */
async function sample() {
  const { settings, step, samples, kept } = training;
  const how = { maxTokens: settings.sampleTokens, temperature: settings.temperature, seed: settings.seed };
  stopWriting = false;
  const entry = { step, held: kept.length ? (await trainer.evaluate(kept)).loss : undefined };
  entry.text = step ? await write(settings.prompt, { ...how, enabled: true }) : await write(settings.prompt, { ...how, enabled: false });
  samples.push(entry);
  tell("sample", entry);
}

async function keep() {
  try {
    await run?.save(state);
  } catch (error) {
    tell("unsaved", { message: error.message });
  }
}

async function pause() {
  pausing = stopWriting = true;
  await finished;
}

const commands = {
  load,
  compare,
  begin,
  resume,
  // A training that is begun again goes on where it stood.
  async go() { trainer.loadState(await trainer.saveState()); go(); },
  pause,
  async stop() { await pause(); await run?.close(); run = undefined; return {}; },
  stopWriting() { stopWriting = true; },
  async save() { if (training && run) await keep(); },
  async runs() { return { runs: await Checkpoints.list() }; },
  async deleteRun({ name }) { await Checkpoints.delete(name); },
  adapter: async () => ({ files: await model.saveAdapter() }),
  async loadAdapter({ config, weights }) {
    forget();
    training = undefined;
    await model.loadAdapter({ config, weights });
    adapter = true;
    return {};
  },
  destroy() { gpu.device.destroy(); },
};

// One after the other, but for what ends something.
let turn = Promise.resolve();
onmessage = ({ data: { kind, id, ...data } }) => {
  const work = () => Promise.resolve(commands[kind](data)).then((answer) => tell("answer", { id, answer }), ({ message, code, line }) => tell("answer", { id, error: { message, code, line } }));
  if (["pause", "stop", "stopWriting"].includes(kind)) work();
  else turn = turn.then(work);
};
