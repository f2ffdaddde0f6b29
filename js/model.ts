// Language models: loading, adapters, generation and training by token ids.
import { RawAdapterConfig, type RawCausalLM, type RawGeneration, type RawGpu, RawLanguageTrainer, RawModelLoader } from "./wasm/lora_webgpu.js";
import { compileAhead } from "./adopt.js";
import { bind, boolean, checkOptions, checkSignal, disposable, finite, ids, integer, oneOf, seedNumber, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { type OptimizerSpec, rawOptions, type ScheduleSpec } from "./optim.js";
import { PeftAdapter } from "./peft.js";
import { checkSource, configBytes, fill, isFile, length, type ModelFile, type ModelSource, openModel, slice } from "./source.js";
import type { TokenExample } from "./text.js";
import { lot, type RunOptions, type StepRecord, Training } from "./training.js";

/** How an adapter on a whole model is made. */
export interface ModelAdapterOptions {
  /** Inner dimension of B·A. */
  rank: number;
  /** Numerator of the scaling; default: the rank. */
  alpha?: number;
  /**
   * Modules by whole names or by their ends, such as `q_proj`, `embed_tokens` or `lm_head`; default: all linear layers but the
   * output head.
   */
  targetModules?: readonly string[];
  /** Modules that are trained whole beside the adapter, by the ends of their names, such as `lm_head` or `norm`; default: none. */
  modulesToSave?: readonly string[];
  /** Share of a layer's input that training drops before A; default 0. */
  dropout?: number;
  /** Scale by `alpha / √rank` in place of `alpha / rank`. */
  useRslora?: boolean;
  /** Train the rows' magnitudes apart from their directions (DoRA). */
  useDora?: boolean;
  /** A trained bias beside B. */
  loraBias?: boolean;
  /** Which of the model's own biases are trained: those of the adapted modules, or all; default "none". */
  bias?: "none" | "lora_only" | "all";
  /** How A and B start, by one of {@link AdapterInit} that leaves the base as it is; default "peft". */
  init?: "peft" | "gaussian" | "orthogonal";
  /** The same seed gives the same bits on every device. */
  seed?: number;
}

const ADAPTER_OPTIONS = ["rank", "alpha", "targetModules", "modulesToSave", "dropout", "useRslora", "useDora", "loraBias", "bias", "init", "seed"];

const BIASES = ["none", "lora_only", "all"] as const;
const INITS = ["peft", "gaussian", "orthogonal"] as const;

/** Options of {@link CausalLM.estimate}. */
export interface EstimateOptions extends ModelAdapterOptions {
  /** Tokens of the longest example. */
  tokens: number;
  /** Examples that go through the model together; default 1. */
  batch?: number;
  /** As the trainer's; default true. */
  checkpointing?: boolean;
  /** Bytes of GPU memory that may be used; default: as many as it takes. */
  budget?: number;
}

/** Bytes of GPU memory. */
export interface MemoryEstimate {
  /** The frozen weights. */
  weights: number;
  /** The adapter, its gradients and the optimizer's moments. */
  adapter: number;
  /** All that grows with the tokens of a batch. */
  activations: number;
  /** All three. */
  total: number;
  /** The largest single buffer. */
  largest: number;
  /** The largest that the device allows. */
  limit: number;
  /** Whether the total is within the budget, and the largest buffer within the limit. */
  fits: boolean;
  /** Options by which it would fit; empty where it does. */
  advice: string[];
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
  /** The same seed gives the same tokens; default 0. */
  seed?: number;
  /** Ends the text with an error, the signal's reason. */
  signal?: AbortSignal;
}

/** The device of a model. @internal */
export let gpuOf: (model: CausalLM) => Gpu;

/** A decoder-only language model of Hugging Face's form, frozen, perhaps with an adapter: llama, mistral, qwen2, qwen3, bitnet. */
export class CausalLM {
  /** Tokens that there are. */
  readonly vocabSize: number;
  /** The longest sequence. */
  readonly maxPositions: number;
  /** Decoder layers. */
  readonly layers: number;
  /** Bytes of GPU memory of the frozen weights. */
  readonly bytes: number;
  /** Tokens that end a text, by the model's configuration. */
  readonly eosTokenIds: readonly number[];
  readonly #gpu: Gpu;
  #raw: RawCausalLM;
  #enabled = true;
  #scale = 1;

  static {
    gpuOf = (model) => model.#gpu;
  }

  private constructor(gpu: Gpu, raw: RawCausalLM) {
    this.#gpu = gpu;
    this.#raw = raw;
    bind(this, raw, "a CausalLM");
    [this.vocabSize, this.maxPositions, this.layers, this.bytes] = raw.numbers() as unknown as [number, number, number, number];
    this.eosTokenIds = [...raw.eosTokenIds()];
  }

  /**
   * Loads a model, a piece of a tensor at a time. Rejects with code `unsupported` naming the field of the configuration or
   * the tensor that is not supported, `file` or `incomplete` for what is no such file or cannot be had, `unmatched` for tensors
   * that are missing or too many, `shape`, `limit` for what the device cannot hold, and the signal's reason.
   */
  static async load(gpu: Gpu, source: ModelSource): Promise<CausalLM> {
    checkSource(source);
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    source.signal?.throwIfAborted();
    const opened = await openModel(source);
    source.signal?.throwIfAborted();
    const raw = new RawModelLoader(rawGpu);
    try {
      await fill(raw, opened, source, () => gpu.finished());
      return new CausalLM(gpu, raw.finish());
    } finally {
      raw.destroy();
    }
  }

  /** Names of the layers' linear modules. `model.embed_tokens` and `lm_head` can have adapters, too. */
  get modules(): string[] {
    return this.#raw.modules();
  }

  /** Puts a new adapter on the model; B is zero, so that it changes nothing yet. */
  addAdapter(options: ModelAdapterOptions): void {
    checkOptions("addAdapter", options, ADAPTER_OPTIONS);
    const config = adapterConfig(options);
    try {
      this.#raw.newAdapter(config, seedNumber(options.seed ?? 0));
    } finally {
      config.free();
    }
    this.#scale = 1;
    this.adapterEnabled = true;
  }

  /**
   * GPU memory that training a new adapter with AdamW will hold, in bytes, with batches of at most so many examples of at most so
   * many tokens, and whether the device can hold the largest buffer of it. WebGPU does not say how much memory there is: `budget` is how much may be used. `advice` says what would make it fit.
   */
  estimate(options: EstimateOptions): MemoryEstimate {
    checkOptions("estimate", options, [...ADAPTER_OPTIONS, "tokens", "batch", "checkpointing", "budget"]);
    const { batch = 1, checkpointing = true, budget = Infinity } = options;
    const tokens = integer("tokens", options.tokens);
    integer("batch", batch);
    boolean("checkpointing", checkpointing);
    seedNumber(options.seed ?? 0);
    if (tokens > this.maxPositions) {
      throw new LoraError("invalid-argument", `tokens: expected at most the model's ${this.maxPositions} positions, got ${tokens}`);
    }
    if (!(typeof budget === "number" && budget > 0)) throw new LoraError("invalid-argument", `budget: expected a number of bytes above 0, got ${show(budget)}`);
    const measure = (batch: number, tokens: number, checkpointing: boolean) => {
      const config = adapterConfig(options);
      try {
        const [weights, adapter, activations, largest, limit] = this.#raw.estimate(config, batch, padded(tokens, this.maxPositions), checkpointing) as unknown as [number, number, number, number, number];
        const total = weights + adapter + activations;
        return { weights, adapter, activations, total, largest, limit, fits: total <= budget && largest <= limit };
      } finally {
        config.free();
      }
    };
    const own = measure(batch, tokens, checkpointing);
    const advice: string[] = [];
    if (!own.fits) {
      // Halves, until it does.
      const halve = (from: number, least: number, fits: (n: number) => boolean): number | undefined => {
        for (let n = from; n >= least; n = Math.floor(n / 2)) if (fits(n)) return n;
        return undefined;
      };
      if (!checkpointing && measure(batch, tokens, true).fits) advice.push("checkpointing: true");
      const smaller = halve(batch - 1, 1, (n) => measure(n, tokens, checkpointing).fits);
      if (smaller) advice.push(`batch: ${smaller}, with gradientAccumulation: ${Math.ceil(batch / smaller)}`);
      const shorter = halve(Math.floor(tokens / 2), 8, (n) => measure(batch, n, checkpointing).fits);
      if (shorter) advice.push(`tokens: ${shorter}`);
      if (advice.length === 0) {
        const least = halve(tokens, 8, (n) => measure(1, n, true).fits);
        if (least) advice.push(`batch: 1, tokens: ${least}, checkpointing: true`);
        else advice.push(own.weights > budget / 2 ? 'a smaller model, or its weights packed: dtype "q8_0"' : "a lower rank or fewer targetModules");
      }
    }
    return { ...own, advice };
  }

  /**
   * Puts an adapter on the model: PEFT's two files, or what {@link loadPeft} or {@link importAdapter} made of whatever it came in.
   * Rejects with code `unmatched` where a tensor of it has no place in the model, `shape`, `unsupported`, `file`.
   */
  async loadAdapter(adapter: PeftAdapter | { config: ModelFile | string | object; weights: ModelFile; zip?: unknown }): Promise<void> {
    const files = adapter instanceof PeftAdapter ? adapter.files() : adapter;
    checkOptions("loadAdapter", files, ["config", "weights", "zip"]); // `zip` of files() and savePeft()
    checkFile("weights", files.weights);
    const { weights } = files;
    this.#raw.loadAdapter(await configBytes(files.config), await slice(weights, 0, length(weights)));
    this.#scale = 1;
    this.adapterEnabled = true;
  }

  /** PEFT's two files of the adapter as it is after what was submitted so far; {@link adapterScale} is no part of it. */
  async saveAdapter(): Promise<{ config: string; weights: Uint8Array }> {
    const [config, weights] = (await this.#raw.saveAdapter()) as [string, Uint8Array];
    return { config, weights };
  }

  /** Takes the adapter away and frees its memory. Throws `invalid-argument` while a trainer updates it: dispose of that first. */
  removeAdapter(): void {
    this.#raw.removeAdapter();
  }

  /**
   * Whether the adapter takes part in what is begun from now on: {@link logits}, an evaluation, or {@link generate} when its first
   * `next()` is called, so that what was switched off for it can be switched on again in the same turn. A step of a training needs it.
   */
  get adapterEnabled(): boolean {
    return this.#enabled;
  }
  set adapterEnabled(enabled: boolean) {
    this.#enabled = boolean("adapterEnabled", enabled);
    this.#raw.setEnabled(enabled);
  }

  /**
   * A factor of the adapter's scaling, for what is begun from now on, as {@link adapterEnabled} says; 1 at first, and again for every
   * new adapter. A step of a training needs it to be 1, and neither {@link saveAdapter} nor a checkpoint has it.
   */
  get adapterScale(): number {
    return this.#scale;
  }
  set adapterScale(scale: number) {
    this.#raw.setScale(finite("adapterScale", scale));
    this.#scale = scale;
  }

  /** The logits `[tokens, vocabSize]` of a sequence. */
  async logits(inputIds: ArrayLike<number>): Promise<Float32Array> {
    return (await this.#raw.logits(ids("inputIds", inputIds))) as Float32Array;
  }

  /**
   * Goes on with `prompt`, a token at a time, with the adapter as it is when this begins. Ends after `maxTokens`, at a stop
   * token, or when its consumer breaks off.
   */
  async *generate(prompt: ArrayLike<number>, options: GenerateOptions): AsyncGenerator<number, void, undefined> {
    const names = ["maxTokens", "temperature", "topK", "topP", "repetitionPenalty", "stopTokenIds", "seed", "signal"];
    checkOptions("generate", options, names);
    const { maxTokens, temperature = 0, topK = 0, topP = 1, repetitionPenalty = 1, seed = 0, signal } = options;
    checkSignal(signal);
    const stop = new Set(ids("stopTokenIds", options.stopTokenIds ?? this.eosTokenIds));
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
  /** The update rule: `adamw()` or `sgd()`. */
  optimizer: OptimizerSpec;
  /** How the learning rate changes; default: it does not. */
  schedule?: ScheduleSpec;
  /** Scale larger gradients down to this norm. */
  maxGradNorm?: number;
  /** Examples that go through the model together, the shorter ones padded; default 1. */
  batchSize?: number;
  /**
   * Put several examples into one row of at most this many tokens, where they do not see each other, so that little is padded; at
   * most the model's positions. Rows count for `batchSize` then. Default: one example a row.
   */
  packTo?: number;
  /** Batches that make one step together, as one mean over all labels that count; default 1. */
  gradientAccumulation?: number;
  /** Compute a layer's activations again in the backward pass in place of keeping them all; default true. */
  checkpointing?: boolean;
  /** Of shuffling and dropout; default 0. */
  seed?: number;
}

/** Options of {@link LanguageTrainer.train}. */
export interface LanguageTrainOptions extends RunOptions {
  /** Evaluate now and then, and stop early. */
  validation?: {
    /** What to evaluate on. */
    examples: readonly TokenExample[];
    /** Steps between two evaluations. */
    every: number;
    /**
     * End after this many evaluations without a new lowest loss; default: never. The adapter is the last one then: to keep the best,
     * have `logEvery` be `every`, and save it in the loop when a record's `validationLoss` is the lowest so far.
     */
    patience?: number;
  };
}

/** Rows; of each token its id, the number of its example in its row or 0, and its label; and how many of them are no padding. */
type TokenBatch = [number, Int32Array, Int32Array, Int32Array, number];

/** Trains the adapter of a {@link CausalLM} on token ids. */
export class LanguageTrainer extends Training<TokenBatch> {
  readonly #options: LanguageTrainerOptions & { batchSize: number; gradientAccumulation: number; seed: number; packTo: number };
  #model: CausalLM;
  // Shapes of batches whose kernels were compiled, and where.
  readonly #ready = new Set<string>();
  #readyOn: Gpu | undefined;

  /** Throws `invalid-argument` where the model has no adapter or another trainer has it. */
  constructor(model: CausalLM, options: LanguageTrainerOptions) {
    const names = ["optimizer", "schedule", "maxGradNorm", "batchSize", "packTo", "gradientAccumulation", "checkpointing", "seed"];
    checkOptions("LanguageTrainer", options, names);
    const { batchSize = 1, gradientAccumulation = 1, checkpointing = true, packTo = 0, seed = 0 } = options;
    integer("batchSize", batchSize);
    integer("gradientAccumulation", gradientAccumulation);
    seedNumber(seed);
    integer("packTo", packTo, options.packTo === undefined ? 0 : 2);
    unwrap<RawCausalLM>("model", CausalLM, model);
    if (packTo > model.maxPositions) {
      throw new LoraError("invalid-argument", `packTo: expected at most the model's ${model.maxPositions} positions, got ${packTo}`);
    }
    const own = { ...options, batchSize, gradientAccumulation, checkpointing: boolean("checkpointing", checkpointing), packTo, seed };
    const raw = languageTrainer(model, own);
    super(gpuOf(model), raw, gradientAccumulation);
    this.#options = own;
    this.#model = model;
  }

  /**
   * Goes through the examples, shuffled anew each time, and yields a record every `logEvery` steps and at the end. Labels are the
   * ids themselves where they are to be learned, and −100 elsewhere. An example that is longer than the model's positions or
   * `packTo` (code `shape`), or has ids that the model lacks (`invalid-argument`), is refused before the first step. `break` ends it after the steps that were submitted. That is
   * an end: the next training begins at the first example. A pause is `break` and `trainer.loadState(await trainer.saveState())`,
   * after which the next training goes on where this one stood. A second training of the same trainer rejects with code `busy`.
   */
  async *train(examples: readonly TokenExample[], options: LanguageTrainOptions = {}): AsyncGenerator<StepRecord, void, undefined> {
    checkOptions("train", options, ["epochs", "signal", "logEvery", "inFlight", "resume", "validation", "checkpoints", "onCompile"]);
    const { batchSize, gradientAccumulation, seed, packTo } = this.#options;
    const { validation } = options;
    yield* this.run(options, 1, () => {
      checkExamples("examples", examples, this.#model, packTo);
      if (validation !== undefined) {
        checkOptions("validation", validation, ["examples", "every", "patience"]);
        checkExamples("validation.examples", validation.examples, this.#model, packTo);
        integer("validation.every", validation.every);
        if (validation.patience !== undefined) integer("validation.patience", validation.patience);
      }
      return {
        epoch: (epoch, start) => {
          const order = shuffled(examples.length, lot(seed, epoch));
          return { batches: this.#batches(order.map((i) => examples[i] as TokenExample), start), skip: 0 };
        },
        length: packTo > 0 ? undefined : Math.ceil(examples.length / batchSize),
        same: { name: "examples", length: examples.length },
        data: `batchSize ${batchSize}, gradientAccumulation ${gradientAccumulation}, packTo ${packTo || "none"}`,
        validation: validation && {
          every: validation.every,
          patience: validation.patience ?? Infinity,
          evaluate: async () => (await this.#evaluate(validation.examples)).loss,
        },
      };
    });
  }

  /**
   * The mean loss over all labels of the examples that count, and its exponential; at any time, also between the steps of a
   * training.
   */
  evaluate(examples: readonly TokenExample[]): Promise<{ loss: number; perplexity: number }> {
    return this.using(async () => {
      checkExamples("examples", examples, this.#model, this.#options.packTo);
      return this.#evaluate(examples);
    });
  }

  /**
   * Goes on on another device after this one was lost: on `model`, the same one loaded there, with an adapter like the one that
   * was trained. It gets the newest state that was kept: by a checkpoint, {@link saveState} or {@link loadState}, else that before
   * the first step. The next {@link train} with the same examples gives the same bits as if nothing had happened, unless
   * `bitsMayDiffer`. Call it when the training that was under way has ended, with code `device-lost`.
   */
  async recover(model: CausalLM): Promise<{ bitsMayDiffer: boolean }> {
    unwrap<RawCausalLM>("model", CausalLM, model);
    return this.replace(gpuOf(model), () => {
      const raw = languageTrainer(model, this.#options);
      return { raw, use: () => void (this.#model = model), drop: () => raw.destroy() };
    });
  }

  /** @internal */
  protected async submit(batches: TokenBatch[]): Promise<{ submitted: Promise<unknown>; tokens: number }> {
    const raw = this.raw as RawLanguageTrainer;
    this.#expectAdapter();
    if (this.#readyOn !== this.gpu) this.#ready.clear();
    this.#readyOn = this.gpu;
    for (const [rows, ids] of batches) {
      const shape: [number, number] = [rows, ids.length / rows];
      if (this.#ready.has(String(shape))) continue;
      if (raw.missing(...shape) > 0) await compileAhead(this.gpu.device, (keep) => void raw.compile(...shape, keep), this.onCompile);
      this.#ready.add(String(shape));
    }
    this.#expectAdapter(); // as compiling took its time
    const before = raw.attempts();
    const submitted = raw.step(batches) as Promise<unknown>;
    // The first time that a shape comes, the update follows when the GPU has accepted all else.
    if (this.raw.attempts() === before) await submitted;
    return { submitted, tokens: batches.reduce((sum, batch) => sum + batch[4], 0) };
  }

  /** A step trains what the adapter is, and not what somebody looks at. */
  #expectAdapter(): void {
    const { adapterEnabled, adapterScale } = this.#model;
    if (!adapterEnabled) throw new LoraError("invalid-argument", "adapterEnabled: expected true for a step of a training, got false");
    if (adapterScale !== 1) throw new LoraError("invalid-argument", `adapterScale: expected 1 for a step of a training, got ${adapterScale}`);
  }

  async #evaluate(examples: readonly TokenExample[]): Promise<{ loss: number; perplexity: number }> {
    let [sum, count] = [0, 0];
    for (const batch of this.#batches(examples, 0)) {
      const [loss, counted] = (await (this.raw as RawLanguageTrainer).evaluate(batch)) as unknown as [number, number];
      [sum, count] = [sum + loss * counted, count + counted];
    }
    const loss = count > 0 ? sum / count : 0;
    return { loss, perplexity: Math.exp(loss) };
  }

  /** Examples in rows, and the rows in batches, from the batch `start` on. */
  *#batches(examples: readonly TokenExample[], start: number): Generator<TokenBatch, void, undefined> {
    const { batchSize, packTo } = this.#options;
    const rows = rowsOf(examples, packTo);
    for (let i = start * batchSize; i < rows.length; i += batchSize) yield batchOf(rows.slice(i, i + batchSize), packTo, this.#model.maxPositions);
  }
}

/** The façade's trainer. */
function languageTrainer(model: CausalLM, options: LanguageTrainerOptions): RawLanguageTrainer {
  const { optimizer, schedule, maxGradNorm, checkpointing = true, seed = 0 } = options;
  return new RawLanguageTrainer(unwrap<RawCausalLM>("model", CausalLM, model), rawOptions(optimizer, schedule, maxGradNorm), checkpointing, seed);
}

function checkFile(name: string, file: unknown): void {
  if (!isFile(file)) throw new LoraError("invalid-argument", `${name}: expected a Uint8Array, Blob or File, got ${show(file)}`);
}

function adapterConfig({ rank, alpha = rank, targetModules = [], modulesToSave = [], dropout = 0, useRslora, useDora, loraBias, bias = "none", init = "peft" }: ModelAdapterOptions): RawAdapterConfig {
  const which = BIASES.indexOf(oneOf("bias", bias, BIASES)), start = INITS.indexOf(oneOf("init", init, INITS));
  const flags = Object.entries({ useRslora, useDora, loraBias }).reduce((sum, [name, flag], bit) => sum + (boolean(name, flag ?? false) ? 1 << bit : 0), 0);
  for (const [what, names] of Object.entries({ targetModules, modulesToSave })) {
    if (!Array.isArray(names) || names.some((name) => typeof name !== "string" || name === "")) {
      throw new LoraError("invalid-argument", `${what}: expected an array of names, got ${show(names)}`);
    }
  }
  const [r, a, d] = [integer("rank", rank), finite("alpha", alpha), finite("dropout", dropout)];
  return new RawAdapterConfig(r, a, [...targetModules], [...modulesToSave], d, flags + 8 * which + 32 * start);
}

/** That the model can take every example, before the first is trained on: a shuffled one would come up hours later. */
function checkExamples(name: string, examples: readonly TokenExample[], { vocabSize, maxPositions }: CausalLM, packTo: number): void {
  if (!Array.isArray(examples) || examples.length === 0) {
    throw new LoraError("invalid-argument", `${name}: expected at least one { inputIds, labels }, got ${Array.isArray(examples) ? "none" : show(examples)}`);
  }
  for (const [i, example] of examples.entries()) {
    const { inputIds, labels } = (example ?? {}) as Partial<TokenExample>;
    if (!(inputIds instanceof Int32Array && labels instanceof Int32Array)) {
      throw new LoraError("invalid-argument", `${name}[${i}]: expected inputIds and labels as Int32Arrays, got ${show(inputIds)} and ${show(labels)}`);
    }
    if (inputIds.length === 0 || inputIds.length !== labels.length) {
      throw new LoraError("shape", `${name}[${i}]: expected as many labels as ids, at least one, got ${labels.length} and ${inputIds.length}`);
    }
    if (inputIds.length > (packTo || maxPositions)) {
      const most = packTo > 0 ? `the ${packTo} tokens of packTo` : `the model's ${maxPositions} positions`;
      throw new LoraError("shape", `${name}[${i}]: expected at most ${most}, got ${inputIds.length}`);
    }
    const outside = (id: number) => id < 0 || id >= vocabSize;
    const id = inputIds.find(outside), label = labels.find((label) => outside(label) && label !== -100);
    if ((id ?? label) !== undefined) {
      const what = id === undefined ? "labels of -100 or token ids" : "token ids";
      throw new LoraError("invalid-argument", `${name}[${i}]: expected ${what} from 0 to ${vocabSize - 1}, got ${id ?? label}`);
    }
  }
}

/** Examples by rows: each goes into the first row that has room for it, one to a row without `packTo`. */
function rowsOf(examples: readonly TokenExample[], packTo: number): TokenExample[][] {
  if (packTo === 0) return examples.map((example) => [example]);
  const rows: TokenExample[][] = [], room: number[] = [];
  for (const example of examples) {
    const size = example.inputIds.length;
    // Older rows are all but full.
    let at = Math.max(rows.length - 64, 0);
    while (at < rows.length && (room[at] as number) < size) at++;
    (rows[at] ??= []).push(example);
    room[at] = (room[at] ?? packTo) - size;
  }
  return rows;
}

/** Tokens of rows whose longest has `tokens`: a multiple of 16, as far as there are positions. */
const padded = (tokens: number, most: number) => Math.max(tokens, Math.min(16 * Math.ceil(tokens / 16), most));

/**
 * One batch, padded right: to `packTo` or a multiple of 16 tokens, so that few shapes come up, for each of which the GPU has tensors
 * and recordings. Labels are moved to the token that predicts them.
 */
function batchOf(rows: readonly TokenExample[][], packTo: number, maxPositions: number): TokenBatch {
  const sizes = rows.map((row) => row.reduce((sum, { inputIds }) => sum + inputIds.length, 0));
  const tokens = packTo > 0 ? packTo : padded(Math.max(...sizes), maxPositions);
  const [all, segments, labels] = [0, 0, -100].map((fill) => new Int32Array(rows.length * tokens).fill(fill)) as [Int32Array, Int32Array, Int32Array];
  rows.forEach((row, i) => {
    let at = i * tokens;
    row.forEach((example, number) => {
      all.set(example.inputIds, at);
      segments.fill(number + 1, at, at + example.inputIds.length);
      labels.set(example.labels.subarray(1), at);
      at += example.inputIds.length;
    });
  });
  return [rows.length, all, segments, labels, sizes.reduce((sum, size) => sum + size, 0)];
}

/** 0 … length − 1 in an order of the seed's, below 2³²: Fisher and Yates, by mulberry32. */
function shuffled(length: number, seed: number): number[] {
  const order = Array.from({ length }, (_, i) => i);
  let state = seed;
  for (let i = length - 1; i > 0; i--) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    const j = Math.floor((((t ^ (t >>> 14)) >>> 0) / 4294967296) * (i + 1));
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}
