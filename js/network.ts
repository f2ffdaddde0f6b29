import { type RawGpu, type RawLayer, RawModules, RawNorm } from "./wasm/lora_webgpu.js";
import { array, checkOptions, finite, float32Array, show, unwrap } from "./check.js";
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
  array("layers", layers);
  return { kind: "residual", layers };
}

const ACTIVATIONS = ["tanh", "relu", "gelu", "silu"];

// Residuals in residuals; one that contains itself has no end.
const MAX_DEPTH = 64;

/** The façade's list of modules; what it makes on the GPU goes into `made`. @internal */
export function rawModules(gpu: RawGpu, layers: unknown, made: { destroy(): void }[], depth = 0): RawModules {
  array("layers", layers);
  if (depth > MAX_DEPTH) {
    throw new LoraError("invalid-argument", `layers: expected residuals at most ${MAX_DEPTH} deep, got more, or one that contains itself`);
  }
  const modules = new RawModules();
  for (const part of layers as NetworkPart[]) {
    if (part instanceof LoraLinear) modules.pushLinear(unwrap<RawLayer>("layers", LoraLinear, part));
    else if (ACTIVATIONS.includes(part?.kind)) modules.pushActivation(ACTIVATIONS.indexOf(part.kind));
    else if (part?.kind === "layerNorm" || part?.kind === "rmsNorm") {
      const norm = rawNorm(gpu, part);
      made.push(norm);
      modules.pushNorm(norm);
    } else if (part?.kind === "residual") modules.pushResidual(rawModules(gpu, part.layers, made, depth + 1));
    else {
      throw new LoraError(
        "invalid-argument",
        `layers: expected LoraLinear, tanh(), relu(), gelu(), silu(), layerNorm(), rmsNorm() or residual(), got ${show(part)}`,
      );
    }
  }
  return modules;
}

function rawNorm(gpu: RawGpu, part: Extract<NetworkPart, { kind: "layerNorm" | "rmsNorm" }>): RawNorm {
  // One that was made by hand is checked as the others are.
  const { kind, ...rest } = part;
  const { weight, eps, ...more } = (kind === "layerNorm" ? layerNorm(rest) : rmsNorm(rest)) as typeof part;
  return new RawNorm(gpu, weight, "bias" in more ? more.bias : undefined, kind === "layerNorm", eps);
}

/** The LoRA layers of a network in order, however deep. @internal */
export function loraLayers(layers: readonly NetworkPart[]): LoraLinear[] {
  return layers.flatMap((part) => (part instanceof LoraLinear ? part : part.kind === "residual" ? loraLayers(part.layers) : []));
}

/** The same network with other LoRA layers in the place of its own. @internal */
export function withLayers(layers: readonly NetworkPart[], other: Map<LoraLinear, LoraLinear>): NetworkPart[] {
  return layers.map((part) => {
    if (part instanceof LoraLinear) return other.get(part) ?? part;
    return part.kind === "residual" ? { ...part, layers: withLayers(part.layers, other) } : part;
  });
}
