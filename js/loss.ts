import { checkOptions, finite, show } from "./check.js";
import { LoraError } from "./error.js";

/** A loss of a {@link Trainer}, from {@link mse}, {@link bceWithLogits} or {@link crossEntropy}. */
export type LossSpec =
  | { readonly kind: "mse" }
  | { readonly kind: "bceWithLogits" }
  | { readonly kind: "crossEntropy"; readonly ignoreIndex: number; readonly labelSmoothing: number };

/** Mean squared error over all elements. */
export function mse(): LossSpec {
  return { kind: "mse" };
}

/** Binary cross-entropy of logits with targets in [0, 1], mean over all elements. */
export function bceWithLogits(): LossSpec {
  return { kind: "bceWithLogits" };
}

/** Softmax cross-entropy with class labels, mean over the labels that are not `ignoreIndex`; PyTorch's defaults. */
export function crossEntropy(
  options: { ignoreIndex?: number; labelSmoothing?: number } = {},
): Extract<LossSpec, { kind: "crossEntropy" }> {
  checkOptions("crossEntropy", options, ["ignoreIndex", "labelSmoothing"]);
  const { ignoreIndex = -100, labelSmoothing = 0 } = options;
  if (!Number.isInteger(ignoreIndex) || ignoreIndex !== (ignoreIndex | 0)) {
    throw new LoraError("invalid-argument", `ignoreIndex: expected a 32-bit integer, got ${show(ignoreIndex)}`);
  }
  if (finite("labelSmoothing", labelSmoothing) < 0 || labelSmoothing > 1) {
    throw new LoraError("invalid-argument", `labelSmoothing: expected a number from 0 to 1, got ${labelSmoothing}`);
  }
  return { kind: "crossEntropy", ignoreIndex, labelSmoothing };
}

const KINDS = ["mse", "bceWithLogits", "crossEntropy"];

/** What the façade takes: number of the loss, ignore index, label smoothing. */
export function lossArguments(loss: LossSpec): [number, number, number] {
  checkOptions("loss", loss, ["kind", "ignoreIndex", "labelSmoothing"]);
  const kind = KINDS.indexOf(loss.kind);
  if (kind < 0) throw new LoraError("invalid-argument", `loss: expected mse(), bceWithLogits() or crossEntropy(), got ${show(loss)}`);
  if (loss.kind !== "crossEntropy") return [kind, 0, 0];
  const { ignoreIndex, labelSmoothing } = loss;
  crossEntropy({ ignoreIndex, labelSmoothing }); // checks them
  return [kind, ignoreIndex, labelSmoothing];
}
