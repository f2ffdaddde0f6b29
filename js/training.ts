// What the trainers of layers and of language models share: the way through the data, records, states, and who waits for whom.
import type { RawGpu } from "./wasm/lora_webgpu.js";
import { bind, boolean, callable, checkOptions, checkSignal, disposable, integer, show, unwrap } from "./check.js";
import { Checkpoints } from "./checkpoints.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";

/** Options of every training. */
export interface RunOptions {
  /** Times through the data; default 1. */
  epochs?: number;
  /** Ends the training after the steps that were submitted; a step of which only some batches were is given up. No error. */
  signal?: AbortSignal;
  /** Steps between two records; by default 10 of a {@link Trainer} and 1 of a {@link LanguageTrainer}. */
  logEvery?: number;
  /** Steps that may run ahead of the GPU; default 3. */
  inFlight?: number;
  /**
   * Whether to go on where a loaded state stands, which asks for the data that it was trained on; default true. With false the
   * training begins at the first batch of any data, with the adapters, moments and step counter of the state.
   */
  resume?: boolean;
  /** Hears of each kernel that is compiled before the first step, side by side and without blocking the page. */
  onCompile?: (done: number, total: number) => void;
  /** Keep the state now and then and at the end. */
  checkpoints?: {
    /** Where to write it. Without one it is kept in memory alone, for `recover()`. */
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
  /** Which of the LoRA layers that are trained, from 0. */
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
  /** Mean loss of these steps, as it was before each update, without those that counted nothing or were skipped; NaN where all were skipped. */
  loss: number;
  /** Norm of the last step's gradients before clipping. */
  gradNorm: number;
  /** Learning rate of the last step. */
  lr: number;
  /** Tokens that went through the model each second, without the consumer's time. */
  tokensPerSecond: number;
  /** Steps among these whose loss or gradients were not finite, so that they updated nothing. */
  skipped: number;
  /** Where that began, for each of them. */
  notFinite: NotFinite[];
  /** Steps among these that counted nothing, all labels being ignored: loss 0, and no update. */
  nothingCounted: number;
  /** Mean loss over what is kept for validation, where it was evaluated since the last record. */
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
  readonly data?: string | undefined;
  /** Batches, or examples, where their number was known. */
  readonly length?: number | undefined;
  /** For early stopping: the step evaluated last, the lowest loss, and evaluations since it. */
  readonly evaluated: number;
  readonly lowest: number;
  readonly worse: number;
}
const START: Place = { epoch: 0, batch: 0, evaluated: 0, lowest: Infinity, worse: 0 };

// Steps whose records the GPU keeps (LOG_ROWS in src/optim).
const LOG_ROWS = 1024;

/** What the façade's trainers have in common. @internal */
export interface RawTraining {
  attempts(): number;
  layerName(layer: number): string | undefined;
  records(from: number): Promise<unknown>;
  saveState(epoch: number, batch: number, note: string): Promise<unknown>;
  loadState(bytes: Uint8Array): unknown[];
  destroy(): void;
}

/** The data of one training. @internal */
export interface Run<B> {
  /** Batches of an epoch, from its batch `start` on; `skip` of these are to be passed over. */
  epoch(epoch: number, start: number): { batches: Iterable<B> | AsyncIterable<B>; skip: number };
  /** Batches in an epoch, where that is known. */
  length: number | undefined;
  /** What is to be as many when a training goes on, and its name. */
  same: { name: string; length: number } | undefined;
  /** What else decides which batch is trained on when. */
  data: string;
  validation: { every: number; patience: number; evaluate(): Promise<number> } | undefined;
}

/** What {@link Trainer} and {@link LanguageTrainer} share. */
export abstract class Training<B> {
  /** @internal */
  protected gpu: Gpu;
  /** @internal */
  protected raw: RawTraining;
  /** Of the training under way. @internal */
  protected onCompile: ((done: number, total: number) => void) | undefined;
  readonly #accumulation: number;
  #active: "training" | "step" | undefined;
  #pending = 0;
  #disposed = false;
  // step(), recover() and the beginning of train() wait for the ones before them.
  #queue: Promise<unknown> = Promise.resolve();
  // The last places, each with the steps that lead to it: a step that the GPU refuses is counted back.
  #places: { at: number; place: Place }[] = [{ at: 0, place: START }];
  #resume: Place | undefined;
  // Stands for the training under way, or the one that #resume is a place in: an interrupted one is gone on with, one that ended is not.
  #course: object | undefined;
  // The newest state that is known here, for recover(), and which training it is a state of.
  #kept: { bytes: Uint8Array; course: object | undefined } | undefined;

