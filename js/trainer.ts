import { type RawGpu, type RawPlan, RawTrainer } from "./wasm/lora_webgpu.js";
import { compileAhead } from "./adopt.js";
import { bind, checkOptions, disposable, finite, float32Array, integer, numbers, seedNumber, show, unwrap } from "./check.js";
import { Checkpoints } from "./checkpoints.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { become, type LoraLinear, remake } from "./lora.js";
import { type LossSpec, lossArguments } from "./loss.js";
import { loraLayers, type NetworkPart, rawModules, withLayers } from "./network.js";
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
  /** Ends the training after the steps that were submitted; a step of which only some batches were is given up. */
  signal?: AbortSignal;
  /** Steps between two records; default 10. */
  logEvery?: number;
  /** Steps that may run ahead of the GPU; default 3. */
  inFlight?: number;
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
    /** End after this many evaluations without a new lowest loss; default: never. */
    patience?: number;
  };
  /** Keep the state now and then and at the end. */
  checkpoints?: {
    /** Where to write it. Without one it is kept in memory alone, for {@link Trainer.recover}. */
    run?: Checkpoints;
    /** Steps between two. */
    every: number;
    /** Told why one could not be written; the training goes on, and the next record says it, too. */
    onError?: (error: LoraError) => void;
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
  /** Steps there will be, where the number of batches is known: of an array, and after the first time through. */
  total?: number;
  /** From 0. */
  epoch: number;
  /** How long the rest takes at the pace so far. */
  secondsLeft?: number;
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
  /** The step of the last checkpoint, where one was written since the last record. */
  checkpoint?: number;
  /** Why one could not be. */
  checkpointError?: LoraError;
}

/** Where a training stands; never changed, only replaced. */
interface Place {
  readonly epoch: number;
  readonly batch: number;
  /** What else decides which batch is trained on when. */
  readonly data?: string;
  /** For early stopping: the step evaluated last, the lowest loss, and evaluations since it. */
  readonly evaluated: number;
  readonly lowest: number;
  readonly worse: number;
}
const START: Place = { epoch: 0, batch: 0, evaluated: 0, lowest: Infinity, worse: 0 };

// Steps whose records the GPU keeps (LOG_ROWS in src/optim).
const LOG_ROWS = 1024;

/** Trains the adapters of a network of layers. */
export class Trainer {
  readonly #options: TrainerOptions;
  readonly #accumulation: number;
  #gpu: Gpu;
  #raw: RawTrainer;
  #norms: { destroy(): void }[];
  #active = false;
  #disposed = false;
  // step() and evaluate() wait for the ones before them.
  #queue: Promise<unknown> = Promise.resolve();
  #place = START;
  #resume: Place | undefined;
  // The newest state that is known here, for recover().
  #kept: Uint8Array | undefined;

