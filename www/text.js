// All the English that the site says, by page, save for the documents in docs/. The strings stand in the pages as
// {{page.name}} and may hold HTML; the functions are for scripts.
import { count, format } from "./format.js";

const repository = "https://github.com/lora-webgpu/lora-webgpu";

export const site = {
  name: "lora-webgpu",
  skip: "Skip to the content",
  navigation: "Site",
  layer: "Layer",
  check: "Check my GPU",
  model: "Language model",
  docs: "Docs",
  code: "Code",
  repository,
  footer: `Everything is computed in this tab; nothing you load or train leaves it: the page is not allowed to reach any other host. MIT or Apache-2.0.`,
  close: "Close this message",
  again: "Start again",
  software: "Software adapter: the kernels run on the CPU. Everything is correct, but far slower than a GPU.",
  unnamedGpu: "GPU without a name",
  loading: "Looking for a GPU …",
  lost: (why) => `The GPU was lost (${why || "no reason given"}). What was learnt is gone with it.`,
  unexpected: (error) => `Something unexpected happened: ${error}`,
  needs: "This page needs WebGPU",
  browsers: `
        <li><strong>Chrome and Edge</strong> 113 or later on Windows, macOS and ChromeOS; 121 or later on Android.</li>
        <li><strong>Chrome on Linux</strong>: switch on <code>chrome://flags/#enable-unsafe-webgpu</code> and, where the GPU
          is still missing, <code>chrome://flags/#enable-vulkan</code>; then start the browser again.</li>
        <li><strong>Safari</strong> 26 or later on macOS, iOS, iPadOS and visionOS.</li>
        <li><strong>Firefox</strong> 141 or later on Windows; on macOS and elsewhere a later version, or
          <code>dom.webgpu.enabled</code> in <code>about:config</code>.</li>`,
  acceleration: "Hardware acceleration must be on in the browser’s settings.",
  missing: {
    "no-webgpu": "This browser has no WebGPU.",
    "insecure-context": "Browsers give WebGPU to secure pages only: open this one by https, or by localhost.",
    "no-adapter": "This browser has WebGPU, but gives no GPU to this page: it may be blocked, or switched off in the settings.",
  },
};

export const layer = {
  title: "Watch an adapter learn",
  description: "A LoRA adapter learns a hidden low-rank change of a frozen layer, live on WebGPU in this page.",
  lede: `LoRA fine-tunes a frozen weight W by training only a thin product of two matrices beside it:
      <span class="formula">y&nbsp;=&nbsp;x·(W&nbsp;+&nbsp;<var>α/r</var>·B·A)ᵀ</span>.
      Here the right correction ΔW* is hidden from the adapter, which sees only random inputs&nbsp;x and the outputs of
      W&nbsp;+&nbsp;ΔW*. Press Train: where the rank suffices, the loss falls to nothing and the two pictures become one.
      Then move the rank.`,
  controls: "Training",
  train: "Train",
  pause: "Pause",
  step: "Step",
  resetButton: "Reset",
  adapter: "Adapter",
  nBase: "Without adapter",
  nFloor: "Best for this rank",
  nDistance: "Distance to ΔW*",
  nStep: "Step",
  nSpeed: "Steps/s",
  captionTarget: "<b>ΔW*</b> hidden",
  captionLearnt: "<b>α/r·B·A</b> learnt",
  loss: "Loss",
  keyLoss: "mean squared error",
  keyBase: "without adapter",
  keyFloor: "best for this rank",
  gradients: "Gradients",
  spectrum: "Singular values",
  keyHidden: "of ΔW*, hidden",
  keyLearnt: "of α/r·B·A, learnt",
  keyBeyond: "beyond the rank",
  result: "Result",
  download: "Download A and B",
  downloadHint: "One .safetensors file: float32, with the names that PEFT gives.",
  settings: "Settings",
  groupAdapter: "Adapter",
  groupLayer: "Layer",
  groupTraining: "Training",
  rank: "Rank r",
  alpha: "Alpha α",
  targetRank: "Target rank",
  inFeatures: "In",
  outFeatures: "Out",
  optimizer: "Optimiser",
  lr: "Learning rate",
  pace: "Speed",
  fastest: "fastest",
  pace100: "100 steps/s",
  pace10: "10 steps/s",
  seed: "Seed",

  ready: "Ready.",
  training: "Training.",
  paused: (step, loss) => `Paused after ${count(step, "step")}; loss ${format(loss)}.`,
  stepped: (step, loss) => `Step ${step.toLocaleString("en")}; loss ${format(loss)}.`,
  reset: "A new adapter: B is zero again.",
  off: (loss) => `The adapter is off: the frozen layer alone has a loss of ${format(loss)}.`,
  on: (loss) => `The adapter is on; loss ${format(loss)}.`,
  diverged: "The loss is no longer a finite number. Choose a smaller learning rate and press Reset.",
  lossOn: "Loss, adapter on",
  lossOff: "Loss, adapter off",
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
  spectrumChart: (target, learnt) => `Singular values: hidden ${target.map((s) => format(s, 2)).join(", ")}; learnt ${learnt.map((s) => format(s, 2)).join(", ")}.`,
};

export const check = {
  title: "Check my GPU",
  description: "Every kernel of lora-webgpu on your own GPU, held to a reference in double precision.",
  lede: `Runs every kernel on this device and holds each number to a plain reference in double precision, with a bound that is
      derived from the length of the sum (<a href="./docs/numerics.html">Numerics</a>); then holds the gradients to
      differences of the loss. If something is wrong with a driver, this is where it shows.`,
  start: "Check",
  stop: "Stop",
  copy: "Copy the report",
  copied: "Copied.",
  controls: "Check",
  kernels: "Kernels",
  caption: "Each kernel’s worst error over all its shapes, as a share of what its rounding may err by; the time of its first run, with compiling, and of its fastest.",
  columns: ["Kernel", "Result", "Worst share of bound", "Worst error", "Shapes", "First, ms", "Fastest, ms"],
  device: "Device",
  deviceCaption: "What the browser says of the adapter, and the limits of a WebGPU device on it.",
  passed: "agrees",
  failed: "wrong",
  waiting: "–",
  missed: "not run",
  derivatives: "gradients against differences",
  ready: "Ready: it takes a few seconds.",
  running: (done, all) => `Checking: ${done} of ${count(all, "run")}.`,
  done: (kernels, failures, missed, seconds) => (failures
    ? `${count(failures, "part")} of ${kernels + 1} came out wrong; ${format(seconds)} s. Please copy the report into an issue.`
    : missed ? `${count(missed, "kernel")} of ${kernels} could not be run in ${format(seconds)} s on this slow adapter; of the others nothing was wrong.`
    : `All ${kernels} kernels and the gradients agree with the reference; ${format(seconds)} s.`),
  stopped: "Stopped.",
  cut: (left) => `${count(left, "run")} left out, to be done in time on a slow adapter.`,
  names: {
    browser: "Browser", adapter: "Adapter", vendor: "Vendor", architecture: "Architecture", kind: "Kind", features: "Features", date: "Date",
    hardware: "GPU", software: "software, on the CPU", none: "none",
  },
};

export const docs = {
  description: "Documentation of lora-webgpu.",
  pages: "Documents",
  api: "API reference",
  apiLede: "What <code>import … from \"lora-webgpu\"</code> gives, from the TypeScript declarations that come with the package. The crate’s own documentation is made by <code>cargo doc --open</code>.",
  classes: "Classes",
  functions: "Functions",
  types: "Types",
  source: "Source of this page",
};
