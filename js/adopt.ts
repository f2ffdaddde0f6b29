// What the page and this package hand to each other: devices and buffers. wgpu takes neither from JavaScript, but it asks
// the browser for them.
import { show } from "./check.js";
import { LoraError } from "./error.js";

/** Lets `object[name]` be `answer` for the one synchronous call of `work`. */
export function answering<T>(object: object, name: string, answer: (...args: never[]) => unknown, work: () => T): T {
  const own = Object.getOwnPropertyDescriptor(object, name); // where somebody has put one there
  Object.defineProperty(object, name, { configurable: true, value: answer });
  try {
    return work();
  } finally {
    if (own) Object.defineProperty(object, name, own);
    else delete (object as Record<string, unknown>)[name];
  }
}

/** Refuses what is no `type` of the browser's own; one of another frame is fine. */
export function platformObject(name: string, type: "GPUBuffer" | "GPUDevice", value: unknown): void {
  if (typeof value === "object" && value !== null && Object.prototype.toString.call(value) === `[object ${type}]`) return;
  throw new LoraError("invalid-argument", `${name}: expected a ${type}, got ${show(value)}`);
}

interface PipelineMaker {
  createComputePipeline(descriptor: { label: string }): object;
  createComputePipelineAsync(descriptor: { label: string }): Promise<object>;
}

/**
 * Has the browser compile pipelines side by side and off this thread, which wgpu would make one after the other: `compile(false)`
 * shows which are missing, and `compile(true)` is given those that were made meanwhile. What could not be made is left to the
 * submit that needs it, whose promise says why.
 */
export async function compileAhead(
  device: object,
  compile: (keep: boolean) => void,
  onProgress: (done: number, total: number) => void = () => {},
): Promise<void> {
  const maker = device as PipelineMaker;
  const made = new Map<string, object>();
  const making: Promise<void>[] = [];
  let done = 0;
  const ask = (descriptor: { label: string }) => {
    const pipeline = maker.createComputePipelineAsync(descriptor);
    making.push(pipeline.then((ready) => void made.set(descriptor.label, ready), () => {}).then(() => onProgress(++done, making.length)));
    return {}; // dropped unused
  };
  answering(device, "createComputePipeline", ask, () => compile(false));
  if (making.length === 0) return;
  await Promise.all(making);
  const own = maker.createComputePipeline.bind(device);
  answering(device, "createComputePipeline", (descriptor: { label: string }) => made.get(descriptor.label) ?? own(descriptor), () => compile(true));
}
