// The language model: everything that computes. The page sends `{ kind, id, … }` and gets `{ kind: "answer", id, … }` for each,
// besides what this worker tells by itself.
import { Tokenizer } from "@huggingface/tokenizers";
import {
  adamw, CausalLM, Checkpoints, chunkTokens, Gpu, importAdapter, LanguageTrainer, linearSchedule, loadPeft, merge, parseJsonl, readGguf, tokenizeExamples,
} from "lora-webgpu";
import { answer, codeOf, tell } from "./answer.js";

let gpu, model, language, trainer, run, training; // training: { settings, text, name, step, losses, samples, … }
let source; // of the model: { config, weights, index?, own? }, own being { name, fingerprint } of a visitor's
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
  if (!gpu) {
    gpu = await Gpu.request();
    gpu.lost.then(({ message }) => tell("lost", { message }));
    tell("device", { info: gpu.info });
  }
  const get = (name, onProgress) => fetched(new URL(`model/${name}`, base), onProgress);
  const json = async (name) => JSON.parse(await (await get(name)).text());
  const [config, tokens, tokensConfig, weights] = await Promise.all([
    json("config.json"), json("tokenizer.json"), json("tokenizer_config.json"),
    get("model.safetensors", (loaded, total) => tell("loading", { loaded, total })),
  ]);
  const next = await CausalLM.load(gpu, { config, weights, dtype: "f32" }); // small as it is, and faster so
  const words = languageOf(tokens, tokensConfig, next, tokensConfig.chat_template);
  words.start = [words.end]; // <|endoftext|> begins and ends every document
  return take(next, words, { config, weights: [weights] });
}

/** A loaded model in place of the one that is there. */
async function take(next, words, from) {
  await run?.close();
  run = training = undefined;
  forget();
  model?.dispose();
  [model, language, source] = [next, words, from];
  const { modules, layers, maxPositions, bytes } = model;
  return { modules, layers, maxPositions, bytes, merges: source.weights.length > 0, fingerprint: source.own?.fingerprint };
}

const INDEX = "model.safetensors.index.json"; // of a model in several files: which of them has which tensor

/** What a folder's files, or one GGUF file, say of a model before its weights are read. */
async function describe(files) {
  const get = (name) => files.find((file) => file.name === name);
  const json = async (name) => {
    try {
      return JSON.parse((await get(name)?.text()) ?? "null");
    } catch {
      throw problem("bad-json", { what: name });
    }
  };
  const gguf = files.find(({ name }) => /\.gguf$/i.test(name));
  if (gguf && !get("config.json")) {
    const { metadata, tokenizer, tokenizerConfig } = await readGguf(gguf);
    const architecture = metadata.get("general.architecture"), own = (key) => metadata.get(`${architecture}.attention.${key}`);
    // As much of a config.json as an adapter for llama.cpp needs.
    const config = { model_type: String(architecture).startsWith("bitnet") ? "bitnet" : architecture, num_attention_heads: own("head_count"), num_key_value_heads: own("head_count_kv") ?? null };
    return { from: { gguf }, parts: [gguf], config, weights: [], tokenizer, tokenizerConfig, template: tokenizerConfig.chat_template };
  }
  for (const name of ["config.json", "tokenizer.json"]) if (!get(name)) throw problem("no-file", { what: name });
  const [config, tokenizer, tokenizerConfig, index] = await Promise.all(["config.json", "tokenizer.json", "tokenizer_config.json", INDEX].map(json));
  const names = get("model.safetensors") || !index?.weight_map ? ["model.safetensors"] : [...new Set(Object.values(index.weight_map))];
  const weights = names.map(get).filter(Boolean); // what is missing, the loading tells
  const template = (await get("chat_template.jinja")?.text()) ?? tokenizerConfig?.chat_template;
  return { from: { folder: files }, parts: [get("config.json"), ...weights], config, weights, index: index ? get(INDEX) : undefined, tokenizer, tokenizerConfig: tokenizerConfig ?? {}, template };
}

/** Tells whether files are those of a saved run: of names, sizes, and the first and last mebibyte. */
async function fingerprint(files) {
  const parts = files.flatMap((file) => [`${file.name} ${file.size}\n`, file.slice(0, 1 << 20), file.slice(-(1 << 20))]);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer()));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A visitor's model in place of the one that is there, which stays where the files are not right. */
async function open({ files, name, dtype }) {
  const { from, parts, config, weights, index, tokenizer, tokenizerConfig, template } = await describe(files);
  const next = await CausalLM.load(gpu, { ...from, dtype, onProgress: ({ loaded, total }) => tell("loading", { loaded, total }) });
  try {
    const words = languageOf(tokenizer, tokenizerConfig, next, template, config);
    return await take(next, words, { config, weights, index, own: { name, fingerprint: await fingerprint(parts) } });
  } catch (error) {
    next.dispose();
    throw error;
  }
}

// ── Texts ──

/** How chats are written, by a token of the model's own template; else as questions and answers. */
const CHATS = {
  "<|im_start|>": [(role, content) => `<|im_start|>${role}\n${content}<|im_end|>\n`, "<|im_start|>assistant\n"],
  "<|start_header_id|>": [(role, content) => `<|start_header_id|>${role}<|end_header_id|>\n\n${content}<|eot_id|>`, "<|start_header_id|>assistant<|end_header_id|>\n\n"],
};