  /** @internal */
  protected constructor(gpu: Gpu, raw: RawTraining, accumulation: number) {
    [this.gpu, this.raw, this.#accumulation] = [gpu, raw, accumulation];
    bind(this, raw, `a ${new.target.name}`);
  }

  /** Submits a step over these batches, its update before this resolves; `submitted` is the GPU's answer. @internal */
  protected abstract submit(batches: B[]): Promise<{ submitted: Promise<unknown>; tokens: number }>;

  /** Frees what the trainer has besides. @internal */
  protected free(): void {
    this.raw.destroy();
  }

  /** Steps submitted so far, skipped ones included. */
  get steps(): number {
    return this.raw.attempts();
  }

  /**
   * Adapters, moments, step counter and the place in the data, after the steps submitted so far, as one safetensors file;
   * the same state gives the same bytes. May be called while a training goes on.
   */
  async saveState(): Promise<Uint8Array> {
    const { epoch, batch, ...note } = this.#place;
    const course = this.#course;
    const bytes = (await this.raw.saveState(epoch, batch, JSON.stringify(note))) as Uint8Array;
    this.#kept = { bytes: bytes.slice(), course }; // the caller may hand over the other
    return bytes;
  }

  /**
   * Takes over a saved state; the next training with the same data goes on where it stood, with the same bits as if
   * there had been no interruption, unless `bitsMayDiffer` (saved with other kernels or on another kind of device); where the
   * state is the end of its training, the next one takes no step. Other data is refused with code `checkpoint`, unless
   * {@link RunOptions.resume} is false. Throws code `checkpoint` for anything else than a state of such a trainer, and changes
   * nothing then; `busy` during a training or a step.
   */
  loadState(bytes: Uint8Array): { bitsMayDiffer: boolean } {
    if (!(bytes instanceof Uint8Array)) {
      throw new LoraError("invalid-argument", `bytes: expected a Uint8Array, got ${show(bytes)}`);
    }
    this.#enter("step");
    try {
      const { place, bitsMayDiffer } = load(this.raw, bytes);
      this.#course = {};
      this.#stand(place, true);
      this.#kept = { bytes: bytes.slice(), course: this.#course };
      return { bitsMayDiffer };
    } finally {
      this.#leave();
    }
  }

  /** Frees moments and activations, after the calls that are under way; the adapters stay. Idempotent. */
  dispose(): void {
    this.#disposed = true;
    if (!this.#active && this.#pending === 0) this.free();
  }

  /** One step, when those before it are done. @internal */
  protected takeStep(batches: B[]): Promise<StepRecord> {
    return this.#inTurn(async () => {
      const began = performance.now();
      const before = this.raw.attempts();
      const kept = this.#kept ? undefined : this.saveState(); // of now, while the pipelines are made
      kept?.catch(() => {}); // awaited below
      const { submitted, tokens } = await this.submit(batches);
      submitted.catch(() => {}); // awaited below
      const recorded = this.#record(before, 0, tokens, began); // asked for before the submit is known to have gone well
      recorded.catch(() => {}); // awaited below
      await submitted;
      await kept;
      const record = await recorded;
      if (!record) throw new LoraError("device-lost", "the step left no record");
      return record;
    });
  }

