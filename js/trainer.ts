import { type RawGpu, type RawPlan, type RawTensor, RawTrainer } from "./wasm/lora_webgpu.js";
import { compileAhead } from "./adopt.js";
import { checkOptions, finite, float32Array, integer, numbers, seedNumber, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { internals, type LoraLinear, touchActive } from "./lora.js";
import { type LossSpec, lossArguments } from "./loss.js";
import { loraLayers, type NetworkPart, rawModules, withLayers } from "./network.js";
import { type OptimizerSpec, rawOptions, type ScheduleSpec } from "./optim.js";
import { Tensor } from "./tensor.js";
import { lot, type RunOptions, type StepRecord, Training } from "./training.js";

/** Options of {@link Trainer}. */
export interface TrainerOptions {
  /** The network, in order; at least one `LoraLinear`. */
  layers: readonly NetworkPart[];
  /** What is made small: `mse()`, `bceWithLogits()` or `crossEntropy()`. */
  loss: LossSpec;
  /** The update rule: `adamw()` or `sgd()`. */
  optimizer: OptimizerSpec;
  /** How the learning rate changes; default: it does not. */
  schedule?: ScheduleSpec;
  /** Scale larger gradients down to this norm. */
  maxGradNorm?: number;
  /** Batches that make one step together, as one mean over all that they count; default 1. */
  gradientAccumulation?: number;
  /** Of the layers' dropout; the same seed gives the same masks on every device. Default 0. */
  seed?: number;
}

/**
 * One micro-batch. What comes round again can be kept on the GPU, as a {@link Tensor} of the trainer's Gpu, and need not be
 * uploaded each time; it stays the caller's to dispose of.
 */
export interface Batch {
  /** `[tokens, inFeatures]`, row-major. */
  x: Float32Array | Tensor;
  /**
   * `[tokens, outFeatures]`; for cross-entropy class labels `[tokens]`. Of a tensor's labels one out of range makes the loss
   * infinite, so that the step is skipped; in an array it throws.
   */
  target: Float32Array | Int32Array | Tensor;
}

/** Something that can be gone through. */
export type BatchIterable = Iterable<Batch> | AsyncIterable<Batch>;

/** Where batches come from: something that can be gone through again, or a function of the epoch and its first batch. */
export type Batches = BatchIterable | ((epoch: number, startBatch: number) => BatchIterable);

/** Options of {@link Trainer.train}. */
export interface TrainOptions extends RunOptions {
  /** Evaluate now and then, and stop early. */
  validation?: {
    /** What to evaluate on. */
    batches?: BatchIterable;
    /** In their place: this share of the training's array of batches, on which then is not trained. */
    split?: number;
    /** Which ones; default 0. */
    seed?: number;
    /** Steps between two evaluations. */
    every: number;
    /**
     * End after this many evaluations without a new lowest loss; default: never. The adapter is the last one then: to keep the best,
     * have `logEvery` be `every`, and save it in the loop when a record's `validationLoss` is the lowest so far.
     */
    patience?: number;
  };
}

/** Trains the adapters of a network of layers. */
export class Trainer extends Training<Batch> {
  readonly #options: TrainerOptions;
  #norms: { destroy(): void }[];
  #touched = false;

  /** Throws `shape` where a layer does not take what the one before it gives, and as {@link Optimizer}. */
  constructor(gpu: Gpu, options: TrainerOptions) {
    checkOptions("Trainer", options, ["layers", "loss", "optimizer", "schedule", "maxGradNorm", "gradientAccumulation", "seed"]);
    const accumulation = integer("gradientAccumulation", options.gradientAccumulation ?? 1);
    const { raw, norms } = build(gpu, options, options.layers);
    super(gpu, raw, accumulation);
    this.#options = { ...options, gradientAccumulation: accumulation, layers: [...options.layers] };
    this.#norms = norms;
  }

  /**
   * One step over one batch, or over several as one mean, when those before it are done. Resolves to its record when the GPU has
   * done it. During a training it rejects with code `busy`.
   */
  step(batch: Batch | readonly Batch[]): Promise<StepRecord> {
    return this.takeStep(Array.isArray(batch) ? (batch as Batch[]) : [batch as Batch]);
  }

  /**
   * Goes through the batches and yields a record every `logEvery` steps and at the end. It runs ahead of the GPU by a few
   * steps and waits when its consumer does; `break` ends it after the steps that were submitted. That is an end: the next
   * training begins at the first batch. A pause is `break` and `trainer.loadState(await trainer.saveState())`, after which the
   * next training goes on where this one stood. It begins when the steps that were asked for before are done; a second training
   * of the same trainer rejects with code `busy`.
   */
  async *train(batches: Batches, options: TrainOptions = {}): AsyncGenerator<StepRecord, void, undefined> {
    checkOptions("train", options, ["epochs", "signal", "logEvery", "inFlight", "resume", "validation", "checkpoints", "onCompile"]);
    const { validation } = options;
    yield* this.run(options, 10, (again) => {
      const { training, held, chosen } = divide(batches, validation);
      if (typeof training !== "function" && again) checkAgain("batches", training);
      const length = Array.isArray(training) ? training.length : undefined;
      return {
        epoch: (epoch, start) => {
          const whole = typeof training !== "function";
          return { batches: iterate("batches", whole ? training : training(epoch, start)), skip: whole ? start : 0 };
        },
        length,
        same: length === undefined ? undefined : { name: "batches", length },
        data: `gradientAccumulation ${this.#options.gradientAccumulation}, validation split ${chosen}`,
        validation: held && validation && { every: validation.every, patience: validation.patience ?? Infinity, evaluate: () => this.#evaluate(held) },
      };
    });
  }

  /** Mean loss over batches with the adapters as they are; at any time, also between the steps of a training. */
  evaluate(batches: BatchIterable): Promise<number> {
    return this.using(() => this.#evaluate(batches));
  }

  /**
   * Goes on on another device after this one was lost: makes the network anew there, the layers staying the objects that
   * they are, with the newest state that was kept: by a checkpoint, {@link saveState} or {@link loadState}, else that
   * before the first step. The next {@link train} of the same batches gives the same bits as if nothing had happened,
   * unless `bitsMayDiffer`. Call it when the training that was under way has ended, with code `device-lost`.
   *
   * Rejects with code `checkpoint`, and changes nothing, where an adapter's numbers went with the device: one that this trainer
   * does not train and that was written or trained, or any that was written where no step came before.
   */
  recover(gpu: Gpu): Promise<{ bitsMayDiffer: boolean }> {
    return this.replace(gpu, (kept) => {
      const layers = new Map<LoraLinear, LoraLinear>();
      let built: ReturnType<typeof build> | undefined;
      const drop = () => {
        built?.raw.destroy();
        built?.norms.forEach((norm) => norm.destroy());
        layers.forEach((layer) => layer.dispose());
      };
      try {
        for (const layer of loraLayers(this.#options.layers)) layers.set(layer, internals.remake(layer, gpu, kept));
        const made = (built = build(gpu, this.#options, withLayers(this.#options.layers, layers)));
        const use = () => {
          layers.forEach((made, layer) => internals.become(layer, made));
          this.#norms = made.norms;
        };
        return { raw: made.raw, use, drop };
      } catch (error) {
        drop();
        throw error;
      }
    });
  }

  /** @internal */
  protected override free(): void {
    super.free();
    this.#norms.forEach((norm) => norm.destroy());
  }

  async #evaluate(batches: BatchIterable): Promise<number> {
    const totals: Promise<Float32Array>[] = [];
    for await (const batch of iterate("batches", batches)) {
      const total = this.#with(batch, (plan) => this.#raw.evaluate(plan) as Promise<Float32Array>);
      total.catch(() => {}); // awaited below, in order
      totals.push(total);
      await totals.at(-4); // a few run ahead
    }
    let [sum, count] = [0, 0];
    for (const [partSum = 0, partCount = 0] of await Promise.all(totals)) [sum, count] = [sum + partSum, count + partCount];
    if (totals.length === 0) throw new LoraError("invalid-argument", "batches: expected at least one batch, got none");
    return count > 0 ? sum / count : 0;
  }

  get #raw(): RawTrainer {
    return this.raw as RawTrainer;
  }

  /** Checks a batch; gives its tokens. */
  #check(batch: Batch): number {
    checkOptions("batch", batch, ["x", "target"]);
    const { x, target } = batch;
    const width = this.#raw.inFeatures();
    const length = x instanceof Tensor ? x.shape.reduce((product, dimension) => product * dimension, 1) : float32Array("x", x).length;
    if (length === 0 || length % width !== 0) {
      throw new LoraError("shape", `x: expected rows of ${width} elements, at least one, got ${length} elements`);
    }
    if (!(target instanceof Tensor)) numbers("target", target);
    if (this.#options.loss.kind === "crossEntropy" && target instanceof Int32Array) this.#raw.checkLabels(target);
    return length / width;
  }

  /** Loads a batch for `work`, which submits in this very turn: an evaluation may write to the same tensors in another. */
  #with<T>(batch: Batch, work: (plan: RawPlan) => T): T {
    const plan = this.#raw.plan(this.#check(batch));
    try {
      for (const [inputs, part] of [[false, batch.target], [true, batch.x]] as const) {
        if (part instanceof Tensor) plan.copy(inputs, unwrap<RawTensor>(inputs ? "x" : "target", Tensor, part));
        else plan.write(inputs, part);
      }
      return work(plan);
    } finally {
      plan.free();
    }
  }

  /** @internal */
  protected async submit(batches: Batch[]): Promise<{ submitted: Promise<unknown>; tokens: number }> {
    if (batches.length === 0) throw new LoraError("invalid-argument", "batch: expected at least one batch, got none");
    if (!this.#touched) loraLayers(this.#options.layers).forEach(touchActive);
    this.#touched = true;
    const only = batches.length === 1 ? batches[0] : undefined;
    if (only) {
      const tokens = await this.#compile(only);
      return { submitted: this.#with(only, (plan) => this.#raw.step(plan) as Promise<unknown>), tokens };
    }
    let tokens = 0;
    // Gradients and totals start from zero, so that a window which a bad batch ended leaves nothing behind.
    await this.#raw.beginWindow();
    for (const batch of batches) {
      tokens += await this.#compile(batch);
      await this.#with(batch, (plan) => this.#raw.microStep(plan) as Promise<unknown>); // no update where a part of it failed
    }
    return { submitted: this.#raw.endWindow() as Promise<unknown>, tokens };
  }

  /** Checks a batch, and has the browser make the pipelines that the first step of its plan would wait for. */
  async #compile(batch: Batch): Promise<number> {
    const tokens = this.#check(batch);
    const plan = this.#raw.plan(tokens);
    try {
      if (plan.missing() > 0) await compileAhead(this.gpu.device, (keep) => void plan.compile(keep), this.onCompile);
    } finally {
      plan.free();
    }
    return tokens;
  }
}

/** The façade's trainer of `layers`, and what it needs besides. */
function build(gpu: Gpu, options: TrainerOptions, layers: readonly NetworkPart[]) {
  const { loss, optimizer, schedule, maxGradNorm, seed = 0 } = options;
  const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
  const [kind, ignoreIndex, labelSmoothing] = lossArguments(loss);
  const rawOptimizer = rawOptions(optimizer, schedule, maxGradNorm);
  const norms: { destroy(): void }[] = [];
  try {
    const modules = rawModules(rawGpu, layers, norms);
    const raw = new RawTrainer(rawGpu, modules, kind, ignoreIndex, labelSmoothing, rawOptimizer, seedNumber(seed));
    return { raw, norms };
  } catch (error) {
    norms.forEach((norm) => norm.destroy());
    throw error;
  }
}

/** What to train on and what to evaluate on, with which share of the one became the other. */
function divide(batches: Batches, validation: TrainOptions["validation"]): { training: Batches; held?: BatchIterable; chosen: string } {
  if (validation === undefined) return { training: batches, chosen: "none" };
  checkOptions("validation", validation, ["batches", "split", "seed", "every", "patience"]);
  const { batches: own, split, seed, every, patience } = validation;
  integer("validation.every", every);
  if (patience !== undefined) integer("validation.patience", patience);
  if (split === undefined) {
    checkAgain("validation.batches", own);
    return { training: batches, held: own as BatchIterable, chosen: "none" };
  }
  if (own !== undefined) throw new LoraError("invalid-argument", "validation: expected either batches or split, got both");
  if (!(finite("validation.split", split) > 0 && split < 1)) {
    throw new LoraError("invalid-argument", `validation.split: expected a number between 0 and 1, got ${split}`);
  }
  if (!Array.isArray(batches) || batches.length < 2) {
    const got = Array.isArray(batches) ? `${batches.length}` : show(batches);
    throw new LoraError("invalid-argument", `batches: expected an array of at least two, of which validation.split takes a share, got ${got}`);
  }
  const count = Math.min(Math.max(Math.round(split * batches.length), 1), batches.length - 1);
  const number = seedNumber(seed ?? 0);
  const lots = batches.map((_, i) => lot(number, i));
  const drawn = new Set(lots.map((_, i) => i).sort((i, j) => (lots[i] as number) - (lots[j] as number) || i - j).slice(0, count));
  return {
    training: batches.filter((_, i) => !drawn.has(i)),
    held: batches.filter((_, i) => drawn.has(i)),
    chosen: `${count} of ${batches.length} by seed ${number}`,
  };
}

function iterate(name: string, source: unknown): BatchIterable {
  const iterable = source as Partial<Iterable<Batch> & AsyncIterable<Batch>> | null | undefined;
  if (typeof source === "string" || typeof iterable?.[Symbol.iterator] !== "function" && typeof iterable?.[Symbol.asyncIterator] !== "function") {
    throw new LoraError("invalid-argument", `${name}: expected an array or another iterable, got ${show(source)}`);
  }
  return source as BatchIterable;
}

/** Refuses what can be gone through only once: an iterator is its own iterable. */
function checkAgain(name: string, source: unknown): void {
  const iterable = iterate(name, source) as { next?: unknown };
  if (typeof iterable.next === "function") {
    throw new LoraError(
      "invalid-argument",
      `${name}: expected something that can be gone through again, such as an array or a function of the epoch; got a one-shot iterator`,
    );
  }
}
