import { packWeight, RawFrozen, type RawGpu, type RawRecording, type RawTensor } from "./wasm/lora_webgpu.js";
import { bind, boolean, checkOptions, disposable, finite, float32Array, integer, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { Recording } from "./recording.js";
import { Tensor } from "./tensor.js";

/**
 * What a frozen weight is stored as: floats of 4 or 2 bytes; GGUF's blocks of 32 in 34, 18 and 20 bytes; BitNet's
 * `scale·{−1, 0, 1}` in a quarter of a byte. It is unpacked on the GPU as it is used; no device feature is needed.
 */
export type WeightKind = "f32" | "f16" | "bf16" | "q8_0" | "q4_0" | "q4_1" | "bitlinear";

/** Options of {@link FrozenLinear}. */
export interface FrozenLinearOptions {
  /** Default `f32`. */
  kind?: WeightKind;
  /** Columns of the weight: for blocks a multiple of 32, for `i2_s` of 128. */
  inFeatures: number;
  /** Rows of the weight: for transformers' packing a multiple of 4. */
  outFeatures: number;
  /**
   * `[outFeatures, inFeatures]`, row-major: the bytes as a file has them, or floats, which are packed for `f16`, `bf16` (to
   * nearest, half to even) and `q8_0`. Without it the weight comes in pieces by {@link FrozenLinear.write}.
   */
  weight?: Uint8Array | Float32Array;
  /** `[outFeatures]` */
  bias?: Float32Array;
  /**
   * Of `bitlinear`, whose files are of one size: bitnet.cpp's `i2_s`, which ends with its scale, or transformers' bytes
   * `[outFeatures / 4, inFeatures]`.
   */
  packing?: "i2_s" | "transformers";
  /** Of transformers' packing: `weight_scale` for `autobitlinear` layers, `1 / weight_scale` for `bitlinear` ones. */
  scale?: number;
  /** Of `bitlinear`: round each token's input to 8 bits by its absolute maximum. The gradient goes straight through. */
  int8Activations?: boolean;
}
const OPTIONS = ["kind", "inFeatures", "outFeatures", "weight", "bias", "packing", "scale", "int8Activations"];
const KINDS: readonly string[] = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "bitlinear"];
const PACKED_AT_ONCE = 1 << 18; // floats, a multiple of 32

const tensor = (name: string, value: unknown) => unwrap<RawTensor>(name, Tensor, value);
const recording = (value: unknown) => unwrap<RawRecording>("rec", Recording, value);

/**
 * A frozen linear layer `output = x·Wᵀ + bias`. A weight larger than the device's buffers lies in several; uploads are in
 * pieces of at most 16 MiB.
 */
export class FrozenLinear {
  /** How its weight is kept on the GPU. */
  readonly kind: WeightKind;
  /** Width of the input. */
  readonly inFeatures: number;
  /** Width of the output. */
  readonly outFeatures: number;
  #raw: RawFrozen;

