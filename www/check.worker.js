// Runs the kernels one shape after the other, the first shape of each before the second of any, so that a slow adapter has
// seen every kernel before its time is over.
import { compileAhead } from "../dist/adopt.js";
import initCheck, { Check, derivativeCount, kernels, shapeCount } from "./wasm/check.js";

const BUDGET_MS = 14_000, MOST_MS = 17_500; // for further shapes; for compiling and first shapes
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

/** A result by kernel: how many shapes, the worst of them, times; or what came out wrong. */
async function check(software) {
  const gpu = await Check.open(software);
  const began = performance.now();
  const results = kernels().map((name) => ({ name, share: 0, absolute: 0, shapes: 0, ms: Infinity, error: "" }));
  const shapes = results.map((_, kernel) => shapeCount(kernel));
  const all = shapes.reduce((sum, n) => sum + n, derivativeCount());
  let done = 0, left = 0;
  const late = (shape) => performance.now() - began > (shape ? BUDGET_MS : MOST_MS);
  const tell = () => postMessage({ kind: "progress", results, done, all });
  async function derive(i) {
    try {
      gradients.worst = Math.max(gradients.worst, await gpu.derivative(i));
      if (!(gradients.worst <= 1e-3)) gradients.error = `${gradients.worst}`;
      gradients.shapes += 1;
    } catch (error) {
      gradients.error = String(error.message ?? error);
    }
    done += 1;
  }
  const gradients = { worst: 0, shapes: 0, error: "" };
  let compiled = 0, compiling = 0;
  for (let shape = 0; shape < Math.max(...shapes); shape += 1) {
    if (shape < derivativeCount() && !late(shape)) await derive(shape);
    for (const [kernel, result] of results.entries()) {
      if (shape >= shapes[kernel] || result.error) continue;
      if (late(shape)) { left += 1; continue; }
      if (kernel >= compiled) {
        const before = performance.now();
        await compileAhead(gpu.device(), (keep) => gpu.compile(kernel, TOGETHER, keep));
        compiled = kernel + TOGETHER;
        compiling += performance.now() - before;
      }
      try {
        const run = await gpu.run(kernel, shape);
        result.share = Math.max(result.share, run.share);
        result.absolute = Math.max(result.absolute, run.absolute);
        result.ms = Math.min(result.ms, run.ms);
        result.shapes += 1;
        run.free();
      } catch (error) {
        result.error = String(error.message ?? error);
      }
      done += 1;
      if (done % 8 === 0) tell();
    }
  }
  gpu.close();
  tell();
  postMessage({ kind: "done", gradients, left, compiling: compiling / 1000, seconds: (performance.now() - began) / 1000 });
}

let software;
onmessage = ({ data }) => data === "check" && check(software).catch((error) => postMessage({ kind: "failed", message: String(error.message ?? error) }));

facts().then(async (found) => {
  software = found.isSoftware;
  await initCheck();
  postMessage({ kind: "ready", facts: found });
}).catch(({ code, message }) => postMessage({ kind: "missing", code, message }));
