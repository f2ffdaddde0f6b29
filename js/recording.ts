import { type RawGpu, type RawGrad, RawRecording, type RawTensor, type RawWeight } from "./wasm/lora_webgpu.js";
import { compileAhead } from "./adopt.js";
import { bind, callable, checkOptions, finite, unwrap } from "./check.js";
import { Gpu } from "./gpu.js";
import { LoraGrad, LoraWeight } from "./lora.js";
import { crossEntropy } from "./loss.js";
import { Tensor } from "./tensor.js";

const tensor = (name: string, value: unknown) => unwrap<RawTensor>(name, Tensor, value);
const weightOf = (value: unknown) => unwrap<RawWeight>("weight", LoraWeight, value);

/**
 * Dispatches in order, checked as they are recorded and run by {@link submit}, as often as it is called.
 *
 * Shapes: `x [tokens, inFeatures]`, `h, dh [tokens, rank]`, `output, y, dOutput [tokens, outFeatures]`,
 * `dInput [tokens, inFeatures]`, `dA` as A, `dB` as B. A call that throws records nothing.
 */
export class Recording {
  readonly #gpu: Gpu;
  #raw: RawRecording;

  constructor(gpu: Gpu) {
    this.#raw = new RawRecording(unwrap<RawGpu>("gpu", Gpu, gpu));
    this.#gpu = gpu;
    bind(this, this.#raw);
  }

  /** Number of dispatches recorded. */
  get dispatches(): number {
    return this.#raw.dispatches();
  }

  /**
   * Compiles the kernels that nothing has used yet, side by side and without blocking the page, which the first
   * {@link submit} would do one after the other. `onProgress` hears of each that is done.
   */
  async compile(onProgress?: (done: number, total: number) => void): Promise<void> {
    if (onProgress !== undefined) callable("onProgress", onProgress);
    await compileAhead(this.#gpu.device, (keep) => void this.#raw.compile(keep), onProgress);
  }

  /**
   * Runs everything, as one command buffer. Rejects with the error of whatever in it failed; nobody has to await it to
   * go on.
   */
  async submit(): Promise<void> {
    await this.#raw.submit();
  }

  /** `tensor = 0` */
  zero(target: Tensor): void {
    this.#raw.zero(tensor("tensor", target));
  }

  /** `h = x·Aᵀ`, unscaled; overwrites h. */
  projectA(args: { weight: LoraWeight; x: Tensor; h: Tensor }): void {
    checkOptions("projectA", args, ["weight", "x", "h"]);
    this.#raw.projectA(weightOf(args.weight), tensor("x", args.x), tensor("h", args.h));
  }

  /** `y = h·Bᵀ`; overwrites y. */
  projectB(args: { weight: LoraWeight; h: Tensor; y: Tensor }): void {
    checkOptions("projectB", args, ["weight", "h", "y"]);
    this.#raw.projectB(weightOf(args.weight), tensor("h", args.h), tensor("y", args.y));
  }

  /** `output += scale·y` */
  addScaled(args: { y: Tensor; output: Tensor; scale: number }): void {
    checkOptions("addScaled", args, ["y", "output", "scale"]);
    this.#raw.addScaled(tensor("y", args.y), tensor("output", args.output), finite("scale", args.scale));
  }

  /** `output += scale·(h·Bᵀ)` in one dispatch. */
  fusedBAdd(args: { weight: LoraWeight; h: Tensor; output: Tensor; scale: number }): void {
    checkOptions("fusedBAdd", args, ["weight", "h", "output", "scale"]);
    this.#raw.fusedBAdd(weightOf(args.weight), tensor("h", args.h), tensor("output", args.output), finite("scale", args.scale));
  }

  /** `output += scale·B·(A·x)` in three dispatches: projectA, projectB, addScaled. */
  loraForward(args: { weight: LoraWeight; x: Tensor; h: Tensor; y: Tensor; output: Tensor; scale: number }): void {
    checkOptions("loraForward", args, ["weight", "x", "h", "y", "output", "scale"]);
    this.#raw.loraForward(
      weightOf(args.weight),
      tensor("x", args.x),
      tensor("h", args.h),
      tensor("y", args.y),
      tensor("output", args.output),
      finite("scale", args.scale),
    );
  }

  /** `output += scale·B·(A·x)` in two dispatches: projectA, fusedBAdd. */
  loraForwardFused(args: { weight: LoraWeight; x: Tensor; h: Tensor; output: Tensor; scale: number }): void {
    checkOptions("loraForwardFused", args, ["weight", "x", "h", "output", "scale"]);
    this.#raw.loraForwardFused(
      weightOf(args.weight),
      tensor("x", args.x),
      tensor("h", args.h),
      tensor("output", args.output),
      finite("scale", args.scale),
    );
  }

