// Language models: loading, adapters, generation and training by token ids.
import { RawCausalLM, type RawGeneration, type RawGpu, RawLanguageTrainer, safetensorsHeader } from "./wasm/lora_webgpu.js";
import { bind, boolean, checkOptions, disposable, finite, integer, seedNumber, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { type OptimizerSpec, rawOptions, type ScheduleSpec } from "./optim.js";
import type { TokenExample } from "./text.js";

/** A file's bytes, or a file of the user's, which is read in pieces. */
export type ModelFile = Uint8Array | Blob;

/** A model as Hugging Face keeps it. */
export interface ModelSource {
  /** `config.json`, or what it holds. */
  config: ModelFile | string | object;
  /** `model.safetensors`, or all files of a model in several. */
  weights: ModelFile | readonly ModelFile[];
  /** Ends the loading with the signal's reason. */
  signal?: AbortSignal;
  /** Told now and then how many bytes of the weights are on the GPU. */
  onProgress?: (progress: { loaded: number; total: number; tensor: string }) => void;
}

/** How an adapter on a whole model is made. */
export interface ModelAdapterOptions {
  /** Inner dimension of B·A. */
  rank: number;
  /** Numerator of the scaling; default: the rank. */
  alpha?: number;
  /** Modules by whole names or by their ends, such as `q_proj`; default: all linear layers. */
  targetModules?: readonly string[];
  /** Share of a layer's input that training drops before A; default 0. */
  dropout?: number;
  useRslora?: boolean;
  useDora?: boolean;
  loraBias?: boolean;
  /** The same seed gives the same bits on every device. */
  seed?: number;
}

/** Options of {@link CausalLM.generate}. */
export interface GenerateOptions {
  /** Most tokens to give. */
  maxTokens: number;
  /** What logits are divided by; 0, the default, takes the most likely token. */
  temperature?: number;
  /** Only this many most likely tokens; default: all. */
  topK?: number;
  /** Only the most likely tokens that make up this share; default 1. */
  topP?: number;
  /** Divides the positive logits of tokens that were there before, and multiplies the negative ones; default 1. */
  repetitionPenalty?: number;
  /** Tokens that end the text, not given themselves; default: the model's own. */
  stopTokenIds?: readonly number[];
  seed?: number;
  signal?: AbortSignal;
}

const PIECE = 1 << 20; // elements converted and written at a time
const SIZES: Readonly<Record<string, number>> = { F32: 4, F16: 2, BF16: 2, F64: 8 };

/** A decoder-only language model of Hugging Face's form, frozen, perhaps with an adapter: llama, mistral, qwen2, qwen3, bitnet. */
export class CausalLM {
  /** Tokens that there are. */
  readonly vocabSize: number;
  /** The longest sequence. */
  readonly maxPositions: number;
  /** Decoder layers. */
  readonly layers: number;
  /** Tokens that end a text, by the model's configuration. */
  readonly eosTokenIds: readonly number[];
  #raw: RawCausalLM;
  #enabled = true;
  #scale = 1;

  private constructor(raw: RawCausalLM) {
    this.#raw = raw;
    bind(this, raw);
    [this.vocabSize, this.maxPositions, this.layers] = raw.numbers() as unknown as [number, number, number];
    this.eosTokenIds = [...raw.eosTokenIds()];
  }

  /**
   * Loads a model, a piece of a tensor at a time. Rejects with code `unsupported` naming the field of the configuration or
   * the tensor that is not supported, `file` or `incomplete` for what is no such file, `unmatched` for tensors that are
   * missing or too many, `shape`, and `limit` for what the device cannot hold.
   */
  static async load(gpu: Gpu, source: ModelSource): Promise<CausalLM> {
    checkOptions("CausalLM.load", source, ["config", "weights", "signal", "onProgress"]);
    const { signal, onProgress } = source;
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    const files = (Array.isArray(source.weights) ? source.weights : [source.weights]) as ModelFile[];
    files.forEach((file) => checkFile("weights", file));
    const config = await configBytes(source.config);
    signal?.throwIfAborted();
    const found = new Map<string, { file: ModelFile; dtype: string; shape: number[]; start: number; end: number }>();
    for (const [i, file] of files.entries()) {
      const name = file instanceof Blob && "name" in file ? String(file.name) : `weights ${i}`;
      for (const { name: tensor, dtype, shape, start, end } of await header(name, file)) {
        if (found.has(tensor)) throw new LoraError("unmatched", `two of the files have the tensor \`${tensor}\``);
        found.set(tensor, { file, dtype, shape, start, end });
      }
    }
    const raw = new RawCausalLM(rawGpu, config);
    try {
      const names = raw.parameterNames();
      const shapes = raw.parameterShapes() as number[][];
      check(names, shapes, found, raw.numbers()[3] === 1);
      const total = names.reduce((sum, name) => sum + size(found.get(name)), 0);
      let loaded = 0;
      for (const [index, name] of names.entries()) {
        const { file, dtype, start, end } = found.get(name) as NonNullable<ReturnType<typeof found.get>>;
        const bytes = PIECE * (SIZES[dtype] as number);
        for (let at = start; at < end; at += bytes) {
          const piece = await slice(file, at, Math.min(at + bytes, end));
          signal?.throwIfAborted();
          raw.writeParameter(index, ((at - start) / bytes) * PIECE, dtype, piece);
          onProgress?.({ loaded: (loaded += piece.length), total, tensor: name });
        }
      }
    } catch (error) {
      raw.destroy();
      throw error;
    }
    return new CausalLM(raw);
  }

  /** Names of the linear layers that can have adapters. */
  get modules(): string[] {
    return this.#raw.modules();
  }

  /** Puts a new adapter on the model; B is zero, so that it changes nothing yet. */
  addAdapter(options: ModelAdapterOptions): void {
    const names = ["rank", "alpha", "targetModules", "dropout", "useRslora", "useDora", "loraBias", "seed"];
    checkOptions("addAdapter", options, names);
    const { rank, alpha = rank, targetModules = [], dropout = 0, seed = 0 } = options;
    const flags = [options.useRslora, options.useDora, options.loraBias].reduce(
      (sum: number, flag, bit) => sum + (boolean("flags", flag ?? false) ? 1 << bit : 0),
      0,
    );
    if (!Array.isArray(targetModules) || targetModules.some((name) => typeof name !== "string")) {
      throw new LoraError("invalid-argument", `targetModules: expected an array of names, got ${show(targetModules)}`);
    }
    const [r, a, d] = [integer("rank", rank), finite("alpha", alpha), finite("dropout", dropout)];
    this.#raw.newAdapter(r, a, [...targetModules], d, flags, seedNumber(seed));
    this.#scale = 1;
    this.adapterEnabled = true;
  }

  /** Puts an adapter of PEFT's two files on the model. */
  async loadAdapter(files: { config: ModelFile | string | object; weights: ModelFile }): Promise<void> {
    checkOptions("loadAdapter", files, ["config", "weights"]);
    checkFile("weights", files.weights);
    const { weights } = files;
    this.#raw.loadAdapter(await configBytes(files.config), await slice(weights, 0, length(weights)));
    this.#scale = 1;
    this.adapterEnabled = true;
  }

  /** PEFT's two files of the adapter as it is after what was submitted so far. */
  async saveAdapter(): Promise<{ config: string; weights: Uint8Array }> {
    const [config, weights] = (await this.#raw.saveAdapter()) as [string, Uint8Array];
    return { config, weights };
  }

  /** Takes the adapter away and frees its memory. */
  removeAdapter(): void {
    this.#raw.removeAdapter();
  }

  /** Whether the adapter takes part in what is begun from now on. */
  get adapterEnabled(): boolean {
    return this.#enabled;
  }
  set adapterEnabled(enabled: boolean) {
    this.#enabled = boolean("adapterEnabled", enabled);
    this.#raw.setEnabled(enabled);
  }

  /** A factor of the adapter's scaling, for what is begun from now on; 1 at first, and again for every new adapter. */
  get adapterScale(): number {
    return this.#scale;
  }
  set adapterScale(scale: number) {
    this.#raw.setScale(finite("adapterScale", scale));
    this.#scale = scale;
  }

  /** The logits `[tokens, vocabSize]` of a sequence. */
  async logits(inputIds: ArrayLike<number>): Promise<Float32Array> {
    return (await this.#raw.logits(1, ids("inputIds", inputIds), undefined)) as Float32Array;
  }

  /**
   * Goes on with `prompt`, a token at a time, with the adapter as it is when this begins. Ends after `maxTokens`, at a stop
   * token, or when its consumer breaks off.
   */
  async *generate(prompt: ArrayLike<number>, options: GenerateOptions): AsyncGenerator<number, void, undefined> {
    const names = ["maxTokens", "temperature", "topK", "topP", "repetitionPenalty", "stopTokenIds", "seed", "signal"];
    checkOptions("generate", options, names);
    const { maxTokens, temperature = 0, topK = 0, topP = 1, repetitionPenalty = 1, seed = 0, signal } = options;
    const stop = new Set(options.stopTokenIds ?? this.eosTokenIds);
    const generation: RawGeneration = this.#raw.generate(
      ids("prompt", prompt),
      integer("maxTokens", maxTokens),
      finite("temperature", temperature),
      integer("topK", topK, 0),
      finite("topP", topP),
      finite("repetitionPenalty", repetitionPenalty),
      seedNumber(seed),
    );
    try {
      for (;;) {
        signal?.throwIfAborted();
        const id = (await generation.nextToken()) as number | undefined;
        if (id === undefined || stop.has(id)) return;
        yield id;
      }
    } finally {
      generation.destroy();
    }
  }

  /** Frees the GPU memory of weights and adapter. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(CausalLM.prototype);

/** Options of {@link LanguageTrainer}. */
export interface LanguageTrainerOptions {
  optimizer: OptimizerSpec;
  /** How the learning rate changes; default: it does not. */
  schedule?: ScheduleSpec;
  /** Scale larger gradients down to this norm. */
  maxGradNorm?: number;
  /** Examples that go through the model together, the shorter ones padded; default 1. */
  batchSize?: number;
  /** Batches that make one step together, as one mean over all labels that count; default 1. */
  gradientAccumulation?: number;
  /** Compute a layer's activations again in the backward pass in place of keeping them all; default true. */
  checkpointing?: boolean;
  /** Of shuffling and dropout; default 0. */
  seed?: number;
}

/** What one step did. */
export interface LanguageStepRecord {
  /** Steps so far, skipped ones included. */
  step: number;
  /** From 0. */
  epoch: number;
  /** Mean over the labels that count, before the update. */
  loss: number;
  /** Norm of the gradients before clipping. */
  gradNorm: number;
  lr: number;
  /** Whether nothing was updated: loss or gradients were not finite, or no label counted. */
  skipped: boolean;
}

/** Trains the adapter of a {@link CausalLM} on token ids. */
export class LanguageTrainer {
  readonly #raw: RawLanguageTrainer;
  readonly #options: { batchSize: number; gradientAccumulation: number; seed: number };
  #active = false;
  // Where in the data it stands: times through, steps of the next one, and how many examples there are, 0 before the first step.
  #place = { epoch: 0, batch: 0, examples: 0 };
  #resume = false;

  /** Throws `invalid-argument` where the model has no adapter or another trainer has it. */
  constructor(model: CausalLM, options: LanguageTrainerOptions) {
    const names = ["optimizer", "schedule", "maxGradNorm", "batchSize", "gradientAccumulation", "checkpointing", "seed"];
    checkOptions("LanguageTrainer", options, names);
    const { optimizer, schedule, maxGradNorm, batchSize = 1, gradientAccumulation = 1, checkpointing = true, seed = 0 } = options;
    this.#options = {
      batchSize: integer("batchSize", batchSize),
      gradientAccumulation: integer("gradientAccumulation", gradientAccumulation),
      seed: seedNumber(seed),
    };
    const raw = unwrap<RawCausalLM>("model", CausalLM, model);
    this.#raw = new RawLanguageTrainer(raw, rawOptions(optimizer, schedule, maxGradNorm), boolean("checkpointing", checkpointing), seed);
    bind(this, this.#raw);
  }

  /** Steps submitted so far, skipped ones included. */
  get steps(): number {
    return this.#raw.attempts();
  }

  /**
   * Goes through the examples, shuffled anew each time, and yields a record of each step. Labels are the ids themselves where
   * they are to be learned, and −100 elsewhere. A second training of the same trainer rejects with code `busy`.
   */
  async *train(
    examples: readonly TokenExample[],
    options: { epochs?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<LanguageStepRecord, void, undefined> {
    checkOptions("train", options, ["epochs", "signal"]);
    const { epochs = 1, signal } = options;
    integer("epochs", epochs);
    checkExamples(examples);
    if (this.#active) throw new LoraError("busy", "train: this trainer is training already; expected its end");
    if (this.#resume && this.#place.examples > 0 && this.#place.examples !== examples.length) {
      throw new LoraError("checkpoint", `examples: expected the ${this.#place.examples} of the saved training, got ${examples.length}`);
    }
    this.#active = true;
    const { batchSize, gradientAccumulation, seed } = this.#options;
    const perStep = batchSize * gradientAccumulation;
    if (!this.#resume) this.#place = { epoch: 0, batch: 0, examples: examples.length };
    this.#resume = false;
    try {
      for (let { epoch, batch } = this.#place; epoch < epochs; epoch++, batch = 0) {
        const order = shuffled(examples.length, seed + epoch);
        for (; batch * perStep < order.length && !signal?.aborted; batch++) {
          const chosen = order.slice(batch * perStep, (batch + 1) * perStep).map((i) => examples[i] as TokenExample);
          const batches = [];
          for (let i = 0; i < chosen.length; i += batchSize) batches.push(padded(chosen.slice(i, i + batchSize)));
          const before = this.#raw.attempts();
          await this.#raw.step(batches);
          this.#place = { epoch, batch: batch + 1, examples: examples.length };
          const [loss, gradNorm, lr, outcome] = (await this.#raw.records(before)) as unknown as [number, number, number, number];
          yield { step: this.steps, epoch, loss, gradNorm, lr, skipped: outcome > 0 };
        }
      }
    } finally {
      this.#active = false;
    }
  }

  /** The mean loss over all labels of the examples that count, and its exponential. */
  async evaluate(examples: readonly TokenExample[]): Promise<{ loss: number; perplexity: number }> {
    checkExamples(examples);
    let [sum, count] = [0, 0];
    for (let i = 0; i < examples.length; i += this.#options.batchSize) {
      const batch = padded(examples.slice(i, i + this.#options.batchSize));
      const [loss, counted] = (await this.#raw.evaluate(batch)) as unknown as [number, number];
      [sum, count] = [sum + loss * counted, count + counted];
    }
    const loss = count > 0 ? sum / count : 0;
    return { loss, perplexity: Math.exp(loss) };
  }

  /**
   * The adapter with moments, step counter and the place in the data, after the steps submitted so far, as one safetensors file.
   * May be called while {@link train} goes on.
   */
  async saveState(): Promise<Uint8Array> {
    const { epoch, batch, examples } = this.#place;
    return (await this.#raw.saveState(epoch, batch, JSON.stringify({ examples }))) as Uint8Array;
  }

  /**
   * Takes over a saved state; the next {@link train} of the same examples goes on where it stood, with the same bits as if
   * there had been no interruption, unless `bitsMayDiffer` (saved with other kernels or on another kind of device). Throws
   * code `checkpoint` for anything else, and changes nothing then.
   */
  loadState(bytes: Uint8Array): { bitsMayDiffer: boolean } {
    if (!(bytes instanceof Uint8Array)) throw new LoraError("invalid-argument", `bytes: expected a Uint8Array, got ${show(bytes)}`);
    if (this.#active) throw new LoraError("busy", "loadState: this trainer is training; expected its end");
    const [epoch, batch, bitsMayDiffer, note] = this.#raw.loadState(bytes) as [number, number, boolean, string];
    const { examples } = JSON.parse(note) as { examples: number };
    this.#place = { epoch, batch, examples };
    this.#resume = true;
    return { bitsMayDiffer };
  }

  /** Frees the optimizer and the activations; the model keeps its adapter. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(LanguageTrainer.prototype);

function checkFile(name: string, file: unknown): void {
  if (!(file instanceof Uint8Array || file instanceof Blob)) {
    throw new LoraError("invalid-argument", `${name}: expected a Uint8Array, Blob or File, got ${show(file)}`);
  }
}

async function configBytes(config: ModelFile | string | object): Promise<Uint8Array> {
  if (config instanceof Uint8Array || config instanceof Blob) return slice(config, 0, length(config));
  if (typeof config !== "string" && (typeof config !== "object" || config === null)) {
    throw new LoraError("invalid-argument", `config: expected config.json or its object, got ${show(config)}`);
  }
  return new TextEncoder().encode(typeof config === "string" ? config : JSON.stringify(config));
}

const length = (file: ModelFile): number => (file instanceof Blob ? file.size : file.length);

async function slice(file: ModelFile, start: number, end: number): Promise<Uint8Array> {
  return file instanceof Blob ? new Uint8Array(await file.slice(start, end).arrayBuffer()) : file.subarray(start, end);
}

type Entry = { name: string; dtype: string; shape: number[]; start: number; end: number };

async function header(name: string, file: ModelFile): Promise<Entry[]> {
  const total = length(file);
  const first = await slice(file, 0, Math.min(8, total));
  const size = first.length < 8 ? 0 : Number(new DataView(first.buffer, first.byteOffset).getBigUint64(0, true));
  // What is no length is for the reader to refuse.
  const bytes = size <= 100_000_000 ? await slice(file, 0, Math.min(8 + size, total)) : first;
  return (JSON.parse(safetensorsHeader(name, bytes, total)) as { tensors: Entry[] }).tensors;
}

const size = (tensor: { start: number; end: number } | undefined): number => (tensor ? tensor.end - tensor.start : 0);

/** That the files have the model's tensors and no others, and each of its shape. */
function check(names: string[], shapes: number[][], found: ReadonlyMap<string, { dtype: string; shape: number[] }>, tied: boolean): void {
  for (const [i, name] of names.entries()) {
    const tensor = found.get(name);
    if (!tensor) throw new LoraError("unmatched", `the files lack the tensor \`${name}\` that the configuration asks for`);
    const [expected, got] = [JSON.stringify(shapes[i]), JSON.stringify(tensor.shape)];
    if (expected !== got) throw new LoraError("shape", `tensor \`${name}\`: expected ${expected} by the configuration, got ${got}`);
    if (!(tensor.dtype in SIZES)) {
      throw new LoraError("unsupported", `tensor \`${name}\`: ${tensor.dtype} is not supported; ${Object.keys(SIZES).join(", ")} are`);
    }
  }
  const own = new Set(names);
  for (const name of found.keys()) {
    // What older files hold beside the weights, and a copy of the embedding.
    const known = name.endsWith(".rotary_emb.inv_freq") || (tied && name === "lm_head.weight");
    if (!own.has(name) && !known) throw new LoraError("unmatched", `the files have the tensor \`${name}\` that the configuration does not know`);
  }
}

function ids(name: string, values: ArrayLike<number>): Int32Array {
  if (values instanceof Int32Array) return values;
  if (!Array.isArray(values) && !ArrayBuffer.isView(values)) {
    throw new LoraError("invalid-argument", `${name}: expected an array of token ids, got ${show(values)}`);
  }
  return Int32Array.from(values, (id) => integer(name, id, 0));
}

function checkExamples(examples: readonly TokenExample[]): void {
  if (!Array.isArray(examples) || examples.length === 0) {
    throw new LoraError("invalid-argument", `examples: expected at least one { inputIds, labels }, got ${Array.isArray(examples) ? "none" : show(examples)}`);
  }
  for (const [i, example] of examples.entries()) {
    const { inputIds, labels } = (example ?? {}) as Partial<TokenExample>;
    if (!(inputIds instanceof Int32Array && labels instanceof Int32Array)) {
      throw new LoraError("invalid-argument", `examples[${i}]: expected inputIds and labels as Int32Arrays, got ${show(inputIds)} and ${show(labels)}`);
    }
    if (inputIds.length === 0 || inputIds.length !== labels.length) {
      throw new LoraError("shape", `examples[${i}]: expected as many labels as ids, at least one, got ${labels.length} and ${inputIds.length}`);
    }
  }
}

/** One batch, padded right: sequences, ids, mask, and labels moved to the token that predicts them. */
function padded(examples: readonly TokenExample[]): [number, Int32Array, Int32Array, Int32Array] {
  const tokens = Math.max(...examples.map(({ inputIds }) => inputIds.length));
  const [all, mask, labels] = [0, 0, -100].map((fill) => new Int32Array(examples.length * tokens).fill(fill)) as [Int32Array, Int32Array, Int32Array];
  examples.forEach((example, i) => {
    all.set(example.inputIds, i * tokens);
    mask.fill(1, i * tokens, i * tokens + example.inputIds.length);
    labels.set(example.labels.subarray(1), i * tokens);
  });
  return [examples.length, all, mask, labels];
}

/** 0 … length − 1 in an order of the seed's: Fisher and Yates, by mulberry32. */
function shuffled(length: number, seed: number): number[] {
  const order = Array.from({ length }, (_, i) => i);
  let state = seed >>> 0;
  for (let i = length - 1; i > 0; i--) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    const j = Math.floor((((t ^ (t >>> 14)) >>> 0) / 4294967296) * (i + 1));
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}
