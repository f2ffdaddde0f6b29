// Checks on what comes from JavaScript: wasm-bindgen would turn -1 into 4294967295 and undefined into 0.
import { LoraError } from "./error.js";

/** Refuses what is no object and keys that are not in `allowed`. */
export function checkOptions(what: string, options: unknown, allowed: readonly string[]): void {
  if (typeof options !== "object" || options === null) {
    throw new LoraError("invalid-argument", `${what}: expected an object of options, got ${show(options)}`);
  }
  for (const key of Object.keys(options)) {
    if (!allowed.includes(key)) {
      throw new LoraError("unknown-option", `${what}: unknown option \`${key}\`; expected ${allowed.join(", ")}`);
    }
  }
}

/** An integer in [minimum, 2³²). */
export function integer(name: string, value: unknown, minimum = 1): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < minimum || value > 0xffffffff) {
    throw new LoraError("invalid-argument", `${name}: expected an integer of at least ${minimum}, got ${show(value)}`);
  }
  return value;
}

/** A finite number. */
export function finite(name: string, value: unknown): number {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw new LoraError("invalid-argument", `${name}: expected a finite number, got ${show(value)}`);
  }
  return value;
}

/** A seed that a float holds exactly. */
export function seedNumber(seed: unknown): number {
  if (!Number.isSafeInteger(seed) || (seed as number) < 0) {
    throw new LoraError("invalid-argument", `seed: expected an integer from 0 to 2^53 − 1, got ${show(seed)}`);
  }
  return seed as number;
}

export function boolean(name: string, value: unknown): boolean {
  if (typeof value !== "boolean") {
    throw new LoraError("invalid-argument", `${name}: expected true or false, got ${show(value)}`);
  }
  return value;
}

export function float32Array(name: string, value: unknown): Float32Array {
  if (!(value instanceof Float32Array)) {
    throw new LoraError("invalid-argument", `${name}: expected a Float32Array, got ${show(value)}`);
  }
  return value;
}

export function numbers(name: string, value: unknown): Float32Array | Int32Array {
  return value instanceof Int32Array ? value : float32Array(name, value);
}

// The wasm object behind each public one. It stays alive after dispose(), so that late calls find a typed error.
const raws = new WeakMap<object, unknown>();

export function bind(object: object, raw: unknown): void {
  raws.set(object, raw);
}

/** The wasm object behind `value`, which must be a `type`. */
export function unwrap<R>(name: string, type: { name: string; prototype: object }, value: unknown): R {
  const raw = typeof value === "object" && value !== null && value instanceof (type as never) ? raws.get(value) : undefined;
  if (raw === undefined) {
    throw new LoraError("invalid-argument", `${name}: expected a ${type.name}, got ${show(value)}`);
  }
  return raw as R;
}

/** Makes `object[Symbol.dispose]` do what `dispose()` does, where the engine has that symbol. */
export function disposable(prototype: { dispose(): void }): void {
  const symbol: symbol | undefined = (Symbol as { dispose?: symbol }).dispose;
  if (symbol) {
    Object.defineProperty(prototype, symbol, { value(this: { dispose(): void }) { this.dispose(); } });
  }
}

export function show(value: unknown): string {
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return typeof value === "string" ? JSON.stringify(value) : String(value);
  return `an object of class ${value.constructor?.name ?? "Object"}`;
}
