// What the page and this package hand to each other: devices and buffers. wgpu takes neither from JavaScript, but it asks
// the browser for them.
import { show } from "./check.js";
import { LoraError } from "./error.js";

/** Lets `object[name]()` answer with `answer` for the one synchronous call of `work`. */
export function answering<T>(object: object, name: string, answer: unknown, work: () => T): T {
  const own = Object.getOwnPropertyDescriptor(object, name); // where somebody has put one there
  Object.defineProperty(object, name, { configurable: true, value: () => answer });
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
