// Runs the kernels one shape after the other, the first shape of each before the second of any, so that a slow adapter has
// seen every kernel before its time is over.
import { compileAhead } from "../dist/adopt.js";
import initCheck, { Check, derivativeCount, kernels, shapeCount } from "./wasm/check.js";

const PATIENCE = { first: 17_500, further: 14_000 }; // ms: for compiling and first shapes, for further ones
const TOGETHER = 12; // kernels that are compiled side by side

async function facts() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw Object.assign(new Error(), { code: !globalThis.isSecureContext ? "insecure-context" : navigator.gpu ? "no-adapter" : "no-webgpu" });
  const { vendor, architecture, device, description, isFallbackAdapter } = adapter.info;
  const isSoftware = isFallbackAdapter || /swiftshader|llvmpipe|lavapipe|basic render/i.test(`${architecture} ${description}`);
  const limits = {};
  for (const name in adapter.limits) if (typeof adapter.limits[name] === "number") limits[name] = adapter.limits[name];
  return { vendor, architecture, device, description, isSoftware, features: [...adapter.features].sort(), limits };
}

let gpu, software, loaded, stopped; // loaded: the wasm, which comes with the first check; stopped: whether somebody asked for that
let tasks, results, gradients, next, compiled, compiling, spent; // of a check: what is to be done, what came out, how far it is

/** A check from its beginning: every kernel's first shape, then the second ones; before those the gradients. */
async function begin() {
  gpu?.close();
  await (loaded ??= initCheck());
  gpu = await Check.open(software);
  results = kernels().map((name) => ({ name, share: 0, absolute: 0, shapes: 0, ms: Infinity, error: "" }));
  gradients = { worst: 0, shapes: 0, error: "" };
  const shapes = results.map((_, kernel) => shapeCount(kernel));
  tasks = Array.from({ length: Math.max(...shapes, derivativeCount()) }, (_, shape) => [
    ...(shape < derivativeCount() ? [{ shape }] : []),
    ...results.map((_, kernel) => ({ kernel, shape })).filter(({ kernel }) => shape < shapes[kernel]),
  ]).flat();
  next = compiled = compiling = spent = 0;
}

/** Goes on until all is done, a time is over, or somebody stops it. */
async function go(patience) {
  const began = performance.now();
  stopped = false;
  const tell = () => postMessage({ kind: "progress", results, done: next, all: tasks.length });
  for (; next < tasks.length; next += 1) {
    const { kernel, shape } = tasks[next];
    if (stopped || performance.now() - began > (shape ? patience.further : patience.first)) break;
    if (kernel === undefined) await derive(shape);
    else if (!results[kernel].error) await run(kernel, shape);
    if (next % 8 === 0) tell();
  }
  tell();
  spent += performance.now() - began;
  postMessage({ kind: "done", gradients, left: tasks.length - next, compiling: compiling / 1000, seconds: spent / 1000 });
}

async function derive(i) {
  try {
    gradients.worst = Math.max(gradients.worst, await gpu.derivative(i));
    if (!(gradients.worst <= 1e-3)) gradients.error = `${gradients.worst}`;
    gradients.shapes += 1;
  } catch (error) {
    gradients.error = String(error.message ?? error);
  }
}

async function run(kernel, shape) {
  const result = results[kernel];
  if (kernel >= compiled) {
    const before = performance.now();
    await compileAhead(gpu.device(), (keep) => gpu.compile(kernel, TOGETHER, keep));
    compiled = kernel + TOGETHER;
    compiling += performance.now() - before;
  }
  try {
    const { share, absolute, ms } = await gpu.run(kernel, shape);
    result.share = Math.max(result.share, share);
    result.absolute = Math.max(result.absolute, absolute);
    result.ms = Math.min(result.ms, ms);
    result.shapes += 1;
  } catch (error) {
    result.error = String(error.message ?? error);
  }
}

const commands = {
  async check() { await begin(); await go(PATIENCE); },
  rest: () => go({ first: Infinity, further: Infinity }),
  stop() { stopped = true; },
};
onmessage = async ({ data }) => {
  try {
    await commands[data]();
  } catch (error) {
    postMessage({ kind: "failed", message: String(error.message ?? error) });
  }
};

facts().then((found) => {
  software = found.isSoftware;
  postMessage({ kind: "ready", facts: found });
}).catch(({ code, message }) => postMessage({ kind: "missing", code, message }));
