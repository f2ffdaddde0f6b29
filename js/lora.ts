import { RawConfig, RawGrad, type RawGpu, RawLayer, type RawRecording, type RawTensor, RawWeight } from "./wasm/lora_webgpu.js";
import { bind, boolean, checkOptions, disposable, finite, float32Array, integer, seedNumber, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { Recording } from "./recording.js";
import { Tensor, wrapTensor } from "./tensor.js";

/** How an adapter is made. */
export interface AdapterOptions {
  inFeatures: number;
  outFeatures: number;
  /** Inner dimension of B·A. */
  rank: number;
  /** Numerator of the scaling; default: the rank, so that the scaling is 1. */
  alpha?: number;
  /** Scale by alpha/√rank instead of alpha/rank. */
  useRslora?: boolean;
  /** Share of the input that a trainer's steps drop before A, in [0, 1); default 0. */
  dropout?: number;
  /** Distribution of A: uniform in ±1/√inFeatures as PEFT's, or in ±√(3/inFeatures) as Hesper's. B starts at zero. */
  init?: "peft" | "hesper";
  /** The same seed gives the same bits on every device. */
  seed?: number;
}
const ADAPTER_OPTIONS = ["inFeatures", "outFeatures", "rank", "alpha", "useRslora", "dropout", "init", "seed"];

function rawConfig({ rank, alpha = rank, useRslora = false, dropout = 0, init = "peft", seed = 0 }: AdapterOptions): RawConfig {
  if (init !== "peft" && init !== "hesper") {
    throw new LoraError("invalid-argument", `init: expected "peft" or "hesper", got ${show(init)}`);
  }
  seedNumber(seed);
  return new RawConfig(
    integer("rank", rank),
    finite("alpha", alpha),
    boolean("useRslora", useRslora),
    finite("dropout", dropout),
    init === "hesper",
    seed,
  );
}

/** The adapter's matrices `a [rank, inFeatures]` and `b [outFeatures, rank]`. */
export class LoraWeight {
  readonly a: Tensor;
  readonly b: Tensor;
  #raw: RawWeight;

  constructor(gpu: Gpu, options: AdapterOptions) {
    if ((options as unknown) instanceof RawWeight) {
      this.#raw = options as unknown as RawWeight; // a layer's own
    } else {
      checkOptions("LoraWeight", options, ADAPTER_OPTIONS);
      const config = rawConfig(options);
      const { inFeatures, outFeatures } = options;
      this.#raw = new RawWeight(
        unwrap<RawGpu>("gpu", Gpu, gpu),
        integer("inFeatures", inFeatures),
        integer("outFeatures", outFeatures),
        config,
      );
    }
    bind(this, this.#raw);
    this.a = wrapTensor(this.#raw.a());
    this.b = wrapTensor(this.#raw.b());
  }

  /** Over tensors that are there already: `a [rank, inFeatures]`, `b [outFeatures, rank]`. */
  static from(gpu: Gpu, tensors: { a: Tensor; b: Tensor }): LoraWeight {
    checkOptions("LoraWeight.from", tensors, ["a", "b"]);
    const [a, b] = [unwrap<RawTensor>("a", Tensor, tensors.a), unwrap<RawTensor>("b", Tensor, tensors.b)];
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
  readonly a: Tensor;
  readonly b: Tensor;
  #raw: RawGrad;

  constructor(gpu: Gpu, weight: LoraWeight) {
    this.#raw =
      (weight as unknown) instanceof RawGrad // a layer's own
        ? (weight as unknown as RawGrad)
        : new RawGrad(unwrap<RawGpu>("gpu", Gpu, gpu), unwrap<RawWeight>("weight", LoraWeight, weight));
    bind(this, this.#raw);
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

/** Options of {@link LoraLinear}. */
export interface LoraLinearOptions extends AdapterOptions {
  /** The frozen weight `[outFeatures, inFeatures]`, row-major. */
  weight: Float32Array;
  /** The frozen bias `[outFeatures]`. */
  bias?: Float32Array;
  /** The module's name in its model, e.g. `encoder.fc`. */
  name?: string;
}

/** A frozen linear layer with an adapter: `output = x·Wᵀ + bias + scaling·(x·Aᵀ)·Bᵀ`. */
export class LoraLinear {
  readonly name: string | undefined;
  readonly inFeatures: number;
  readonly outFeatures: number;
  readonly rank: number;
  /** alpha/rank, or with rsLoRA alpha/√rank. */
  readonly scaling: number;
  /** The adapter. */
  readonly weight: LoraWeight;
  /** Its gradients; backward passes add to them. */
  readonly grad: LoraGrad;
  #raw: RawLayer;

  /** Throws code `shape` where a length differs, `invalid-argument`, `unknown-option`, or `limit`. */
  constructor(gpu: Gpu, options: LoraLinearOptions) {
    checkOptions("LoraLinear", options, [...ADAPTER_OPTIONS, "weight", "bias", "name"]);
    const { weight, bias, name } = options;
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    const config = rawConfig(options);
    this.name = name === undefined ? undefined : String(name);
    this.inFeatures = integer("inFeatures", options.inFeatures);
    this.outFeatures = integer("outFeatures", options.outFeatures);
    this.rank = integer("rank", options.rank);
    float32Array("weight", weight);
    if (bias !== undefined) float32Array("bias", bias);
    const uploaded: Tensor[] = [];
    const upload = (label: string, shape: number[], data: Float32Array): RawTensor => {
      const tensor = new Tensor(gpu, { label, shape, data });
      uploaded.push(tensor);
      return unwrap<RawTensor>(label, Tensor, tensor);
    };
    try {
      const rawWeight = upload("weight", [this.outFeatures, this.inFeatures], weight);
      const rawBias = bias && upload("bias", [this.outFeatures], bias);
      this.#raw = new RawLayer(rawGpu, this.name, rawWeight, rawBias ?? rawWeight, rawBias !== undefined, config);
    } catch (error) {
      uploaded.forEach((tensor) => tensor.dispose());
      throw error;
    }
    bind(this, this.#raw);
    this.scaling = this.#raw.scaling();
    this.weight = new LoraWeight(gpu, this.#raw.weight() as never);
    this.grad = new LoraGrad(gpu, this.#raw.grad() as never);
  }

  /** `A [rank, inFeatures]` */
  get a(): Tensor {
    return this.weight.a;
  }

  /** `B [outFeatures, rank]` */
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

  /** Whether the adapter takes part in what is recorded from now on. */
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