  /**
   * Throws code `shape` for features that the kind cannot have and for data of another length, `invalid-argument` (among
   * others for the ternary code 3), `unknown-option`, or `limit`.
   */
  constructor(gpu: Gpu, options: FrozenLinearOptions) {
    if ((options as unknown) instanceof RawFrozen) {
      this.#raw = options as unknown as RawFrozen;
      bind(this, this.#raw);
      [this.outFeatures, this.inFeatures] = this.#raw.size() as unknown as [number, number];
      this.kind = "f32";
      return;
    }
    checkOptions("FrozenLinear", options, OPTIONS);
    const { kind = "f32", weight, bias, packing, scale, int8Activations = false } = options;
    if (!KINDS.includes(kind)) {
      throw new LoraError("invalid-argument", `kind: expected one of ${KINDS.join(", ")}, got ${show(kind)}`);
    }
    const ternary = kind === "bitlinear";
    if (ternary ? packing !== "i2_s" && packing !== "transformers" : packing !== undefined) {
      const expected = ternary ? '"i2_s" or "transformers"' : `none for ${kind}`;
      throw new LoraError("invalid-argument", `packing: expected ${expected}, got ${show(packing)}`);
    }
    if (boolean("int8Activations", int8Activations) && !ternary) {
      throw new LoraError("invalid-argument", `int8Activations: expected false for ${kind}, got true`);
    }
    this.kind = kind;
    this.inFeatures = integer("inFeatures", options.inFeatures);
    this.outFeatures = integer("outFeatures", options.outFeatures);
    if (weight !== undefined && !(weight instanceof Uint8Array)) {
      const [expected, got] = [this.inFeatures * this.outFeatures, float32Array("weight", weight).length];
      if (got !== expected) throw new LoraError("shape", `weight: expected ${expected} elements, got ${got}`);
    }
    const number = KINDS.indexOf(kind) + (packing === "transformers" ? 1 : 0);
    this.#raw = new RawFrozen(unwrap<RawGpu>("gpu", Gpu, gpu), number, int8Activations, this.outFeatures, this.inFeatures);
    bind(this, this.#raw, "a FrozenLinear");
    try {
      if (bias !== undefined) this.setBias(bias);
      if (scale !== undefined) this.setScale(scale);
      if (weight === undefined) return;
      if (weight instanceof Uint8Array) {
        this.write(0, weight);
      } else if (kind === "f32") {
        this.write(0, new Uint8Array(weight.buffer, weight.byteOffset, weight.byteLength));
      } else {
        for (let start = 0, at = 0; start < weight.length; start += PACKED_AT_ONCE) {
          const bytes = packWeight(number, weight.subarray(start, start + PACKED_AT_ONCE));
          this.write(at, bytes);
          at += bytes.length;
        }
      }
      this.finish();
    } catch (error) {
      this.#raw.destroy();
      throw error;
    }
  }

  /**
   * Over tensors of floats that are on the GPU already, such as `Tensor.fromBuffer`'s: `weight [outFeatures, inFeatures]`,
   * `bias [outFeatures]`. They are used in place and stay the page's: {@link dispose} of the layer leaves them, and their own
   * leaves the layer. A bias that is trained moves to another place.
   */
  static fromTensors(tensors: { weight: Tensor; bias?: Tensor }): FrozenLinear {
    checkOptions("FrozenLinear.fromTensors", tensors, ["weight", "bias"]);
    const weight = tensor("weight", tensors.weight);
    const bias = tensors.bias === undefined ? weight : tensor("bias", tensors.bias);
    return new FrozenLinear(undefined as unknown as Gpu, RawFrozen.fromTensors(weight, bias, bias !== weight) as never);
  }

  /** Takes the file's bytes from `byteOffset` on, which is where the piece before ended. Pieces may have any size. */
  write(byteOffset: number, bytes: Uint8Array): void {
    if (!Number.isSafeInteger(byteOffset) || byteOffset < 0) {
      throw new LoraError("invalid-argument", `byteOffset: expected an integer of at least 0, got ${show(byteOffset)}`);
    }
    if (!(bytes instanceof Uint8Array)) {
      throw new LoraError("invalid-argument", `bytes: expected a Uint8Array, got ${show(bytes)}`);
    }
    this.#raw.write(byteOffset, bytes);
  }

  /** Uploads the bias `[outFeatures]`, before {@link finish}. */
  setBias(bias: Float32Array): void {
    this.#raw.setBias(float32Array("bias", bias));
  }

  /** As the option `scale`, before {@link finish}. */
  setScale(scale: number): void {
    this.#raw.setScale(finite("scale", scale));
  }

  /** Says that all bytes came. Throws code `shape` where some are missing. */
  finish(): void {
    this.#raw.finish();
  }

  /** Whether it can be used: made with its weight, or finished. */
  get finished(): boolean {
    return this.#raw.isFinished();
  }

  /** Bytes of GPU memory of weight and bias. */
  get bytes(): number {
    return this.#raw.size()[2] as number;
  }

  /** Records `output = x·Wᵀ + bias`: `x [tokens, inFeatures]`; overwrites `output [tokens, outFeatures]`. */
  forward(rec: Recording, args: { x: Tensor; output: Tensor }): void {
    checkOptions("forward", args, ["x", "output"]);
    this.#raw.forwardRows(recording(rec), 0, this.outFeatures, tensor("x", args.x), tensor("output", args.output));
  }

  /** Records `dInput = dOutput·W`: `dOutput [tokens, outFeatures]`; overwrites `dInput [tokens, inFeatures]`. */
  backwardInput(rec: Recording, args: { dOutput: Tensor; dInput: Tensor }): void {
    checkOptions("backwardInput", args, ["dOutput", "dInput"]);
    const { dOutput, dInput } = args;
    this.#raw.backwardInputRows(recording(rec), 0, this.outFeatures, tensor("dOutput", dOutput), tensor("dInput", dInput), false);
  }

  /** The same of the weight's rows `first` to `end − 1` alone: overwrites `output [tokens, end − first]`. */
  forwardRows(rec: Recording, args: { first: number; end: number; x: Tensor; output: Tensor }): void {
    checkOptions("forwardRows", args, ["first", "end", "x", "output"]);
    const [first, end] = [integer("first", args.first, 0), integer("end", args.end)];
    this.#raw.forwardRows(recording(rec), first, end, tensor("x", args.x), tensor("output", args.output));
  }

  /** The same of the weight's rows `first` to `end − 1` alone, `dOutput [tokens, end − first]`; or added to `dInput`. */
  backwardInputRows(
    rec: Recording,
    args: { first: number; end: number; dOutput: Tensor; dInput: Tensor; accumulate?: boolean },
  ): void {
    checkOptions("backwardInputRows", args, ["first", "end", "dOutput", "dInput", "accumulate"]);
    const [first, end] = [integer("first", args.first, 0), integer("end", args.end)];
    const accumulate = boolean("accumulate", args.accumulate ?? false);
    this.#raw.backwardInputRows(recording(rec), first, end, tensor("dOutput", args.dOutput), tensor("dInput", args.dInput), accumulate);
  }

  /**
   * Records `output[t] = W[ids[t]]`: `ids [tokens]` of integers; overwrites `output [tokens, inFeatures]`. An id that is no
   * row gives NaN.
   */
  embed(rec: Recording, args: { ids: Tensor; output: Tensor }): void {
    checkOptions("embed", args, ["ids", "output"]);
    this.#raw.embed(recording(rec), tensor("ids", args.ids), tensor("output", args.output));
  }

  /** Frees the GPU memory. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(FrozenLinear.prototype);