  /** `work` that needs the trainer to be there until it is done. @internal */
  protected async using<T>(work: () => Promise<T>): Promise<T> {
    this.#alive();
    this.#pending++;
    try {
      return await work();
    } finally {
      this.#pending--;
      if (this.#disposed) this.dispose();
    }
  }

  /** Puts what `make` makes on `gpu` in the place of what is there, with the newest state that was kept. @internal */
  protected replace(gpu: Gpu, make: (kept: boolean) => { raw: RawTraining; use(): void; drop(): void }): Promise<{ bitsMayDiffer: boolean }> {
    return this.#inTurn(async () => {
      unwrap<RawGpu>("gpu", Gpu, gpu);
      await gpu.finished(); // throws where that one is lost, too
      const { raw, use, drop } = make(this.#kept !== undefined);
      try {
        const kept = this.#kept;
        const { place, bitsMayDiffer } = kept ? load(raw, kept.bytes) : { place: START, bitsMayDiffer: false };
        await gpu.finished();
        this.free();
        use();
        [this.gpu, this.raw] = [gpu, raw];
        bind(this, raw);
        this.#stand(place, kept?.course !== undefined && kept.course === this.#course);
        return { bitsMayDiffer };
      } catch (error) {
        drop();
        throw error;
      }
    });
  }