/** A model's way with texts: `encode`, `decode`, the tokens that begin and end them, and how chats are written. */
function languageOf(json, tokenizerConfig, { eosTokenIds }, template, config = {}) {
  let tokenizer;
  try {
    tokenizer = new Tokenizer(json, tokenizerConfig);
    tokenizer.encode("a");
  } catch (error) {
    throw problem("bad-tokenizer", { what: error.message });
  }
  const id = (token) => (token == null ? undefined : tokenizer.token_to_id(token.content ?? token));
  const bos = id(tokenizerConfig.bos_token) ?? config.bos_token_id, end = id(tokenizerConfig.eos_token) ?? eosTokenIds[0];
  const closing = end === undefined ? "" : tokenizer.id_to_token(end) ?? "";
  const answers = [(role, content) => (role === "user" ? `Question: ${content}\n\n` : role === "assistant" ? `Answer: ${content}${closing}` : `${content}\n\n`), "Answer:"];
  const [message, reply] = CHATS[Object.keys(CHATS).find((token) => JSON.stringify(template ?? "").includes(token))] ?? answers;
  return {
    encode: (text) => (text ? tokenizer.encode(text, { add_special_tokens: false }).ids : []),
    decode: (ids) => (ids.length ? tokenizer.decode(ids, { skip_special_tokens: true }) : ""), // the library refuses none
    start: bos !== undefined && tokenizer.encode("a").ids[0] === bos ? [bos] : [],
    end,
    first: bos ?? end ?? 0, // where there is nothing else to go on after
    stops: [...new Set([...eosTokenIds, ...(end === undefined ? [] : [end])])],
    chatTemplate: (messages, addGenerationPrompt) => messages.map(({ role, content }) => message(role, content)).join("") + (addGenerationPrompt ? reply : ""),
  };
}

const problem = (code, more) => Object.assign(new Error(), { code, ...more });

