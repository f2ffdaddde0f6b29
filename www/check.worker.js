// Runs the kernels that the package would give this device one shape after the other, the first shape of each before the second
// of any, so that a slow adapter runs every one before its time is over; those of other devices where they are asked for.
import { compileAhead } from "../dist/adopt.js";
import { saidProfile } from "../dist/profile.js";
import initCheck, { Check, derivativeCount, kernels, shapeCount } from "./wasm/check.js";

const PATIENCE = 12_000; // ms, after which no further shape of a kernel begins
const TOGETHER = 8; // kernels that are waited for together

let adapter, profile, gpu, loaded, stopped; // loaded: the wasm, which comes with the first check; stopped: whether somebody asked for that
let tasks, results, gradients, next, compiled, compiling, spent; // of a check: what is to be done, what came out, how far it is

async function facts() {
  adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw Object.assign(new Error(), { code: !globalThis.isSecureContext ? "insecure-context" : navigator.gpu ? "no-adapter" : "no-webgpu" });
  const { vendor, architecture, device, description } = adapter.info;
  const limits = {};
  for (const name in adapter.limits) if (typeof adapter.limits[name] === "number") limits[name] = adapter.limits[name];
  return { vendor, architecture, device, description, isSoftware: saidProfile(adapter.info) === "software", features: [...adapter.features].sort(), limits };
}

/** Which kernels the package gives this adapter; where that does not say what it is, the package times some. */
async function whichProfile() {
  const said = saidProfile(adapter.info);
  if (said) return said;
  const { Gpu } = await import("../dist/index.js");
  const own = await Gpu.request();
  own.dispose();
  return own.info.profile;
}

/** A device with the features that kernels are chosen by, where the adapter has them: wgpu asks for no subgroups in a browser. */
function open(software) {
  const { requestDevice } = GPUAdapter.prototype, more = ["subgroups", "shader-f16"].filter((name) => adapter.features.has(name));
  GPUAdapter.prototype.requestDevice = function (descriptor) {
    GPUAdapter.prototype.requestDevice = requestDevice;
    return this.requestDevice({ ...descriptor, requiredFeatures: [...(descriptor.requiredFeatures ?? []), ...more] });
  };
  return Check.open(software);
}

/** A check from its beginning: every chosen kernel's first shape, then the second ones; before those the gradients. */
async function begin() {
  gpu?.close();
  await (loaded ??= initCheck());
  profile = await whichProfile();
  const software = profile === "software";
  gpu = await open(software);
  results = kernels().map((name, kernel) => {
    const [chosen, other] = [software, !software].map((kind) => gpu.isChosen(kernel, kind));
    return { name, chosen, possible: chosen || other, share: 0, absolute: 0, shapes: 0, ms: Infinity, error: "" };
  });
  gradients = { worst: 0, shapes: 0, error: "" };
  next = compiling = spent = 0;
  tasks = [...inRounds(true), ...inRounds(false)];
  // All are asked for now, so that the browser compiles some while others run.
  const chosen = results.flatMap(({ chosen }, kernel) => (chosen ? [kernel] : []));
  compiled = new Map();
  for (let i = 0; i < chosen.length; i += TOGETHER) compile(chosen.slice(i, i + TOGETHER));
}

function compile(some) {
  const done = compileAhead(gpu.device(), (keep) => gpu.compile(some, keep));
  for (const kernel of some) compiled.set(kernel, done);
}

function inRounds(chosen) {
  const shapes = results.map((result, kernel) => (result.possible && result.chosen === chosen ? shapeCount(kernel) : 0)), derived = chosen ? derivativeCount() : 0;
  return Array.from({ length: Math.max(...shapes, derived) }, (_, shape) => [
    ...(shape < derived ? [{ shape }] : []),
    ...results.map((_, kernel) => ({ kernel, shape })).filter(({ kernel }) => shape < shapes[kernel]),
  ]).flat();
}

/** Goes on until `end` is reached, a time is over, or somebody stops it. */
async function go(end, patience) {
  const began = performance.now();
  stopped = false;
  const tell = () => postMessage({ kind: "progress", results, done: next, all: end });
  tell();
  for (; next < end; next += 1) {
    const { kernel, shape } = tasks[next];
    if (stopped || performance.now() - began > (shape ? patience : Infinity)) break;
    if (kernel === undefined) await derive(shape);
    else if (!results[kernel].error) await run(kernel, shape);
    if (next % 8 === 0) tell();
  }
  tell();
  spent += performance.now() - began;
  const left = tasks.slice(next).filter(({ kernel }) => kernel === undefined || results[kernel].chosen).length;
  postMessage({ kind: "done", profile, gradients, left, more: tasks.length > next, compiling: compiling / 1000, seconds: spent / 1000 });
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
  if (!compiled.has(kernel)) compile([kernel]);
  const before = performance.now();
  await compiled.get(kernel);
  compiling += performance.now() - before;
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
  async check() {
    await begin();
    await go(inRounds(true).length, PATIENCE);
  },
  rest: () => go(tasks.length, Infinity),
  stop() { stopped = true; },
};
onmessage = async ({ data }) => {
  try {
    await commands[data]();
  } catch (error) {
    postMessage({ kind: "failed", message: String(error.message ?? error) });
  }
};

facts().then((found) => postMessage({ kind: "ready", facts: found })).catch(({ code, message }) => postMessage({ kind: "missing", code, message }));
