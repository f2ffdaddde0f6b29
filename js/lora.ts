import { RawAdapter, RawConfig, type RawFrozen, RawGrad, type RawGpu, RawLayer, type RawRecording, RawStart, type RawTensor, RawWeight } from "./wasm/lora_webgpu.js";
import { FrozenLinear } from "./base.js";
import { array, bind, boolean, checkOptions, disposable, finite, float32Array, handedOver, integer, seedNumber, show, text, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { Recording } from "./recording.js";
import { Tensor, wrapTensor, written } from "./tensor.js";

/**
 * How A and B start. `peft`: A uniform in ±1/√inFeatures; `hesper`: in ±√(3/inFeatures), as in Hesper, the system in Lean whose LoRA
 * kernels are the origin of these; `gaussian`: normal of deviation 1/rank; of these B is zero. `orthogonal`, of an even rank: neither
 * zero, B·A zero. `pissa`, and with N iterations `pissa_niter_N`: the largest singular values and vectors of the weight; `olora`: the
 * beginning of its QR decomposition. These two are computed on the CPU in float64 (PiSSA of a width of 1000 takes seconds,
 * pissa_niter_4 a tenth of that) and taken out of the weight, so they need it as float32, on a layer's first adapter, and no DoRA. A
 * PiSSA or OLoRA adapter is saved as such, or with `plain` as one for the weight as it was.
 */
export type AdapterInit = "peft" | "hesper" | "gaussian" | "orthogonal" | "pissa" | `pissa_niter_${number}` | "olora";
const INIT = /^(peft|hesper|gaussian|orthogonal|olora|pissa(_niter_\d{1,4})?)$/;
/** Whether a start changes the base. @internal */
export const changesBase = (init: unknown): boolean => /^(pissa|olora)/.test(String(init));

/** How an adapter is made. */
export interface AdapterOptions {
  /** Width of the input. */
  inFeatures: number;
  /** Width of the output. */
  outFeatures: number;
  /** Inner dimension of B·A. */
  rank: number;
  /** Numerator of the scaling; default: the rank, so that the scaling is 1. */
  alpha?: number;
  /** Scale by alpha/√rank instead of alpha/rank. */
  useRslora?: boolean;
  /** Share of the input that a trainer's steps drop before A, in [0, 1); default 0. */
  dropout?: number;
  /** DoRA: a trained length for each row of W + scaling·B·A. */
  useDora?: boolean;
  /** A trained bias beside B. */
  loraBias?: boolean;
  /** Train the base's own bias, too, where it has one. */
  trainBias?: boolean;
  /** How A and B start; default `"peft"`. */
  init?: AdapterInit;
  /** The same seed gives the same bits on every device. */
  seed?: number;
}
const ADAPTER_OPTIONS = ["inFeatures", "outFeatures", "rank", "alpha", "useRslora", "dropout", "useDora", "loraBias", "trainBias", "init", "seed"];

function rawConfig(options: Omit<AdapterOptions, "inFeatures" | "outFeatures">): RawConfig {
  const { rank, alpha = rank, dropout = 0, init = "peft", seed = 0 } = options;
  if (typeof init !== "string" || !INIT.test(init)) {
    throw new LoraError("invalid-argument", `init: expected peft, hesper, gaussian, orthogonal, pissa, pissa_niter_N or olora, got ${show(init)}`);
  }
  if (changesBase(init) && options.useDora) {
    throw new LoraError("invalid-argument", `init: expected one that leaves the weight to DoRA, got ${init}`);
  }
  const names = ["useRslora", "useDora", "loraBias", "trainBias"] as const;
  const flags = names.map((name) => boolean(name, options[name] ?? false)).concat(init === "hesper");
  const bits = flags.reduce((sum, flag, bit) => sum + (flag ? 1 << bit : 0), 0);
  return new RawConfig(integer("rank", rank), finite("alpha", alpha), finite("dropout", dropout), seedNumber(seed), bits);
}

/** A and B where the CPU computes their start, and for one that changes the base the weight that is left. */
function computedStart(gpu: Gpu, options: LoraLinearOptions, config: RawConfig): Float32Array[] | undefined {
  const { init = "peft", weight, inFeatures, outFeatures } = options;
  if (init === "peft" || init === "hesper") return undefined;
  const values = changesBase(init) ? float32Array("weight", weight) : new Float32Array();
  const raw = new RawStart(unwrap<RawGpu>("gpu", Gpu, gpu), init, values, outFeatures, inFeatures, config);
  try {
    return [0, 1, 2].map((part) => raw.part(part) as Float32Array);
  } finally {
    raw.free();
  }
}

function writeStart(weight: { a: Tensor; b: Tensor }, [a, b]: Float32Array[] = []): void {
  if (a) weight.a.write(a);
  if (b) weight.b.write(b);
  for (const tensor of [weight.a, weight.b]) written.delete(tensor); // it can be computed again
}

function refuseBaseChange({ init }: { init?: AdapterInit }, expected: string): void {
  if (changesBase(init)) throw new LoraError("invalid-argument", `init: ${init} changes the weight: expected ${expected}`);
}

/** An adapter's matrices `a [rank, inFeatures]` and `b [outFeatures, rank]`. */
export class LoraWeight {
  /** `A [rank, inFeatures]` */
  readonly a: Tensor;
  /** `B [outFeatures, rank]` */
  readonly b: Tensor;
  #raw: RawWeight;

  /** A new one with B zero, or as `init` says. Throws `invalid-argument`, `unknown-option` or `limit`. */
  constructor(gpu: Gpu, options: AdapterOptions) {
    let start: Float32Array[] | undefined;
    if ((options as unknown) instanceof RawWeight) {
      this.#raw = options as unknown as RawWeight; // a layer's own
    } else {
      checkOptions("LoraWeight", options, ADAPTER_OPTIONS);
      const config = rawConfig(options);
      refuseBaseChange(options, "a LoraLinear, which has one");
      const [inFeatures, outFeatures] = [integer("inFeatures", options.inFeatures), integer("outFeatures", options.outFeatures)];
      start = computedStart(gpu, options, config);
      this.#raw = new RawWeight(unwrap<RawGpu>("gpu", Gpu, gpu), inFeatures, outFeatures, config);
    }
    bind(this, this.#raw, (options as unknown) instanceof RawWeight ? undefined : "a LoraWeight");
    this.a = wrapTensor(this.#raw.a());
    this.b = wrapTensor(this.#raw.b());
    if (start) writeStart(this, start);
  }

  /** Over tensors that are there already: `a [rank, inFeatures]`, `b [outFeatures, rank]`. */
  static from(gpu: Gpu, tensors: { a: Tensor; b: Tensor }): LoraWeight {
    checkOptions("LoraWeight.from", tensors, ["a", "b"]);
    const [a, b] = [unwrap<RawTensor>("a", Tensor, tensors.a), unwrap<RawTensor>("b", Tensor, tensors.b)];
    unwrap("gpu", Gpu, gpu);
    return new LoraWeight(gpu, RawWeight.from(a, b) as never);
  }

  /** Frees the GPU memory. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(LoraWeight.prototype);

/** Gradients of a {@link LoraWeight}, of the same shapes. They start at zero; kernels add to them. */
export class LoraGrad {
  /** The gradient of A `[rank, inFeatures]`. */
  readonly a: Tensor;
  /** The gradient of B `[outFeatures, rank]`. */
  readonly b: Tensor;
  #raw: RawGrad;

  /** Zeros of the shapes of `weight`. */
  constructor(gpu: Gpu, weight: LoraWeight) {
    this.#raw =
      (weight as unknown) instanceof RawGrad // a layer's own
        ? (weight as unknown as RawGrad)
        : new RawGrad(unwrap<RawGpu>("gpu", Gpu, gpu), unwrap<RawWeight>("weight", LoraWeight, weight));
    bind(this, this.#raw, (weight as unknown) instanceof RawGrad ? undefined : "a LoraGrad");
    this.a = wrapTensor(this.#raw.a());
    this.b = wrapTensor(this.#raw.b());
  }

  /** Records zeros into both gradients. */
  zero(rec: Recording): void {
    this.#raw.zero(unwrap<RawRecording>("rec", Recording, rec));
  }

  /** Frees the GPU memory. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(LoraGrad.prototype);

/** A trained tensor with its gradient, to which backward passes add. */
export interface Trained {
  /** The numbers themselves. */
  value: Tensor;
  /** Their gradient, to which kernels add. */
  grad: Tensor;
}

/** One adapter of a {@link LoraLinear}. */
export class LoraAdapter {
  /** Its name among the layer's adapters. */
  readonly name: string;
  /** Inner dimension of B·A. */
  readonly rank: number;
  /** Whether the scaling is alpha/√rank. */
  readonly useRslora: boolean;
  /** Share of the input that training drops. */
  readonly dropout: number;
  /** A and B. */
  readonly weight: LoraWeight;
  /** Their gradients; backward passes add to them. */
  readonly grad: LoraGrad;
  /** DoRA's magnitudes `[outFeatures]`. */
  readonly magnitude: Trained | undefined;
  /** The bias beside B, `[outFeatures]`. */
  readonly loraBias: Trained | undefined;
  /** The base's bias, where this adapter trains it. */
  readonly baseBias: Trained | undefined;
  readonly #raw: RawAdapter;

  /** Made by a layer. */
  constructor(gpu: Gpu, name: string, raw: unknown, options: { useRslora?: boolean; dropout?: number }) {
    if (!(raw instanceof RawAdapter)) throw new LoraError("invalid-argument", "LoraAdapter: a layer makes it, see addAdapter()");
    this.#raw = raw;
    this.name = name;
    this.useRslora = options.useRslora ?? false;
    this.dropout = options.dropout ?? 0;
    this.weight = new LoraWeight(gpu, raw.weight() as never);
    this.grad = new LoraGrad(gpu, raw.grad() as never);
    this.rank = this.weight.a.shape[0] as number;
    const vector = (which: number): Trained | undefined => {
      const [value, grad] = [raw.vector(which, false), raw.vector(which, true)];
      return value && grad && { value: wrapTensor(value), grad: wrapTensor(grad) };
    };
    this.magnitude = vector(0);
    this.loraBias = vector(1);
    this.baseBias = vector(2);
  }

  /** alpha/rank, or with rsLoRA alpha/√rank, times `scale`. */
  get scaling(): number {
    return this.#raw.scaling();
  }

  /**
   * A factor of the scaling, for what is recorded from now on, the steps of a trainer among it; 1 at first. `savePeft` writes what the
   * two make together, and a trainer's state is of that.
   */
  get scale(): number {
    return this.#raw.scale();
  }
  set scale(scale: number) {
    this.#raw.setScale(finite("scale", scale));
  }
}

/** Options of {@link LoraLinear}. */
export interface LoraLinearOptions extends AdapterOptions {
  /**
   * The frozen weight `[outFeatures, inFeatures]`, row-major. The layer keeps this very array, which must not
   * change, for `Trainer.recover()`.
   */
  weight?: Float32Array;
  /**
   * In place of `weight` and `bias` a frozen layer of any kind, which belongs to the layer from then on and is freed with it.
   * A layer on it cannot be moved to another device by `Trainer.recover()`.
   */
  base?: FrozenLinear;
  /** The frozen bias `[outFeatures]`. */
  bias?: Float32Array;
  /** The module's name in its model, e.g. `encoder.fc`. */
  name?: string;
}

/** What the package itself needs of a layer's private fields. @internal */
export const internals = {} as {
  /** What the start of a layer's first adapter took out of its weight: `scaling·B·A`. */
  takenOut(layer: LoraLinear): { a: Float32Array; b: Float32Array; scaling: number };
  /** Whether an adapter is the one that a layer was made with. */
  isFirst(layer: LoraLinear, adapter: string): boolean;
  /** A layer made as this one was, on another device, its active adapters to be filled where there is a state of them. */
  remake(layer: LoraLinear, gpu: Gpu, state: boolean): LoraLinear;
  /** Lets the layer be what `other` is, in the place of what it was. */
  become(layer: LoraLinear, other: LoraLinear): void;
};
/** Says that the active adapters are trained. @internal */
export const touchActive = (layer: LoraLinear) => layer.active.forEach((name) => tensorsOf(layer.adapter(name)).forEach((tensor) => written.add(tensor)));
const tensorsOf = ({ weight, magnitude, loraBias, baseBias }: LoraAdapter) =>
  [weight.a, weight.b, magnitude?.value, loraBias?.value, baseBias?.value].filter((tensor) => tensor !== undefined);

/**
 * A frozen linear layer with an adapter: `output = x·Wᵀ + bias + scaling·(x·Aᵀ)·Bᵀ`. Further adapters can be put beside the
 * first, whose name is `default`; those that are active take part and are trained.
 */
export class LoraLinear {
  /** The name of its module, which files call it by. */
  readonly name: string | undefined;
  /** Width of the input. */
  readonly inFeatures: number;
  /** Width of the output. */
  readonly outFeatures: number;
  /** How its first adapter started. */
  readonly init: AdapterInit;
  readonly #options: LoraLinearOptions;
  // Of the adapters that were added, by name.
  readonly #added = new Map<string, Omit<AdapterOptions, "inFeatures" | "outFeatures">>();
  readonly #adapters = new Map<string, LoraAdapter>();
  #gpu: Gpu;
  #raw: RawLayer;

  static {
    internals.takenOut = (layer) => {
      const config = rawConfig(layer.#options);
      const [a, b] = computedStart(layer.#gpu, layer.#options, config) as [Float32Array, Float32Array];
      return { a, b, scaling: config.scaling() };
    };
    internals.isFirst = (layer, adapter) => !layer.#added.has(adapter);
    internals.remake = (layer, gpu, state) => {
      if (layer.#options.base) {
        throw new LoraError("invalid-argument", "recover: expected layers made with `weight`, got one made with `base`");
      }
      const lost = layer.adapters.find((name) => !(state && layer.active.includes(name)) && tensorsOf(layer.adapter(name)).some((tensor) => written.has(tensor)));
      if (lost !== undefined) {
        throw new LoraError("checkpoint", `recover: the numbers of the adapter \`${lost}\` of ${layer.name ?? "a layer"} were written or trained, and no state has them: remove it first`);
      }
      const made = new LoraLinear(gpu, layer.#options);
      // The first one may have been taken away since, and another one of its name added; a layer keeps at least one.
      const first = made.adapters[0] as string, replaced = layer.#added.has(first) || !layer.adapters.includes(first);
      if (replaced) {
        made.addAdapter(" ", { rank: 1 });
        made.removeAdapter(first);
      }
      layer.#added.forEach((options, name) => made.addAdapter(name, options));
      if (replaced) made.removeAdapter(" ");
      for (const name of layer.adapters) made.adapter(name).scale = layer.adapter(name).scale;
      made.active = layer.active;
      made.enabled = layer.enabled;
      return made;
    };
    internals.become = (layer, other) => {
      layer.#raw.destroy();
      [layer.#raw, layer.#gpu] = [other.#raw, other.#gpu];
      layer.#adapters.clear();
      bind(layer, other.#raw);
      handedOver(other); // it is this one now
    };
  }

  /** Throws code `shape` where a length differs, `invalid-argument`, `unknown-option`, or `limit`. */
  constructor(gpu: Gpu, options: LoraLinearOptions) {
    checkOptions("LoraLinear", options, [...ADAPTER_OPTIONS, "weight", "bias", "base", "name"]);
    const { weight, bias, base, name } = options;
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    const config = rawConfig(options);
    this.init = options.init ?? "peft";
    this.#gpu = gpu;
    this.name = name === undefined ? undefined : text("name", name);
    this.inFeatures = integer("inFeatures", options.inFeatures);
    this.outFeatures = integer("outFeatures", options.outFeatures);
    if (base !== undefined) refuseBaseChange(options, "it in float32 as `weight`, got a base");
    const start = computedStart(gpu, options, config); // before anything is made
    if (base !== undefined) {
      const rawBase = unwrap<RawFrozen>("base", FrozenLinear, base);
      if (weight !== undefined || bias !== undefined) {
        throw new LoraError("invalid-argument", "base: expected no weight and bias beside it, got both");
      }
      if (base.inFeatures !== this.inFeatures || base.outFeatures !== this.outFeatures) {
        const [expected, got] = [[this.outFeatures, this.inFeatures], [base.outFeatures, base.inFeatures]];
        throw new LoraError("shape", `base: expected [${expected.join(", ")}], got [${got.join(", ")}]`);
      }
      this.#raw = RawLayer.onBase(rawGpu, this.name, rawBase, config);
      handedOver(base);
    } else {
      const frozen = new FrozenLinear(gpu, {
        inFeatures: this.inFeatures,
        outFeatures: this.outFeatures,
        weight: changesBase(options.init) && start?.[2] ? start[2] : float32Array("weight", weight),
        ...(bias !== undefined && { bias }),
      });
      try {
        this.#raw = RawLayer.onBase(rawGpu, this.name, unwrap<RawFrozen>("base", FrozenLinear, frozen), config);
        handedOver(frozen);
      } catch (error) {
        frozen.dispose();
        throw error;
      }
    }
    bind(this, this.#raw, `the layer ${this.name === undefined ? "" : `\`${this.name}\` `}(LoraLinear)`);
    this.#options = { ...options };
    writeStart(this.weight, start);
  }

  /** The adapter of this name; without one the first active adapter, or else the first. */
  adapter(name?: string): LoraAdapter {
    const chosen = name === undefined ? (this.active[0] ?? (this.#raw.adapters()[0] as string)) : text("adapter", name);
    const known = this.#adapters.get(chosen);
    if (known) return known;
    const adapter = new LoraAdapter(this.#gpu, chosen, this.#raw.adapter(chosen), this.#added.get(chosen) ?? this.#options);
    this.#adapters.set(chosen, adapter);
    return adapter;
  }

  /** The names of all adapters, in the order in which they were added. */
  get adapters(): string[] {
    return this.#raw.adapters();
  }

  /**
   * The names of the adapters that take part in what is recorded from now on, and that optimizers and trainers made from now on
   * train; none leaves the base alone. A trainer that is there refuses a step with others than it was made with.
   */
  get active(): string[] {
    return this.#raw.active();
  }
  set active(names: readonly string[]) {
    this.#raw.setActive(array("active", names, " of names").map((name) => text("active", name)));
  }

  /** Adds an adapter, which is not active yet. Its name must be a new one. */
  addAdapter(name: string, options: Omit<AdapterOptions, "inFeatures" | "outFeatures">): LoraAdapter {
    if (typeof name !== "string" || name === "") {
      throw new LoraError("invalid-argument", `name: expected a string that is not empty, got ${show(name)}`);
    }
    checkOptions("addAdapter", options, ADAPTER_OPTIONS.slice(2));
    const config = rawConfig(options);
    refuseBaseChange(options, "it with the layer's first adapter");
    const start = computedStart(this.#gpu, { ...options, inFeatures: this.inFeatures, outFeatures: this.outFeatures }, config); // before it is made
    const adapter = new LoraAdapter(this.#gpu, name, this.#raw.addAdapter(name, config), options);
    writeStart(adapter.weight, start);
    this.#adapters.set(name, adapter);
    this.#added.set(name, { ...options });
    return adapter;
  }

  /** Takes an adapter away and frees its memory; not the only one, nor one that an optimizer updates. */
  removeAdapter(name: string): void {
    this.#raw.removeAdapter(text("name", name));
    this.#adapters.delete(name);
    this.#added.delete(name);
  }

  /** A and B of the first active adapter. */
  get weight(): LoraWeight {
    return this.adapter().weight;
  }

  /** Their gradients; backward passes add to them. */
  get grad(): LoraGrad {
    return this.adapter().grad;
  }

  /** `A [rank, inFeatures]` of the first active adapter. */
  get a(): Tensor {
    return this.weight.a;
  }

  /** `B [outFeatures, rank]` of the first active adapter. */
  get b(): Tensor {
    return this.weight.b;
  }

  /** Gradient of A. */
  get gradA(): Tensor {
    return this.grad.a;
  }

  /** Gradient of B. */
  get gradB(): Tensor {
    return this.grad.b;
  }

  /** Inner dimension of the first active adapter's B·A. */
  get rank(): number {
    return this.adapter().rank;
  }

  /** alpha/rank, or with rsLoRA alpha/√rank, of the first active adapter. */
  get scaling(): number {
    return this.adapter().scaling;
  }

  /**
   * Adds the active adapters to the frozen weight, in float32 or float16, so that the layer costs no more than its base. With
   * `keepOriginal` a copy of the weight is kept and {@link unmerge} restores every bit; without it, within rounding. Another
   * kind of base is refused with code `invalid-argument`: merge into a file of the model, see {@link merge}. Write nothing into
   * an adapter that is merged: without `keepOriginal`, {@link unmerge} takes out what its tensors hold then.
   */
  async merge(options: { keepOriginal?: boolean } = {}): Promise<void> {
    checkOptions("merge", options, ["keepOriginal"]);
    await this.#raw.merge(boolean("keepOriginal", options.keepOriginal ?? false));
  }

  /** Takes merged adapters out of the weight again. */
  async unmerge(): Promise<void> {
    await this.#raw.unmerge();
  }

  /** Whether adapters are merged into the weight. */
  get merged(): boolean {
    return this.#raw.isMerged();
  }

  /** Whether active adapters take part in what is recorded from now on. */
  get enabled(): boolean {
    return this.#raw.enabled();
  }
  set enabled(enabled: boolean) {
    this.#raw.setEnabled(boolean("enabled", enabled));
  }

  /**
   * Records the forward pass of `x [tokens, inFeatures]`. The output `[tokens, outFeatures]` belongs to the layer; its
   * next forward pass overwrites it.
   */
  forward(rec: Recording, x: Tensor): Tensor {
    return wrapTensor(this.#raw.forward(unwrap<RawRecording>("rec", Recording, rec), unwrap<RawTensor>("x", Tensor, x)));
  }

  /**
   * Records the forward pass of a batch whose rows are of different adapters: row t is `adapters[t]`'s, or with null the
   * base's alone. Not for training.
   */
  forwardRows(rec: Recording, x: Tensor, adapters: readonly (string | null)[]): Tensor {
    const names = array("adapters", adapters, " of names").map((name) => (name === null ? "" : text("adapters", name)));
    return wrapTensor(
      this.#raw.forwardRows(unwrap<RawRecording>("rec", Recording, rec), unwrap<RawTensor>("x", Tensor, x), names),
    );
  }

  /**
   * Records the backward pass after a forward pass of the same `x`: adds to the gradients and, where it is given,
   * overwrites `dInput [tokens, inFeatures]`. With the adapter off only `dInput` is computed.
   */
  backward(rec: Recording, options: { x: Tensor; dOutput: Tensor; dInput?: Tensor }): void {
    checkOptions("backward", options, ["x", "dOutput", "dInput"]);
    const rawRec = unwrap<RawRecording>("rec", Recording, rec);
    const x = unwrap<RawTensor>("x", Tensor, options.x);
    const dOutput = unwrap<RawTensor>("dOutput", Tensor, options.dOutput);
    if (options.dInput === undefined) this.#raw.backward(rawRec, x, dOutput);
    else this.#raw.backwardWithInput(rawRec, x, dOutput, unwrap<RawTensor>("dInput", Tensor, options.dInput));
  }

  /** Records zeros into both gradients. */
  zeroGrad(rec: Recording): void {
    this.grad.zero(rec);
  }

  /** `scaling·B·A [outFeatures, inFeatures]`, as it is after everything submitted so far. */
  async deltaWeight(): Promise<Float32Array> {
    return (await this.#raw.deltaWeight()) as Float32Array;
  }

  /** Frees the GPU memory of base, adapter, gradients and activations. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(LoraLinear.prototype);