  /** Trains, after the steps that were asked for before; `prepare` checks what is given and says how to go through it. @internal */
  protected async *run(options: RunOptions, logDefault: number, prepare: (resuming: boolean) => Run<B>): AsyncGenerator<StepRecord, void, undefined> {
    await this.#queue;
    while (this.#active === "step") await this.#queue;
    const { epochs, signal, logEvery, inFlight, checkpoints, onCompile, resume: goOn } = checkRun(options, logDefault);
    const before = goOn ? this.#resume : undefined;
    const { epoch: dataOf, length: known, same, data, validation } = prepare(before !== undefined || epochs > 1);
    if (before) expectSame(before, data, same);
    this.#enter("training");
    this.#resume = before;
    if (!before) this.#course = {};
    this.onCompile = onCompile;
    const accumulation = this.#accumulation;
    const attempts = () => this.raw.attempts();
    const running: Promise<unknown>[] = [];
    const drain = async (left: number) => {
      while (running.length > left) await running.shift();
    };
    const saver = new Saver(attempts, checkpoints, () => (checkpoints?.run ? checkpoints.run.save(this) : this.saveState()));
    const stopping = wakers(signal, this.gpu);
    let failed = false, lost = false;
    try {
      if (!this.#kept) await this.saveState();
      const resume = before ?? { ...START, evaluated: attempts() };
      let place: Place = { ...resume, data, length: same?.length };
      let length = known;
      const pace = new Pace(attempts());
      let validationLoss: number | undefined;
      const take = async (): Promise<StepRecord | undefined> => {
        await drain(0);
        const record = await this.#record(pace.logged, place.epoch, pace.tokens, pace.began);
        const left = pace.take(attempts());
        if (!record) return undefined;
        Object.assign(record, left, validationLoss !== undefined && { validationLoss }, saver.take());
        validationLoss = undefined;
        return record;
      };
      // Whether to stop. An evaluation that a checkpoint came before is made up for.
      const validate = async (): Promise<boolean> => {
        const step = attempts();
        if (validation && step % validation.every === 0 && place.evaluated < step) {
          await drain(0);
          validationLoss = await validation.evaluate();
          const better = validationLoss < place.lowest;
          place = { ...place, evaluated: step, lowest: better ? validationLoss : place.lowest, worse: better ? 0 : place.worse + 1 };
          this.#standsAt(step, place);
        }
        return place.worse >= (validation?.patience ?? Infinity);
      };
      this.#standsAt(attempts(), place);
      let stop = await validate();
      for (let epoch = resume.epoch; epoch < epochs && !stop; epoch++) {
        const start = epoch === resume.epoch ? resume.batch : 0;
        const { batches, skip } = dataOf(epoch, start);
        const first = attempts() - Math.ceil(start / accumulation); // steps before this epoch
        const plan = () => {
          if (length !== undefined) pace.total = first + (epochs - epoch) * Math.ceil(length / accumulation);
        };
        plan();
        let seen = start;
        place = { ...place, epoch, batch: start };
        this.#standsAt(attempts(), place);
        for await (const window of windows(until(stopping, batches), skip, accumulation)) {
          if (signal?.aborted) break;
          seen += window.length;
          place = { ...place, batch: seen };
          this.#standsAt(attempts() + 1, place);
          const step = await this.submit(window);
          this.#resume = undefined;
          pace.tokens += step.tokens;
          const done = Promise.all([step.submitted, this.gpu.finished()]);
          done.catch(() => {}); // awaited below, in order
          running.push(done);
          await drain(inFlight - 1);
          stop = await validate();
          await saver.step();
          if (attempts() - pace.logged >= logEvery) {
            const record = await take();
            if (record) yield record;
            pace.goOn(); // the consumer's time is not ours
          }
          if (stop) break;
        }
        if (signal?.aborted || stop) break;
        if (seen === 0) throw new LoraError("invalid-argument", `batches: expected at least one batch in epoch ${epoch}, got none`);
        length ??= seen;
        plan();
        this.#standsAt(attempts(), { ...place, epoch: epoch + 1, batch: 0 });
      }
      if (!signal?.aborted) this.#resume = undefined; // where there was nothing left to do
      await drain(0);
      await saver.finish();
      const record = await take();
      if (record) yield record;
    } catch (error) {
      failed = true;
      lost = error instanceof LoraError && error.code === "device-lost";
      throw error;
    } finally {
      await Promise.allSettled([...running, saver.writing]);
      stopping.end();
      this.onCompile = undefined;
      try {
        if (!failed) await saver.finish(); // after a break
      } finally {
        if (!this.#resume && !lost && !stopping.lost()) this.#course = undefined;
        this.#leave();
      }
    }
  }

  get #place(): Place {
    const steps = this.raw.attempts();
    let i = this.#places.length - 1;
    while (i > 0 && (this.#places[i] as { at: number }).at > steps) i--;
    return (this.#places[i] as { place: Place }).place;
  }

  /** After `at` steps the training stands at `place`. */
  #standsAt(at: number, place: Place): void {
    const places = this.#places;
    while ((places.at(-1)?.at ?? -1) >= at) places.pop();
    places.push({ at, place });
    if (places.length > 2 * LOG_ROWS) places.splice(0, LOG_ROWS);
  }

  /** A loaded state's place, with which the next training goes on or not. */
  #stand(place: Place, goOn: boolean): void {
    this.#resume = goOn ? place : undefined;
    this.#places = [{ at: 0, place }];
  }

  #alive(): void {
    if (this.#disposed) throw new LoraError("disposed", "this trainer was disposed of; expected a live one");
  }

  #enter(what: "training" | "step"): void {
    this.#alive();
    if (this.#active) throw new LoraError("busy", `this trainer is at work on a ${this.#active}; expected its end`);
    this.#active = what;
  }

  #leave(): void {
    this.#active = undefined;
    if (this.#disposed) this.dispose();
  }

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#queue;
    let done = () => {};
    this.#queue = new Promise<void>((resolve) => (done = resolve));
    await before;
    try {
      this.#enter("step");
      try {
        return await work();
      } finally {
        this.#leave();
      }
    } finally {
      done();
    }
  }

  async #record(from: number, epoch: number, tokens: number, began: number): Promise<StepRecord | undefined> {
    const log = (await this.raw.records(from)) as Float32Array;
    const rows = log.length / 4;
    if (rows === 0) return undefined;
    const tokensPerSecond = (1000 * tokens) / (performance.now() - began);
    let [loss, nothingCounted] = [0, 0];
    const notFinite: NotFinite[] = [];
    const first = this.raw.attempts() - rows;
    for (let row = 0; row < rows; row++) {
      const outcome = log[4 * row + 3] as number; // as begin_step.wgsl numbers it
      if (outcome < 2) {
        loss += log[4 * row] as number;
        nothingCounted += outcome;
      } else {
        const layer = Math.floor((outcome - 3) / 2);
        const name = layer < 0 ? undefined : this.raw.layerName(layer);
        notFinite.push({
          step: first + row,
          ...(layer >= 0 && { in: outcome % 2 === 1 ? "output" : "gradient", layer }),
          ...(name !== undefined && { name }),
        });
      }
    }
    const skipped = notFinite.length;
    const counted = rows - skipped - nothingCounted;
    const last = log.subarray(-4);
    return {
      step: this.raw.attempts(),
      epoch,
      loss: counted > 0 ? loss / counted : skipped < rows ? 0 : NaN,
      gradNorm: last[1] as number,
      lr: last[2] as number,
      tokensPerSecond,
      skipped,
      notFinite,
      nothingCounted,
    };
  }
}
disposable(Training.prototype);

function load(raw: RawTraining, bytes: Uint8Array): { place: Place; bitsMayDiffer: boolean } {
  const [epoch, batch, bitsMayDiffer, text] = raw.loadState(bytes) as [number, number, boolean, string];
  let note: Partial<Record<keyof Place, unknown>> = {};
  try {
    note = { ...(JSON.parse(text) as object) };
  } catch {
    // Saved from Rust, with a note that says nothing of this.
  }
  const number = (value: unknown, otherwise: number) => (typeof value === "number" ? value : otherwise); // JSON has no Infinity
  const place: Place = {
    epoch,
    batch,
    data: typeof note.data === "string" ? note.data : undefined,
    length: typeof note.length === "number" ? note.length : undefined,
    evaluated: number(note.evaluated, 0),
    lowest: number(note.lowest, Infinity),
    worse: number(note.worse, 0),
  };
  return { place, bitsMayDiffer };
}

/** The options of a training with their defaults. */
function checkRun(options: RunOptions, logDefault: number) {
  const { epochs = 1, signal, logEvery = logDefault, inFlight = 3, resume = true, checkpoints, onCompile } = options;
  integer("epochs", epochs);
  checkSignal(signal);
  if (integer("logEvery", logEvery) > LOG_ROWS) {
    throw new LoraError("invalid-argument", `logEvery: expected at most ${LOG_ROWS}, which the GPU keeps, got ${logEvery}`);
  }
  integer("inFlight", inFlight);
  boolean("resume", resume);
  checkCheckpoints(checkpoints);
  if (onCompile !== undefined) callable("onCompile", onCompile);
  return { epochs, signal, logEvery, inFlight, resume, checkpoints, onCompile };
}

/** A training goes on with what it was saved with. */
function expectSame(before: Place, data: string, same: { name: string; length: number } | undefined): void {
  if (before.data !== undefined && before.data !== data) {
    throw new LoraError("checkpoint", `the training that was saved had ${before.data}; expected the same, got ${data}`);
  }
  if (same && before.length !== undefined && before.length !== same.length) {
    throw new LoraError("checkpoint", `${same.name}: expected the ${before.length} of the saved training, got ${same.length}`);
  }
}

/** How fast the steps go, and how long the rest of them takes. */
class Pace {
  /** The step of the last record, the tokens since then, and since when they are timed. */
  logged: number;
  tokens = 0;
  began = performance.now();
  /** Steps there will be, where that is known. */
  total: number | undefined;
  #steps = 0;
  #milliseconds = 0;

