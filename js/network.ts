import { type RawGpu, type RawLayer, RawModules, RawNorm } from "./wasm/lora_webgpu.js";
import { checkOptions, finite, float32Array, show, unwrap } from "./check.js";
import { LoraError } from "./error.js";
import { LoraLinear } from "./lora.js";

/** A part of a {@link Trainer}'s network. */
export type NetworkPart =
  | LoraLinear
  | { readonly kind: "tanh" | "relu" | "gelu" | "silu" }
  | { readonly kind: "layerNorm"; readonly weight: Float32Array; readonly bias: Float32Array | undefined; readonly eps: number }
  | { readonly kind: "rmsNorm"; readonly weight: Float32Array; readonly eps: number }
  | { readonly kind: "residual"; readonly layers: readonly NetworkPart[] };

/** `tanh(x)` */
export const tanh = (): NetworkPart => ({ kind: "tanh" });
/** `max(x, 0)` */
export const relu = (): NetworkPart => ({ kind: "relu" });
/** `x·Φ(x)`, with erf as PyTorch's default. */
export const gelu = (): NetworkPart => ({ kind: "gelu" });
/** `x·σ(x)` */
export const silu = (): NetworkPart => ({ kind: "silu" });

/** A frozen layer norm over the last dimension: `weight [features]`, `bias [features]`. */
export function layerNorm(options: { weight: Float32Array; bias?: Float32Array; eps?: number }): NetworkPart {
  checkOptions("layerNorm", options, ["weight", "bias", "eps"]);
  const { weight, bias, eps = 1e-5 } = options;
  if (bias !== undefined) float32Array("bias", bias);
  return { kind: "layerNorm", weight: float32Array("weight", weight), bias, eps: finite("eps", eps) };
}

/** A frozen RMS norm over the last dimension: `weight [features]`. */
export function rmsNorm(options: { weight: Float32Array; eps?: number }): NetworkPart {
  checkOptions("rmsNorm", options, ["weight", "eps"]);
  const { weight, eps = 1e-6 } = options;
  return { kind: "rmsNorm", weight: float32Array("weight", weight), eps: finite("eps", eps) };
}

/** `x + f(x)` of parts that keep the width. */
export function residual(layers: readonly NetworkPart[]): NetworkPart {
  return { kind: "residual", layers };
}

const ACTIVATIONS = ["tanh", "relu", "gelu", "silu"];

/** The façade's list of modules; what it makes on the GPU goes into `made`. @internal */
export function rawModules(gpu: RawGpu, layers: unknown, made: { destroy(): void }[]): RawModules {
  if (!Array.isArray(layers)) throw new LoraError("invalid-argument", `layers: expected an array, got ${show(layers)}`);
  const modules = new RawModules();
  for (const part of layers as NetworkPart[]) {
    if (part instanceof LoraLinear) modules.pushLinear(unwrap<RawLayer>("layers", LoraLinear, part));
    else if (ACTIVATIONS.includes(part?.kind)) modules.pushActivation(ACTIVATIONS.indexOf(part.kind));
    else if (part?.kind === "layerNorm" || part?.kind === "rmsNorm") {
      const bias = part.kind === "layerNorm" ? part.bias : undefined;
      const norm = new RawNorm(gpu, part.weight, bias, part.kind === "layerNorm", part.eps);
      made.push(norm);
      modules.pushNorm(norm);
    } else if (part?.kind === "residual") modules.pushResidual(rawModules(gpu, part.layers, made));
    else {
      throw new LoraError(
        "invalid-argument",
        `layers: expected LoraLinear, tanh(), relu(), gelu(), silu(), layerNorm(), rmsNorm() or residual(), got ${show(part)}`,
      );
    }
  }
  return modules;
}