  /** Throws `shape` where a layer does not take what the one before it gives, and as {@link Optimizer}. */
  constructor(gpu: Gpu, options: TrainerOptions) {
    checkOptions("Trainer", options, ["layers", "loss", "optimizer", "schedule", "maxGradNorm", "gradientAccumulation", "seed"]);
    this.#accumulation = integer("gradientAccumulation", options.gradientAccumulation ?? 1);
    const { raw, norms } = build(gpu, options, options.layers);
    this.#options = { ...options, layers: [...options.layers] };
    this.#gpu = gpu;
    this.#raw = raw;
    this.#norms = norms;
    bind(this, raw);
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
      const kept = this.#kept ? undefined : this.saveState(); // of now, while the pipelines are made
      kept?.catch(() => {}); // awaited below
      const { submitted, tokens } = await this.#submit(batches);
      const recorded = this.#record(before, 0, tokens, began); // asked for before the submit is known to have gone well
      recorded.catch(() => {}); // awaited below
      await submitted;
      await kept;
      const record = await recorded;
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
    checkOptions("train", options, ["epochs", "signal", "logEvery", "inFlight", "validation", "checkpoints"]);
    const { epochs = 1, signal, logEvery = 10, inFlight = 3, validation, checkpoints } = options;
    integer("epochs", epochs);
    checkSignal(signal);
    if (integer("logEvery", logEvery) > LOG_ROWS) {
      throw new LoraError("invalid-argument", `logEvery: expected at most ${LOG_ROWS}, which the GPU keeps, got ${logEvery}`);
    }
    integer("inFlight", inFlight);
    checkCheckpoints(checkpoints);
    const { training, held, chosen } = divide(batches, validation);
    if (typeof training !== "function" && (epochs > 1 || this.#resume)) checkAgain("batches", training);
    const accumulation = this.#accumulation;
    const data = `gradientAccumulation ${accumulation}, validation split ${chosen}`;
    if (this.#resume?.data !== undefined && this.#resume.data !== data) {
      throw new LoraError("checkpoint", `the training that was saved had ${this.#resume.data}; expected the same, got ${data}`);
    }
    this.#enter();
    const running: Promise<unknown>[] = [];
    const drain = async (left: number) => {
      while (running.length > left) await running.shift();
    };
    // One checkpoint is written while the training goes on.
    let saving: Promise<void> | undefined;
    let asked = this.#raw.attempts();
    let saved: Pick<StepRecord, "checkpoint" | "checkpointError"> = {};
    const save = async () => {
      await saving;
      const step = (asked = this.#raw.attempts());
      const written = checkpoints?.run ? checkpoints.run.save(this) : this.saveState();
      const failed = (checkpointError: LoraError) => {
        saved = { checkpointError };
        checkpoints?.onError?.(checkpointError);
      };
      saving = written.then(() => void (saved = { checkpoint: step }), failed);
      saving.catch(() => {}); // of onError itself: awaited before the next one
    };
    const finish = async () => {
      if (checkpoints && this.#raw.attempts() !== asked) await save();
      await saving;
    };
    let failed = false;
    try {
      this.#kept ??= await this.saveState();
      const resume = this.#resume ?? { ...START, evaluated: this.#raw.attempts() };
      const { patience = Infinity } = validation ?? {};
      let place: Place = { ...resume, data };
      let length = Array.isArray(training) ? training.length : undefined; // batches in an epoch
      let [logged, tokens, began, steps, milliseconds] = [this.#raw.attempts(), 0, performance.now(), 0, 0];
      let validationLoss: number | undefined;
      let total: number | undefined;
      const take = async (): Promise<StepRecord | undefined> => {
        await drain(0);
        const record = await this.#record(logged, place.epoch, tokens, began);
        const now = performance.now();
        milliseconds += now - began;
        steps += this.#raw.attempts() - logged;
        [logged, tokens, began] = [this.#raw.attempts(), 0, now];
        if (!record) return undefined;
        if (total !== undefined) {
          record.total = total;
          record.secondsLeft = (Math.max(0, total - record.step) * milliseconds) / 1000 / steps;
        }
        if (validationLoss !== undefined) record.validationLoss = validationLoss;
        Object.assign(record, saved);
        validationLoss = undefined;
        saved = {};
        return record;
      };
      // Whether to stop. An evaluation that a checkpoint came before is made up for.
      const validate = async (): Promise<boolean> => {
        const step = this.#raw.attempts();
        if (held && validation && step % validation.every === 0 && place.evaluated < step) {
          await drain(0);
          validationLoss = await this.#evaluate(held);
          const better = validationLoss < place.lowest;
          place = { ...place, evaluated: step, lowest: better ? validationLoss : place.lowest, worse: better ? 0 : place.worse + 1 };
          this.#place = place;
        }
        return place.worse >= patience;
      };
      this.#place = place;
      let stop = await validate();
      for (let epoch = resume.epoch; epoch < epochs && !stop; epoch++) {
        const start = epoch === resume.epoch ? resume.batch : 0;
        const source = typeof training === "function" ? training(epoch, start) : training;
        const skip = typeof training === "function" ? 0 : start;
        const first = this.#raw.attempts() - Math.ceil(start / accumulation); // steps before this epoch
        const plan = () => {
          if (length !== undefined) total = first + (epochs - epoch) * Math.ceil(length / accumulation);
        };
        plan();
        let seen = start;
        place = { ...place, epoch, batch: start };
        this.#place = place;
        for await (const window of windows(until(signal, this.#gpu, iterate("batches", source)), skip, accumulation)) {
          if (signal?.aborted) break;
          seen += window.length;
          place = { ...place, batch: seen };
          const step = await this.#submit(window, place);
          this.#resume = undefined;
          tokens += step.tokens;
          const done = Promise.all([step.submitted, this.#gpu.finished()]);
          done.catch(() => {}); // awaited below, in order
          running.push(done);
          await drain(inFlight - 1);
          stop = await validate();
          if (checkpoints && this.#raw.attempts() % checkpoints.every === 0) await save();
          if (this.#raw.attempts() - logged >= logEvery) {
            const record = await take();
            if (record) yield record;
            began = performance.now(); // the consumer's time is not ours
          }
          if (stop) break;
        }
        if (signal?.aborted || stop) break;
        if (seen === 0) throw new LoraError("invalid-argument", `batches: expected at least one batch in epoch ${epoch}, got none`);
        length ??= seen;
        plan();
        this.#place = { ...place, epoch: epoch + 1, batch: 0 };
      }
      await drain(0);
      await finish();
      const record = await take();
      if (record) yield record;
    } catch (error) {
      failed = true;
      throw error;
    } finally {
      await Promise.allSettled([...running, saving]);
      try {
        if (!failed) await finish(); // after a break
      } finally {
        this.#leave();
      }
    }
  }

  /** Mean loss over batches with the adapters as they are. */
  evaluate(batches: BatchIterable): Promise<number> {
    return this.#inTurn(() => this.#evaluate(batches));
  }

  /**
   * Adapters, moments, step counter and the place in the data, after the steps submitted so far, as one safetensors file;
   * the same state gives the same bytes. May be called while {@link train} goes on.
   */
  async saveState(): Promise<Uint8Array> {
    const { epoch, batch, ...note } = this.#place;
    const bytes = (await this.#raw.saveState(epoch, batch, JSON.stringify(note))) as Uint8Array;
    this.#kept = bytes.slice(); // the caller may hand over the other
    return bytes;
  }

  /**
   * Takes over a saved state; the next {@link train} of the same batches goes on where it stood, with the same bits as if
   * there had been no interruption, unless `bitsMayDiffer` (saved with other kernels or on another kind of device). Throws
   * code `checkpoint` for anything else, and changes nothing then.
   */
  loadState(bytes: Uint8Array): { bitsMayDiffer: boolean } {
    if (!(bytes instanceof Uint8Array)) {
      throw new LoraError("invalid-argument", `bytes: expected a Uint8Array, got ${show(bytes)}`);
    }
    this.#enter();
    try {
      const { place, bitsMayDiffer } = load(this.#raw, bytes);
      this.#place = this.#resume = place;
      this.#kept = bytes.slice();
      return { bitsMayDiffer };
    } finally {
      this.#leave();
    }
  }

  /**
   * Goes on on another device after this one was lost: makes the network anew there, the layers staying the objects that
   * they are, with the newest state that was kept: by a checkpoint, {@link saveState} or {@link loadState}, else that
   * before the first step. The next {@link train} of the same batches gives the same bits as if nothing had happened,
   * unless `bitsMayDiffer`. Call it when the training that was under way has ended, with code `device-lost`.
   */
  recover(gpu: Gpu): Promise<{ bitsMayDiffer: boolean }> {
    return this.#inTurn(async () => {
      unwrap<RawGpu>("gpu", Gpu, gpu);
      await gpu.finished(); // throws where that one is lost, too
      const layers = new Map<LoraLinear, LoraLinear>();
      let raw: RawTrainer | undefined;
      try {
        for (const layer of loraLayers(this.#options.layers)) layers.set(layer, remake(layer, gpu));
        const built = build(gpu, this.#options, withLayers(this.#options.layers, layers));
        raw = built.raw;
        const { place, bitsMayDiffer } = this.#kept ? load(raw, this.#kept) : { place: START, bitsMayDiffer: false };
        await gpu.finished();
        this.#free();
        layers.forEach((made, layer) => become(layer, made));
        [this.#gpu, this.#raw, this.#norms] = [gpu, raw, built.norms];
        bind(this, raw);
        this.#place = this.#resume = place;
        return { bitsMayDiffer };
      } catch (error) {
        raw?.destroy();
        layers.forEach((layer) => layer.dispose());
        throw error;
      }
    });
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
    if (this.#disposed) this.#free();
  }

  #free(): void {
    this.#raw.destroy();
    this.#norms.forEach((norm) => norm.destroy());
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
    if (this.#options.loss.kind === "crossEntropy" && target instanceof Int32Array) this.#raw.checkLabels(target);
    const tokens = x.length / width;
    const plan = this.#raw.plan(tokens);
    plan.load(x, target);
    return { plan, tokens };
  }

  /** `place` is where the training stands after it. */
  async #submit(batches: Batch[], place?: Place): Promise<{ submitted: Promise<unknown>; tokens: number }> {
    if (batches.length === 0) throw new LoraError("invalid-argument", "batch: expected at least one batch, got none");
    let tokens = 0;
    const only = batches.length === 1 ? batches[0] : undefined;
    const whole = only && this.#load(only);
    if (whole) {
      tokens = whole.tokens;
      await this.#compile(whole.plan);
    } else {
      // Gradients and totals start from zero, so that a window which a bad batch ended leaves nothing behind.
      await this.#raw.beginWindow();
      for (const batch of batches) {
        const loaded = this.#load(batch);
        tokens += loaded.tokens;
        await this.#compile(loaded.plan);
        const submitted = this.#raw.microStep(loaded.plan) as Promise<unknown>;
        loaded.plan.free();
        await submitted; // no update where a part of it failed
      }
    }
    // In one go, so that whoever saves the state finds both or neither.
    const before = this.#raw.attempts();
    const submitted = (whole ? this.#raw.step(whole.plan) : this.#raw.endWindow()) as Promise<unknown>;
    whole?.plan.free();
    if (place && this.#raw.attempts() > before) this.#place = place;
    submitted.catch(() => {}); // the caller's to await
    return { submitted, tokens };
  }

  /** Has the browser make the pipelines that the first step of a plan would wait for. */
  async #compile(plan: RawPlan): Promise<void> {
    if (plan.missing() > 0) await compileAhead(this.#gpu.device, (keep) => void plan.compile(keep));
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

function load(raw: RawTrainer, bytes: Uint8Array): { place: Place; bitsMayDiffer: boolean } {
  const [epoch, batch, bitsMayDiffer, note] = raw.loadState(bytes) as [number, number, boolean, string];
  const { data, evaluated = 0, lowest, worse = 0 } = JSON.parse(note || "{}") as Partial<Place>;
  // JSON has no Infinity.
  return { place: { epoch, batch, data, evaluated, lowest: lowest ?? Infinity, worse } as Place, bitsMayDiffer };
}

function checkSignal(signal: unknown): void {
  const { aborted, addEventListener } = (signal ?? {}) as Partial<AbortSignal>; // perhaps of another window
  if (signal !== undefined && (typeof aborted !== "boolean" || typeof addEventListener !== "function")) {
    throw new LoraError("invalid-argument", `signal: expected an AbortSignal, got ${show(signal)}`);
  }
}

function checkCheckpoints(checkpoints: TrainOptions["checkpoints"]): void {
  if (checkpoints === undefined) return;
  checkOptions("checkpoints", checkpoints, ["run", "every", "onError"]);
  const { run, every, onError } = checkpoints;
  integer("checkpoints.every", every);
  if (run !== undefined && !(run instanceof Checkpoints)) {
    throw new LoraError("invalid-argument", `checkpoints.run: expected Checkpoints, got ${show(run)}`);
  }
  if (onError !== undefined && typeof onError !== "function") {
    throw new LoraError("invalid-argument", `checkpoints.onError: expected a function, got ${show(onError)}`);
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

/** A number below 2³² that is the same everywhere: MurmurHash3's last step over the seed's halves and the index. */
function lot(seed: number, index: number): number {
  return [seed % 2 ** 32, Math.floor(seed / 2 ** 32), index].reduce((hash, word) => {
    let h = (hash ^ word) + 0x9e3779b9; // else zeros would stay zeros
    h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    return (h ^ (h >>> 16)) >>> 0;
  }, 0);
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

/** The batches until the signal; neither for it nor for a lost device is a source waited for that hangs. */
async function* until(signal: AbortSignal | undefined, gpu: Gpu, batches: BatchIterable): AsyncGenerator<Batch, void, undefined> {
  const iterator = Symbol.asyncIterator in batches ? batches[Symbol.asyncIterator]() : batches[Symbol.iterator]();
  let wake = () => {};
  let lost = false;
  const stop = () => wake();
  signal?.addEventListener("abort", stop);
  void gpu.lost.then(() => {
    lost = true;
    stop();
  });
  let ended = false;
  try {
    while (!signal?.aborted) {
      const next = await new Promise<IteratorResult<Batch> | undefined>((resolve, reject) => {
        wake = () => resolve(undefined);
        Promise.resolve(iterator.next()).then(resolve, reject);
      });
      if (lost) await gpu.finished(); // throws
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