/** A text's examples: of JSON lines each its own, else pieces of `length` tokens. The last tenth is held out. `notes` say what was lost. */
function prepare(text, length) {
  if (!text.trim()) throw problem("empty-text");
  let examples, notes = {};
  if (/^\s*\{/.test(text)) {
    const { examples: parsed, errors } = parseJsonl(text);
    if (!parsed.length) throw problem("bad-lines", { line: errors[0] });
    const { encode, chatTemplate, start, end } = language;
    const tokenized = tokenizeExamples(parsed, { encode, maxTokens: length, bosTokenId: start[0], eosTokenId: end, chatTemplate });
    const { truncated, tokensDropped, dropped } = tokenized;
    examples = tokenized.examples;
    notes = { badLines: errors.length, firstBad: errors[0], truncated, tokensDropped, dropped: dropped.length, length };
    if (!examples.length) throw problem("all-dropped", { what: length });
  } else {
    const { encode, start, end } = language;
    examples = chunkTokens([...start, ...encode(text), ...(end === undefined ? [] : [end])], { length });
  }
  if (!examples.length) throw problem("empty-text");
  const kept = examples.length >= 10 ? examples.slice(-Math.max(1, Math.min(4, Math.floor(examples.length / 10)))) : [];
  return { examples: examples.slice(0, examples.length - kept.length), kept, notes };
}

// ── Writing ──

/** The model's continuation; `onText` hears of it as it grows. */
async function write(prompt, { enabled, maxTokens, temperature, seed, onText }) {
  const ids = [], { encode, decode, start, first, stops } = language;
  const before = [...start, ...encode(prompt)];
  model.adapterEnabled = enabled;
  try {
    for await (const id of model.generate(before.length ? before : [first], { maxTokens, temperature, topP: 0.95, seed, stopTokenIds: stops })) {
      ids.push(id);
      onText?.(decode(ids));
      if (stopWriting) break;
    }
  } finally {
    model.adapterEnabled = true;
  }
  return language.decode(ids);
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
  adapter = true;
  trainer = new LanguageTrainer(model, {
    optimizer: adamw({ lr, weightDecay: 0 }), schedule: linearSchedule({ warmup: Math.min(5, steps), total: steps + 1 }),
    maxGradNorm: 1, batchSize, seed,
  });
}

function forget() {
  trainer?.dispose();
  trainer = undefined;
  if (adapter) model.removeAdapter();
  adapter = false;
}

async function closeRun() {
  await run?.close();
  run = undefined;
}

/** Puts another adapter in the place of the one that is there, which comes back where `make` fails. */
async function exchange(make) {
  const old = adapter ? await model.saveAdapter() : undefined;
  forget();
  training = undefined;
  try {
    await make();
  } catch (error) {
    forget();
    if (old) await model.loadAdapter(old);
    adapter = Boolean(old);
    throw error;
  }
  adapter = true;
}

async function begin({ text, name, settings }) {
  const { examples, kept, notes } = prepare(text, settings.length);
  await closeRun();
  forget();
  makeTrainer(settings);
  training = { text, name, settings, model: source.own, step: 0, losses: [], samples: [], examples, kept };
  run = await Checkpoints.open(name).catch((error) => void tell("unsaved", { message: error.message }));
  go();
  return { notes, examples: examples.length, held: kept.length };
}

/** Goes on with a run that was saved, perhaps by a page that is no more. */
async function resume({ name }) {
  await closeRun();
  run = await Checkpoints.open(name);
  try {
    if (!(await run.restore(state))) throw problem("nothing-saved");
    const { facts } = state, { model: its } = facts;
    if (its?.fingerprint !== source.own?.fingerprint) throw problem("other-model", { what: its?.name, fingerprint: its?.fingerprint });
    const texts = prepare(facts.text, facts.settings.length);
    await exchange(() => {
      makeTrainer(facts.settings);
      trainer.loadState(state.trainer);
    });
    training = { ...facts, ...texts };
  } catch (error) {
    await closeRun(); // somebody may want to delete it
    throw error;
  }
  const { examples, kept, ...rest } = training;
  return rest;
}

let pausing = false, saving = false, finished = Promise.resolve();

function go() {
  pausing = saving = false;
  finished = loop().catch(async (error) => tell("failed", { message: error.message, code: await codeOf(error, gpu) }));
}

async function loop() {
  const { settings } = training;
  const tokens = settings.batchSize * settings.length;
  if (!training.samples.length) await sample();
  let began = performance.now(), first; // first: the step and the time from which the pace is taken, samples in between included
  const epochs = Math.ceil((settings.steps * settings.batchSize) / training.examples.length) + 1;
  for await (const { step, loss, gradNorm, skipped } of trainer.train(training.examples, { epochs })) {
    const now = performance.now();
    training.step = step;
    training.losses.push([step, loss]);
    first ??= { step, now }; // which has waited for the compiler
    const pace = step > first.step ? (now - first.now) / 1000 / (step - first.step) : undefined;
    tell("step", { step, loss, gradNorm, skipped, tokensPerSecond: (1000 * tokens) / (now - began), left: step < settings.steps ? (settings.steps - step) * pace : 0 });
    const last = step >= settings.steps;
    if (last || step % settings.every === 0) await sample();
    if (last || pausing || saving || step % 10 === 0) await keep();
    if (last || pausing) break;
    began = performance.now();
  }
  const done = training.step >= settings.steps;
  if (done) await closeRun();
  tell("rest", { step: training.step, done });
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
  saving = false;
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

answer({
  load,
  open,
  compare,
  begin,
  resume,
  // A training that is begun again goes on where it stood.
  async go() { trainer.loadState(await trainer.saveState()); go(); },
  pause,
  async stop() { await pause(); await closeRun(); return {}; },
  stopWriting() { stopWriting = true; },
  // After the step that is under way: until then its record is not among the run's facts, though the trainer's state may have it.
  save() { saving = true; },
  async runs() { return { runs: await Checkpoints.list() }; },
  async deleteRun({ name }) { await Checkpoints.delete(name); },
  /** Of a text, before it is learned: how many examples, and what is lost of it. */
  look({ text, length }) {
    const { examples, kept, notes } = prepare(text, length);
    return { notes, examples: examples.length + kept.length };
  },
  estimate: ({ rank, alpha, modules, batchSize, length }) =>
    model.estimate({ rank, alpha, targetModules: MODULES[modules], batch: batchSize, tokens: Math.min(length, model.maxPositions) }),
  /** The files to download, by name: the adapter as PEFT's or llama.cpp's, or the model's with the adapter in them. */
  async adapter({ as }) {
    const { config, weights } = await model.saveAdapter();
    const saved = await loadPeft({ config: JSON.parse(config), weights });
    if (as === "peft") return { files: { "adapter.zip": saved.files().zip() } };
    if (as === "gguf") return { files: { "adapter.gguf": new Blob([await saved.toGguf({ modelConfig: source.config })]) } };
    const merged = await merge({ adapter: saved, model: source.weights });
    const files = Object.fromEntries(source.weights.map(({ name = "model.safetensors" }, i) => [name, merged[i]]));
    // Tensors stay in their files, and as large.
    return { files: source.index ? { ...files, [INDEX]: source.index } : files };
  },
  /** An adapter's files as a visitor has them: a zip, PEFT's two, or llama.cpp's. One that does not fit leaves the one that was there. */
  async loadAdapter({ files }) {
    const gguf = files.find(({ name }) => /\.gguf$/i.test(name));
    const opened = await (gguf ? importAdapter({ format: "gguf", file: gguf, modelConfig: source.config }) : loadPeft(files.length === 1 ? files[0] : files));
    const { config, weights } = opened.files();
    await closeRun();
    await exchange(() => model.loadAdapter({ config, weights }));
    const { modules, parameters, notes } = opened;
    return { modules: modules.length, of: model.modules.length, ranks: [...new Set(modules.map(({ rank }) => rank))], parameters, notes };
  },
  destroy() { gpu.device.destroy(); },
}, { gpu: () => gpu, now: ["pause", "stop", "stopWriting", "runs", "deleteRun"] });