  /** `dst = src`: keeps an activation for the backward pass. */
  saveActivation(args: { src: Tensor; dst: Tensor }): void {
    checkOptions("saveActivation", args, ["src", "dst"]);
    this.#raw.saveActivation(tensor("src", args.src), tensor("dst", args.dst));
  }

  /** `dB += scale·dOutputᵀ·h` */
  gradB(args: { dOutput: Tensor; h: Tensor; dB: Tensor; scale: number }): void {
    checkOptions("gradB", args, ["dOutput", "h", "dB", "scale"]);
    this.#raw.gradB(tensor("dOutput", args.dOutput), tensor("h", args.h), tensor("dB", args.dB), finite("scale", args.scale));
  }

  /** `dh = dOutput·B`, unscaled; overwrites dh. */
  gradDh(args: { weight: LoraWeight; dOutput: Tensor; dh: Tensor }): void {
    checkOptions("gradDh", args, ["weight", "dOutput", "dh"]);
    this.#raw.gradDh(weightOf(args.weight), tensor("dOutput", args.dOutput), tensor("dh", args.dh));
  }

  /** `dA += scale·dhᵀ·x` */
  gradA(args: { dh: Tensor; x: Tensor; dA: Tensor; scale: number }): void {
    checkOptions("gradA", args, ["dh", "x", "dA", "scale"]);
    this.#raw.gradA(tensor("dh", args.dh), tensor("x", args.x), tensor("dA", args.dA), finite("scale", args.scale));
  }

  /** `dInput += scale·dh·A` */
  inputGrad(args: { weight: LoraWeight; dh: Tensor; dInput: Tensor; scale: number }): void {
    checkOptions("inputGrad", args, ["weight", "dh", "dInput", "scale"]);
    this.#raw.inputGrad(weightOf(args.weight), tensor("dh", args.dh), tensor("dInput", args.dInput), finite("scale", args.scale));
  }

  /** The whole backward pass of one projection in four dispatches: gradB, gradDh, gradA and, with dInput, inputGrad. */
  loraBackward(args: {
    weight: LoraWeight;
    dOutput: Tensor;
    x: Tensor;
    h: Tensor;
    dh: Tensor;
    grad: LoraGrad;
    dInput?: Tensor;
    scale: number;
  }): void {
    checkOptions("loraBackward", args, ["weight", "dOutput", "x", "h", "dh", "grad", "dInput", "scale"]);
    this.#raw.loraBackward(
      weightOf(args.weight),
      tensor("dOutput", args.dOutput),
      tensor("x", args.x),
      tensor("h", args.h),
      tensor("dh", args.dh),
      unwrap<RawGrad>("grad", LoraGrad, args.grad),
      tensor("dInput", args.dInput ?? args.x),
      args.dInput !== undefined,
      finite("scale", args.scale),
    );
  }

  /** `loss = mean((output − target)²)`, `loss [1]`, and `dOutput = 2·(output − target)/length`. */
  mse(args: { output: Tensor; target: Tensor; dOutput: Tensor; loss: Tensor }): void {
    checkOptions("mse", args, ["output", "target", "dOutput", "loss"]);
    this.#raw.mse(tensor("output", args.output), tensor("target", args.target), tensor("dOutput", args.dOutput), tensor("loss", args.loss));
  }

  /** Binary cross-entropy of logits with targets in [0, 1], its mean and gradient, as {@link mse}. */
  bceWithLogits(args: { output: Tensor; target: Tensor; dOutput: Tensor; loss: Tensor }): void {
    checkOptions("bceWithLogits", args, ["output", "target", "dOutput", "loss"]);
    this.#raw.bceWithLogits(
      tensor("output", args.output),
      tensor("target", args.target),
      tensor("dOutput", args.dOutput),
      tensor("loss", args.loss),
    );
  }

  /**
   * Softmax cross-entropy of logits `output [rows, classes]` with integer labels `target [rows]`: its mean over the rows
   * whose label is not `ignoreIndex` (default −100), and its gradient.
   */
  crossEntropy(args: {
    output: Tensor;
    target: Tensor;
    dOutput: Tensor;
    loss: Tensor;
    ignoreIndex?: number;
    labelSmoothing?: number;
  }): void {
    checkOptions("crossEntropy", args, ["output", "target", "dOutput", "loss", "ignoreIndex", "labelSmoothing"]);
    const { ignoreIndex = -100, labelSmoothing = 0 } = args;
    crossEntropy({ ignoreIndex, labelSmoothing }); // checks them
    this.#raw.crossEntropy(
      tensor("output", args.output),
      tensor("target", args.target),
      tensor("dOutput", args.dOutput),
      tensor("loss", args.loss),
      ignoreIndex,
      labelSmoothing,
    );
  }
}
