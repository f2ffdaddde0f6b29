import { type RawGpu, type RawLayer, RawModules, RawOptimizer, RawOptions, type RawRecording } from "./wasm/lora_webgpu.js";
import { array, bind, checkOptions, disposable, finite, integer, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { LoraLinear, touchActive } from "./lora.js";
import { Recording } from "./recording.js";

/** An update rule with its hyper-parameters, from {@link adamw} or {@link sgd}. */
export type OptimizerSpec =
  | {
      readonly kind: "adamw";
      readonly lr: number;
      readonly betas: readonly [number, number];
      readonly eps: number;
      readonly weightDecay: number;
      readonly lrRatioB: number;
    }
  | {
      readonly kind: "sgd";
      readonly lr: number;
      readonly momentum: number;
      readonly weightDecay: number;
      readonly lrRatioB: number;
    };

/** `torch.optim.AdamW`, with its defaults. `lrRatioB` is LoRA+: B learns that many times as fast as A. */
export function adamw(
  options: { lr?: number; betas?: readonly [number, number]; eps?: number; weightDecay?: number; lrRatioB?: number } = {},
): OptimizerSpec {
  checkOptions("adamw", options, ["lr", "betas", "eps", "weightDecay", "lrRatioB"]);
  const { lr = 1e-3, betas = [0.9, 0.999], eps = 1e-8, weightDecay = 0.01, lrRatioB = 1 } = options;
  if (!Array.isArray(betas) || betas.length !== 2) {
    throw new LoraError("invalid-argument", `betas: expected two numbers, got ${show(betas)}`);
  }
  return {
    kind: "adamw",
    lr: finite("lr", lr),
    betas: [finite("betas", betas[0]), finite("betas", betas[1])],
    eps: finite("eps", eps),
    weightDecay: finite("weightDecay", weightDecay),
    lrRatioB: finite("lrRatioB", lrRatioB),
  };
}

/** `torch.optim.SGD`, with its defaults. `lrRatioB` is LoRA+: B learns that many times as fast as A. */
export function sgd(options: { lr?: number; momentum?: number; weightDecay?: number; lrRatioB?: number } = {}): OptimizerSpec {
  checkOptions("sgd", options, ["lr", "momentum", "weightDecay", "lrRatioB"]);
  const { lr = 1e-3, momentum = 0, weightDecay = 0, lrRatioB = 1 } = options;
  return {
    kind: "sgd",
    lr: finite("lr", lr),
    momentum: finite("momentum", momentum),
    weightDecay: finite("weightDecay", weightDecay),
    lrRatioB: finite("lrRatioB", lrRatioB),
  };
}

/** How the learning rate changes with the step, as transformers computes it. */
export type ScheduleSpec =
  | { readonly kind: "constant"; readonly warmup: number }
  | { readonly kind: "linear" | "cosine"; readonly warmup: number; readonly total: number };

/** Up over `warmup` steps, then the same. */
export function constantSchedule(options: { warmup?: number } = {}): ScheduleSpec {
  checkOptions("constantSchedule", options, ["warmup"]);
  return { kind: "constant", warmup: integer("warmup", options.warmup ?? 0, 0) };
}

/** Up over `warmup` steps, then down in a line to 0 at step `total`. */
export function linearSchedule(options: { warmup?: number; total: number }): ScheduleSpec {
  checkOptions("linearSchedule", options, ["warmup", "total"]);
  return { kind: "linear", warmup: integer("warmup", options.warmup ?? 0, 0), total: integer("total", options.total) };
}

/** Up over `warmup` steps, then down half a cosine to 0 at step `total`. */
export function cosineSchedule(options: { warmup?: number; total: number }): ScheduleSpec {
  checkOptions("cosineSchedule", options, ["warmup", "total"]);
  return { kind: "cosine", warmup: integer("warmup", options.warmup ?? 0, 0), total: integer("total", options.total) };
}

/** The façade's options; what was made by hand instead of by {@link adamw} and the like is checked as there. @internal */
export function rawOptions(optimizer: OptimizerSpec, schedule?: ScheduleSpec, maxGradNorm?: number): RawOptions {
  const options = rawRule(optimizer);
  if (maxGradNorm !== undefined) options.setMaxGradNorm(finite("maxGradNorm", maxGradNorm));
  if (schedule !== undefined) {
    const { kind, warmup, total } = checkedSchedule(schedule);
    options.setSchedule(["constant", "linear", "cosine"].indexOf(kind), warmup, total);
  }
  return options;
}

function rawRule(spec: OptimizerSpec): RawOptions {
  let options: RawOptions;
  if (spec?.kind === "adamw") {
    const { kind: _, ...rest } = spec;
    const { lr, betas, eps, weightDecay } = adamw(rest) as typeof spec;
    options = RawOptions.adamw(lr, betas[0], betas[1], eps, weightDecay);
  } else if (spec?.kind === "sgd") {
    const { kind: _, ...rest } = spec;
    const { lr, momentum, weightDecay } = sgd(rest) as typeof spec;
    options = RawOptions.sgd(lr, momentum, weightDecay);
  } else {
    throw new LoraError("invalid-argument", `optimizer: expected adamw() or sgd(), got ${show(spec)}`);
  }
  options.setLrRatioB(finite("lrRatioB", spec.lrRatioB ?? 1));
  return options;
}

function checkedSchedule(spec: ScheduleSpec): { kind: ScheduleSpec["kind"]; warmup: number; total: number } {
  if (spec?.kind === "constant") {
    const { kind: _, ...rest } = spec;
    return { total: 0, ...constantSchedule(rest) };
  }
  if (spec?.kind === "linear" || spec?.kind === "cosine") {
    const { kind, ...rest } = spec;
    return (kind === "linear" ? linearSchedule : cosineSchedule)(rest) as Extract<ScheduleSpec, { total: number }>;
  }
  throw new LoraError("invalid-argument", `schedule: expected constantSchedule(), linearSchedule() or cosineSchedule(), got ${show(spec)}`);
}

/** Updates the adapters of its layers, all in one dispatch. Their tensors move into its buffers and stay valid. */
export class Optimizer {
  #raw: RawOptimizer;

  /**
   * `maxGradNorm` scales larger gradients down, as `clip_grad_norm_`. Throws `invalid-argument` for hyper-parameters out
   * of range and for a layer that another optimizer updates.
   */
  constructor(
    gpu: Gpu,
    options: { layers: readonly LoraLinear[]; optimizer: OptimizerSpec; schedule?: ScheduleSpec; maxGradNorm?: number },
  ) {
    checkOptions("Optimizer", options, ["layers", "optimizer", "schedule", "maxGradNorm"]);
    const { layers, optimizer, schedule, maxGradNorm } = options;
    array("layers", layers, " of LoraLinear");
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    const list = new RawModules();
    for (const layer of layers) list.pushLinear(unwrap<RawLayer>("layers", LoraLinear, layer));
    this.#raw = new RawOptimizer(rawGpu, list, rawOptions(optimizer, schedule, maxGradNorm));
    bind(this, this.#raw, "an Optimizer");
    layers.forEach(touchActive);
  }

  /** Records one update of all parameters from their gradients; none where one of them is not finite. */
  step(rec: Recording): void {
    this.#raw.step(unwrap<RawRecording>("rec", Recording, rec));
  }

  /** Records zeros into the gradients of all layers. */
  zeroGrad(rec: Recording): void {
    this.#raw.zeroGrad(unwrap<RawRecording>("rec", Recording, rec));
  }

  /** Sets a constant learning rate for the steps submitted from now on. */
  setLr(lr: number): void {
    this.#raw.setLr(finite("lr", lr));
  }

  /** Frees the moments; the layers keep their adapters and may join another optimizer. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Optimizer.prototype);
