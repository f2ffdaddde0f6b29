import { type RawGpu, type RawLayer, RawLayers, RawOptimizer, type RawRecording } from "./wasm/lora_webgpu.js";
import { bind, checkOptions, disposable, finite, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { Gpu } from "./gpu.js";
import { LoraLinear } from "./lora.js";
import { Recording } from "./recording.js";

/** An update rule with its hyper-parameters, from {@link adamw} or {@link sgd}. */
export type OptimizerSpec =
  | { readonly kind: "adamw"; lr: number; betas: readonly [number, number]; eps: number; weightDecay: number }
  | { readonly kind: "sgd"; lr: number; momentum: number; weightDecay: number };

/** `torch.optim.AdamW`, with its defaults. */
export function adamw(
  options: { lr?: number; betas?: readonly [number, number]; eps?: number; weightDecay?: number } = {},
): OptimizerSpec {
  checkOptions("adamw", options, ["lr", "betas", "eps", "weightDecay"]);
  const { lr = 1e-3, betas = [0.9, 0.999], eps = 1e-8, weightDecay = 0.01 } = options;
  if (!Array.isArray(betas) || betas.length !== 2) {
    throw new LoraError("invalid-argument", `betas: expected two numbers, got ${show(betas)}`);
  }
  return {
    kind: "adamw",
    lr: finite("lr", lr),
    betas: [finite("betas", betas[0]), finite("betas", betas[1])],
    eps: finite("eps", eps),
    weightDecay: finite("weightDecay", weightDecay),
  };
}

/** `torch.optim.SGD`, with its defaults. */
export function sgd(options: { lr?: number; momentum?: number; weightDecay?: number } = {}): OptimizerSpec {
  checkOptions("sgd", options, ["lr", "momentum", "weightDecay"]);
  const { lr = 1e-3, momentum = 0, weightDecay = 0 } = options;
  return { kind: "sgd", lr: finite("lr", lr), momentum: finite("momentum", momentum), weightDecay: finite("weightDecay", weightDecay) };
}

/** Updates the adapters of its layers, all in one dispatch. Their tensors move into its buffers and stay valid. */
export class Optimizer {
  #raw: RawOptimizer;

  /** Throws `invalid-argument` for hyper-parameters out of range and for a layer that another optimizer updates. */
  constructor(gpu: Gpu, options: { layers: readonly LoraLinear[]; optimizer: OptimizerSpec }) {
    checkOptions("Optimizer", options, ["layers", "optimizer"]);
    const { layers, optimizer } = options;
    if (!Array.isArray(layers)) throw new LoraError("invalid-argument", `layers: expected an array of LoraLinear, got ${show(layers)}`);
    const rawGpu = unwrap<RawGpu>("gpu", Gpu, gpu);
    const list = new RawLayers();
    for (const layer of layers) list.push(unwrap<RawLayer>("layers", LoraLinear, layer));
    if (optimizer?.kind === "adamw") {
      const { lr, betas, eps, weightDecay } = optimizer;
      this.#raw = RawOptimizer.adamw(rawGpu, list, lr, betas[0], betas[1], eps, weightDecay);
    } else if (optimizer?.kind === "sgd") {
      this.#raw = RawOptimizer.sgd(rawGpu, list, optimizer.lr, optimizer.momentum, optimizer.weightDecay);
    } else {
      throw new LoraError("invalid-argument", `optimizer: expected adamw() or sgd(), got ${show(optimizer)}`);
    }
    list.free();
    bind(this, this.#raw);
  }

  /** Records one update of all parameters from their gradients. */
  step(rec: Recording): void {
    this.#raw.step(unwrap<RawRecording>("rec", Recording, rec));
  }

  /** Records zeros into the gradients of all layers. */
  zeroGrad(rec: Recording): void {
    this.#raw.zeroGrad(unwrap<RawRecording>("rec", Recording, rec));
  }

  /** Sets the learning rate of the steps submitted from now on. */
  setLr(lr: number): void {
    this.#raw.setLr(finite("lr", lr));
  }

  /** Frees the moments; the layers keep their adapters and may join another optimizer. Idempotent. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Optimizer.prototype);
