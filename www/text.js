// What the page says beyond index.html, in one place.
import { format } from "./charts.js";

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

export const text = {
  train: "Train",
  pause: "Pause",
  loading: "Looking for a GPU …",
  ready: "Ready.",
  training: "Training.",
  paused: (step, loss) => `Paused after ${count(step, "step")}; loss ${format(loss)}.`,
  stepped: (step, loss) => `Step ${step.toLocaleString("en")}; loss ${format(loss)}.`,
  reset: "A new adapter: B is zero again.",
  off: (loss) => `The adapter is off: the frozen layer alone has a loss of ${format(loss)}.`,
  on: (loss) => `The adapter is on; loss ${format(loss)}.`,
  diverged: "The loss is no longer a finite number. Choose a smaller learning rate and press Reset.",
  lost: (why) => `The GPU was lost (${why || "no reason given"}). What was learnt is gone with it.`,
  unexpected: (error) => `Something unexpected happened: ${error}`,
  lossOn: "Loss, adapter on",
  lossOff: "Loss, adapter off",
  software: "Software adapter: the kernels run on the CPU. Everything is correct, but far slower than a GPU.",
  unnamedGpu: "GPU without a name",
  parameters: ({ rank, inFeatures, outFeatures }, scaling) => {
    const trained = rank * (inFeatures + outFeatures), all = inFeatures * outFeatures;
    return `${count(trained, "trained number")} in place of ${all.toLocaleString("en")} (${format((100 * trained) / all)}\u00a0%); α/r\u00a0=\u00a0${format(scaling)}.`;
  },
  tooSmall: (rank, targetRank, floor) => `Rank ${rank} is below the target’s ${targetRank}: the loss cannot fall below about ${format(floor, 2)}.`,
  heatMap: (name, { outFeatures, inFeatures }, low, high) =>
    `Heat map of ${name}: ${outFeatures} rows, ${inFeatures} columns, values from ${format(low)} to ${format(high)}.`,
  mapDelta: "the hidden change ΔW*",
  mapAdapter: (distance) => `what the adapter has learnt, α/r·B·A, at a distance of ${format(100 * distance)}\u00a0% from ΔW*`,
  mapOff: "the adapter, which is off and changes nothing",
  lossChart: (step, loss) => `Loss over ${count(step, "step")} on a logarithmic scale; now ${format(loss)}.`,
  gradChart: (a, b) => `Gradient norms on a logarithmic scale; now ${format(a)} for A and ${format(b)} for B.`,
  missing: {
    "no-webgpu": "This browser has no WebGPU.",
    "insecure-context": "Browsers give WebGPU to secure pages only: open this one by https, or by localhost.",
    "no-adapter": "This browser has WebGPU, but gives no GPU to this page: it may be blocked, or switched off in the settings.",
  },
};
