import { type RawGpu, type RawPlan, RawTrainer } from "./wasm/lora_webgpu.js";
import { bind, checkOptions, disposable, float32Array, integer, numbers, seedNumber, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { type LossSpec, lossArguments } from "./loss.js";
import { type NetworkPart, rawModules } from "./network.js";
import { type OptimizerSpec, rawOptions, type ScheduleSpec } from "./optim.js";

/** Options of {@link Trainer}. */
export interface TrainerOptions {
  /** The network, in order; at least one `LoraLinear`. */
  layers: readonly NetworkPart[];
  loss: LossSpec;
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

/** One micro-batch. */
export interface Batch {
  /** `[tokens, inFeatures]`, row-major. */
  x: Float32Array;
  /** `[tokens, outFeatures]`; for cross-entropy class labels `[tokens]`. */
  target: Float32Array | Int32Array;
}

/** Something that can be gone through. */
export type BatchIterable = Iterable<Batch> | AsyncIterable<Batch>;

/** Where batches come from: something that can be gone through again, or a function of the epoch and its first batch. */
export type Batches = BatchIterable | ((epoch: number, startBatch: number) => BatchIterable);

/** Options of {@link Trainer.train}. */
export interface TrainOptions {
  /** Times through the batches; default 1. */
  epochs?: number;
  /** Ends the training after the steps that were submitted. */
  signal?: AbortSignal;
  /** Steps between two records; default 10. */
  logEvery?: number;
  /** Steps that may run ahead of the GPU; default 3. */
  inFlight?: number;
  /** Evaluate now and then, and stop early. */
  validation?: {
    batches: BatchIterable;
    /** Steps between two evaluations. */
    every: number;
    /** End after this many evaluations without a new lowest loss; default: never. */
    patience?: number;
  };
}

/** Where a loss or gradient that is not finite began. */
export interface NotFinite {
  /** The step, from 0. */
  step: number;
  /** In a layer's output (the first such layer) or in the gradient of its output (the last); else nothing is known. */
  in?: "output" | "gradient";
  /** Which of the network's LoRA layers, from 0. */
  layer?: number;
  /** Its name, if it has one. */
  name?: string;
}

/** What the steps since the last record did. */
export interface StepRecord {
  /** Steps so far, skipped ones included. */
  step: number;
  epoch: number;
  /** Mean loss of these steps, as it was before each update. */
  loss: number;
  /** Norm of the last step's gradients before clipping. */
  gradNorm: number;
  /** Learning rate of the last step. */
  lr: number;
  tokensPerSecond: number;
  /** Steps among these whose loss or gradients were not finite, so that they updated nothing. */
  skipped: number;
  /** Where that began, for each of them. */
  notFinite: NotFinite[];
  /** Steps among these that counted nothing, all labels being ignored: loss 0, and no update. */
  nothingCounted: number;
  /** Mean loss over the validation batches, where they were evaluated since the last record. */
  validationLoss?: number;
}

// Steps whose records the GPU keeps (LOG_ROWS in src/optim).
const LOG_ROWS = 1024;

/** Trains the adapters of a network of layers. */
export class Trainer {
  readonly #gpu: Gpu;
  readonly #raw: RawTrainer;
  readonly #made: { destroy(): void }[] = [];
  readonly #accumulation: number;
  readonly #loss: LossSpec;
  #active = false;
  #disposed = false;
  // step() and evaluate() wait for the ones before them.
  #queue: Promise<unknown> = Promise.resolve();
  #position = { epoch: 0, batch: 0 };
  #resume: { epoch: number; batch: number } | undefined;

  /** Throws `shape` where a layer does not take what the one before it gives, and as {@link Optimizer}. */
  constructor(gpu: Gpu, options: TrainerOptions) {
    checkOptions("Trainer", options, ["layers", "loss", "optimizer", "schedule", "maxGradNorm", "gradientAccumulation", "seed"]);
    const { layers, loss, optimizer, schedule, maxGradNorm, gradientAccumulation = 1, seed = 0 } = options;
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    this.#accumulation = integer("gradientAccumulation", gradientAccumulation);
    const [kind, ignoreIndex, labelSmoothing] = lossArguments(loss);
    const rawOptimizer = rawOptions(optimizer, schedule, maxGradNorm);
    try {
      const modules = rawModules(rawGpu, layers, this.#made);
      this.#raw = new RawTrainer(rawGpu, modules, kind, ignoreIndex, labelSmoothing, rawOptimizer, seedNumber(seed));
    } catch (error) {
      this.#made.forEach((norm) => norm.destroy());
      throw error;
    }
    this.#gpu = gpu;
    this.#loss = loss;
    bind(this, this.#raw);
  }

  /** Steps submitted so far, skipped ones included. */
  get steps(): number {
    return this.#raw.attempts();
  }

  /** One step over one batch, or over several as one mean. Resolves to its record when the GPU has done it. */
  step(batch: Batch | readonly Batch[]): Promise<StepRecord> {
    return this.#inTurn(async () => {
      const batches = Array.isArray(batch) ? (batch as Batch[]) : [batch as Batch];
      const began = performance.now();
      const before = this.#raw.attempts();
      const { submitted, tokens } = await this.#submit(batches);
      await submitted;
      const record = await this.#record(before, 0, tokens, began);
      if (!record) throw new LoraError("device-lost", "the step left no record");
      return record;
    });
  }

  /**
   * Goes through the batches and yields a record every `logEvery` steps and at the end. It runs ahead of the GPU by a few
   * steps and pauses when its consumer does; `break` ends it after the steps that were submitted. A second training of
   * the same trainer rejects with code `busy`.
   */
  async *train(batches: Batches, options: TrainOptions = {}): AsyncGenerator<StepRecord, void, undefined> {
    checkOptions("train", options, ["epochs", "signal", "logEvery", "inFlight", "validation"]);
    const { epochs = 1, signal, logEvery = 10, inFlight = 3, validation } = options;
    integer("epochs", epochs);
    if (integer("logEvery", logEvery) > LOG_ROWS) {
      throw new LoraError("invalid-argument", `logEvery: expected at most ${LOG_ROWS}, which the GPU keeps, got ${logEvery}`);
    }
    integer("inFlight", inFlight);
    if (validation !== undefined) {
      checkOptions("validation", validation, ["batches", "every", "patience"]);
      integer("validation.every", validation.every);
      if (validation.patience !== undefined) integer("validation.patience", validation.patience);
      checkAgain("validation.batches", validation.batches);
    }
    if (typeof batches !== "function" && (epochs > 1 || this.#resume)) checkAgain("batches", batches);
    this.#enter();
    const running: Promise<unknown>[] = [];
    const drain = async (left: number) => {
      while (running.length > left) await running.shift();
    };
    try {
      let logged = this.#raw.attempts();
      let tokens = 0;
      let began = performance.now();
      let lowest = Infinity;
      let worse = 0;
      let validationLoss: number | undefined;
      const take = async (epoch: number): Promise<StepRecord | undefined> => {
        await drain(0);
        const record = await this.#record(logged, epoch, tokens, began);
        [logged, tokens, began] = [this.#raw.attempts(), 0, performance.now()];
        if (record && validationLoss !== undefined) record.validationLoss = validationLoss;
        validationLoss = undefined;
        return record;
      };
      const resume = this.#resume ?? { epoch: 0, batch: 0 };
      let current = resume.epoch;
      for (let epoch = resume.epoch; epoch < epochs; epoch++) {
        current = epoch;
        const start = epoch === resume.epoch ? resume.batch : 0;
        const source = typeof batches === "function" ? batches(epoch, start) : batches;
        const skip = typeof batches === "function" ? 0 : start;
        let seen = start;
        let stop = false;
        this.#position = { epoch, batch: start };
        for await (const window of windows(until(signal, iterate("batches", source)), skip, this.#accumulation)) {
          if (signal?.aborted) break;
          seen += window.length;
          const step = await this.#submit(window);
          this.#resume = undefined;
          this.#position = { epoch, batch: seen };
          tokens += step.tokens;
          const done = Promise.all([step.submitted, this.#gpu.finished()]);
          done.catch(() => {}); // awaited below, in order
          running.push(done);
          await drain(inFlight - 1);
          if (validation && this.#raw.attempts() % validation.every === 0) {
            await drain(0);
            validationLoss = await this.#evaluate(validation.batches);
            worse = validationLoss < lowest ? 0 : worse + 1;
            lowest = Math.min(lowest, validationLoss);
            stop = worse >= (validation.patience ?? Infinity);
          }
          if (this.#raw.attempts() - logged >= logEvery || stop) {
            const record = await take(epoch);
            if (record) yield record;
            began = performance.now(); // the consumer's time is not ours
          }
          if (stop) return;
        }
        if (signal?.aborted) break;
        if (seen === 0) throw new LoraError("invalid-argument", `batches: expected at least one batch in epoch ${epoch}, got none`);
        this.#position = { epoch: epoch + 1, batch: 0 };
      }
      const record = await take(current);
      if (record) yield record;
    } finally {
      await Promise.allSettled(running);
      this.#leave();
    }
  }

  /** Mean loss over batches with the adapters as they are. */
  evaluate(batches: BatchIterable): Promise<number> {
    return this.#inTurn(() => this.#evaluate(batches));
  }

  /**
   * Adapters, moments, step counter and the place in the data, after the steps submitted so far, as one safetensors file.
   * May be called while {@link train} goes on.
   */
  async saveState(): Promise<Uint8Array> {
    return (await this.#raw.saveState(this.#position.epoch, this.#position.batch, "")) as Uint8Array;
  }

  /**
   * Takes over a saved state; the next {@link train} of the same batches goes on where it stood, with the same bits as if
   * there had been no interruption, unless `bitsMayDiffer` (saved with kernels for another kind of device). Throws code
   * `checkpoint` for anything else, and changes nothing then.
   */
  loadState(bytes: Uint8Array): { bitsMayDiffer: boolean } {
    if (!(bytes instanceof Uint8Array)) {
      throw new LoraError("invalid-argument", `bytes: expected a Uint8Array, got ${show(bytes)}`);
    }
    this.#enter();
    try {
      const [epoch, batch, bitsMayDiffer] = this.#raw.loadState(bytes) as [number, number, boolean, string];
      this.#position = this.#resume = { epoch, batch };
      return { bitsMayDiffer };
    } finally {
      this.#leave();
    }
  }

  /** Frees moments and activations, after a call that is under way; the layers keep their adapters. Idempotent. */
  dispose(): void {
    this.#disposed = true;
    if (!this.#active) this.#leave();
  }

  #enter(): void {
    if (this.#disposed) throw new LoraError("disposed", "this trainer was disposed of; expected a live one");
    if (this.#active) throw new LoraError("busy", "this trainer is training; expected one training at a time");
    this.#active = true;
  }

  #leave(): void {
    this.#active = false;
    if (!this.#disposed) return;
    this.#raw.destroy();
    this.#made.forEach((norm) => norm.destroy());
  }

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#queue;
    let done = () => {};
    this.#queue = new Promise<void>((resolve) => (done = resolve));
    await before;
    try {
      this.#enter();
      try {
        return await work();
      } finally {
        this.#leave();
      }
    } finally {
      done();
    }
  }

  async #evaluate(batches: BatchIterable): Promise<number> {
    const totals: Promise<Float32Array>[] = [];
    for await (const batch of iterate("batches", batches)) {
      const { plan } = this.#load(batch);
      const total = this.#raw.evaluate(plan) as Promise<Float32Array>;
      plan.free();
      total.catch(() => {}); // awaited below, in order
      totals.push(total);
      await totals.at(-4); // a few run ahead
    }
    let [sum, count] = [0, 0];
    for (const [partSum = 0, partCount = 0] of await Promise.all(totals)) [sum, count] = [sum + partSum, count + partCount];
    if (totals.length === 0) throw new LoraError("invalid-argument", "batches: expected at least one batch, got none");
    return count > 0 ? sum / count : 0;
  }

  /** Checks a batch and writes it to the GPU. */
  #load(batch: Batch): { plan: RawPlan; tokens: number } {
    checkOptions("batch", batch, ["x", "target"]);
    const x = float32Array("x", batch.x);
    const target = numbers("target", batch.target);
    const width = this.#raw.inFeatures();
    if (x.length === 0 || x.length % width !== 0) {
      throw new LoraError("shape", `x: expected rows of ${width} elements, at least one, got ${x.length} elements`);
    }
    if (this.#loss.kind === "crossEntropy" && target instanceof Int32Array) this.#raw.checkLabels(target);
    const tokens = x.length / width;
    const plan = this.#raw.plan(tokens);
    plan.load(x, target);
    return { plan, tokens };
  }

  async #submit(batches: Batch[]): Promise<{ submitted: Promise<unknown>; tokens: number }> {
    if (batches.length === 0) throw new LoraError("invalid-argument", "batch: expected at least one batch, got none");
    const only = batches.length === 1 ? batches[0] : undefined;
    if (only) {
      const { plan, tokens } = this.#load(only);
      const submitted = this.#raw.step(plan) as Promise<unknown>;
      plan.free();
      submitted.catch(() => {}); // the caller's to await
      return { submitted, tokens };
    }
    // Gradients and totals start from zero, so that a window which a bad batch ended leaves nothing behind.
    await this.#raw.beginWindow();
    let tokens = 0;
    for (const batch of batches) {
      const loaded = this.#load(batch);
      tokens += loaded.tokens;
      const submitted = this.#raw.microStep(loaded.plan) as Promise<unknown>;
      loaded.plan.free();
      await submitted; // no update where a part of it failed
    }
    const submitted = this.#raw.endWindow() as Promise<unknown>;
    submitted.catch(() => {}); // the caller's to await
    return { submitted, tokens };
  }

  async #record(from: number, epoch: number, tokens: number, began: number): Promise<StepRecord | undefined> {
    const log = (await this.#raw.records(from)) as Float32Array;
    const rows = log.length / 4;
    if (rows === 0) return undefined;
    const tokensPerSecond = (1000 * tokens) / (performance.now() - began);
    let [loss, nothingCounted] = [0, 0];
    const notFinite: NotFinite[] = [];
    const first = this.#raw.attempts() - rows;
    for (let row = 0; row < rows; row++) {
      const outcome = log[4 * row + 3] as number; // as begin_step.wgsl numbers it
      if (outcome < 2) {
        loss += log[4 * row] as number;
        nothingCounted += outcome;
      } else {
        const layer = Math.floor((outcome - 3) / 2);
        const name = layer < 0 ? undefined : this.#raw.layerName(layer);
        notFinite.push({
          step: first + row,
          ...(layer >= 0 && { in: outcome % 2 === 1 ? "output" : "gradient", layer }),
          ...(name !== undefined && { name }),
        });
      }
    }
    const skipped = notFinite.length;
    const last = log.subarray(-4);
    return {
      step: this.#raw.attempts(),
      epoch,
      loss: skipped < rows ? loss / (rows - skipped) : NaN,
      gradNorm: last[1] as number,
      lr: last[2] as number,
      tokensPerSecond,
      skipped,
      notFinite,
      nothingCounted,
    };
  }
}
disposable(Trainer.prototype);

function iterate(name: string, source: unknown): BatchIterable {
  const iterable = source as Partial<Iterable<Batch> & AsyncIterable<Batch>> | null | undefined;
  if (typeof iterable?.[Symbol.iterator] !== "function" && typeof iterable?.[Symbol.asyncIterator] !== "function") {
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

/** The batches until the signal, for which a source that hangs is not waited for. */
async function* until(signal: AbortSignal | undefined, batches: BatchIterable): AsyncGenerator<Batch, void, undefined> {
  const iterator = Symbol.asyncIterator in batches ? batches[Symbol.asyncIterator]() : batches[Symbol.iterator]();
  let stop = () => {};
  const aborted = new Promise<undefined>((resolve) => (stop = () => resolve(undefined)));
  signal?.addEventListener("abort", stop);
  let ended = false;
  try {
    while (!signal?.aborted) {
      const next = await Promise.race([iterator.next(), aborted]);
      if (!next) return;
      if (next.done) {
        ended = true;
        return;
      }
      yield next.value;
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    if (!ended) Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

/** The batches after the first `skip`, in arrays of `size`, the last one perhaps shorter. */
async function* windows(batches: BatchIterable, skip: number, size: number): AsyncGenerator<Batch[], void, undefined> {
  let window: Batch[] = [];
  for await (const batch of batches) {
    if (skip > 0) {
      skip--;
      continue;
    }
    window.push(batch);
    if (window.length === size) {
      yield window;
      window = [];
    }
  }
  if (window.length > 0) yield window;
}