  constructor(step: number) {
    this.logged = step;
  }

  /** What a record at `step` says of them. */
  take(step: number): Pick<StepRecord, "total" | "secondsLeft"> {
    this.#milliseconds += performance.now() - this.began;
    this.#steps += step - this.logged;
    [this.logged, this.tokens] = [step, 0];
    this.goOn();
    const { total } = this;
    return total === undefined ? {} : { total, secondsLeft: (Math.max(0, total - step) * this.#milliseconds) / 1000 / this.#steps };
  }

  goOn(): void {
    this.began = performance.now();
  }
}

/** Keeps checkpoints, of which one is written while the training goes on. */
class Saver {
  writing: Promise<void> | undefined;
  readonly #attempts: () => number;
  readonly #options: RunOptions["checkpoints"];
  readonly #write: () => Promise<unknown>;
  #asked: number;
  #news: Pick<StepRecord, "checkpoint" | "checkpointError"> = {};

  constructor(attempts: () => number, options: RunOptions["checkpoints"], write: () => Promise<unknown>) {
    [this.#attempts, this.#options, this.#write, this.#asked] = [attempts, options, write, attempts()];
  }

  /** After a step. */
  async step(): Promise<void> {
    if (this.#options && this.#attempts() % this.#options.every === 0) await this.#save();
  }

  /** Resolves when the last steps are written, too. */
  async finish(): Promise<void> {
    if (this.#options && this.#attempts() !== this.#asked) await this.#save();
    await this.writing;
  }

  /** What the next record says. */
  take(): Pick<StepRecord, "checkpoint" | "checkpointError"> {
    const news = this.#news;
    this.#news = {};
    return news;
  }

  async #save(): Promise<void> {
    await this.writing;
    const step = (this.#asked = this.#attempts());
    const failed = (checkpointError: LoraError) => {
      this.#news = { checkpointError };
      this.#options?.onError?.(checkpointError);
    };
    this.writing = this.#write().then(() => void (this.#news = { checkpoint: step }), failed);
    this.writing.catch(() => {}); // of onError itself: awaited before the next one
  }
}

function checkCheckpoints(checkpoints: RunOptions["checkpoints"]): void {
  if (checkpoints === undefined) return;
  checkOptions("checkpoints", checkpoints, ["run", "every", "onError"]);
  const { run, every, onError } = checkpoints;
  integer("checkpoints.every", every);
  if (run !== undefined && !(run instanceof Checkpoints)) {
    throw new LoraError("invalid-argument", `checkpoints.run: expected Checkpoints, got ${show(run)}`);
  }
  if (onError !== undefined) callable("checkpoints.onError", onError);
}

// Whom to wake when a device is lost: a promise keeps whatever waits for it, and `lost` is there as long as the device.
const losses = new WeakMap<Gpu, { lost: boolean; wakers: Set<() => void> }>();

/** Ends the waiting for data when the signal comes or the device is lost. */
function wakers(signal: AbortSignal | undefined, gpu: Gpu) {
  let loss = losses.get(gpu);
  if (!loss) {
    const made: { lost: boolean; wakers: Set<() => void> } = { lost: false, wakers: new Set() };
    loss = made;
    losses.set(gpu, made);
    void gpu.lost.then(() => {
      made.lost = true;
      made.wakers.forEach((wake) => wake());
    });
  }
  const known = loss, { wakers } = known;
  const stopping = { wake: () => {}, aborted: () => signal?.aborted === true, lost: () => known.lost, gpu, end: () => {} };
  const wake = () => stopping.wake();
  wakers.add(wake);
  signal?.addEventListener("abort", wake);
  stopping.end = () => {
    wakers.delete(wake);
    signal?.removeEventListener("abort", wake);
  };
  return stopping;
}

/** The batches until the signal; neither for it nor for a lost device is a source waited for that hangs. */
async function* until<B>(stopping: ReturnType<typeof wakers>, batches: Iterable<B> | AsyncIterable<B>): AsyncGenerator<B, void, undefined> {
  const iterator = Symbol.asyncIterator in batches ? batches[Symbol.asyncIterator]() : batches[Symbol.iterator]();
  let ended = false;
  try {
    while (!stopping.aborted()) {
      if (stopping.lost()) await stopping.gpu.finished(); // throws: nothing would wake what waits from now on
      const next = await new Promise<IteratorResult<B> | undefined>((resolve, reject) => {
        stopping.wake = () => resolve(undefined);
        Promise.resolve(iterator.next()).then(resolve, reject);
      });
      if (stopping.lost()) await stopping.gpu.finished(); // throws
      if (!next) return;
      if (next.done) {
        ended = true;
        return;
      }
      yield next.value;
    }
  } finally {
    if (!ended) Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

/** The batches after the first `skip`, in arrays of `size`, the last one perhaps shorter. */
async function* windows<B>(batches: AsyncIterable<B>, skip: number, size: number): AsyncGenerator<B[], void, undefined> {
  let window: B[] = [];
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

/** A number below 2³² that is the same everywhere: MurmurHash3's last step over the seed's halves and the index. @internal */
export function lot(seed: number, index: number): number {
  return [seed % 2 ** 32, Math.floor(seed / 2 ** 32), index].reduce((hash, word) => {
    let h = (hash ^ word) + 0x9e3779b9; // else zeros would stay zeros
    h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    return (h ^ (h >>> 16)) >>> 0;
  }, 0);
}
