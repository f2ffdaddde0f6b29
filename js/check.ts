// Checks on what comes from JavaScript: wasm-bindgen would turn -1 into 4294967295 and undefined into 0.
import { LoraError } from "./error.js";

/** Refuses what is no object of options (an array, a Map, a file …) and keys that are not in `allowed`. */
export function checkOptions(what: string, options: unknown, allowed: readonly string[]): void {
  if (Object.prototype.toString.call(options) !== "[object Object]") {
    throw new LoraError("invalid-argument", `${what}: expected an object of options, got ${show(options)}`);
  }
  for (const key of Object.keys(options as object)) {
    if (!allowed.includes(key)) {
      throw new LoraError("unknown-option", `${what}: unknown option \`${key}\`; expected ${allowed.join(", ")}`);
    }
  }
}

/** An integer in [minimum, 2³²). */
export function integer(name: string, value: unknown, minimum = 1): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= minimum) {
    if (value <= 0xffffffff) return value;
    throw new LoraError("invalid-argument", `${name}: expected an integer of at most ${0xffffffff}, got ${value}`);
  }
  throw new LoraError("invalid-argument", `${name}: expected an integer of at least ${minimum}, got ${show(value)}`);
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

export function text(name: string, value: unknown): string {
  if (typeof value !== "string") throw new LoraError("invalid-argument", `${name}: expected a string, got ${show(value)}`);
  return value;
}

/** One of a few words. */
export function oneOf<W extends string>(name: string, value: unknown, words: readonly W[]): W {
  if (!(words as readonly unknown[]).includes(value)) {
    throw new LoraError("invalid-argument", `${name}: expected ${words.join(", ")}, got ${show(value)}`);
  }
  return value as W;
}

export function array(name: string, value: unknown, of = ""): readonly unknown[] {
  if (!Array.isArray(value)) throw new LoraError("invalid-argument", `${name}: expected an array${of}, got ${show(value)}`);
  return value;
}

export function callable(name: string, value: unknown): void {
  if (typeof value !== "function") throw new LoraError("invalid-argument", `${name}: expected a function, got ${show(value)}`);
}

/** An AbortSignal, perhaps of another window, or nothing. */
export function checkSignal(signal: unknown): void {
  const { aborted, addEventListener } = (signal ?? {}) as Partial<AbortSignal>;
  if (signal !== undefined && (typeof aborted !== "boolean" || typeof addEventListener !== "function")) {
    throw new LoraError("invalid-argument", `signal: expected an AbortSignal, got ${show(signal)}`);
  }
}

/** Token ids. */
export function ids(name: string, values: unknown): Int32Array {
  if (values instanceof Int32Array) return values;
  if (!Array.isArray(values) && (!ArrayBuffer.isView(values) || values instanceof DataView)) {
    throw new LoraError("invalid-argument", `${name}: expected an array of token ids, got ${show(values)}`);
  }
  return Int32Array.from(values as ArrayLike<number>, (id) => integer(name, id, 0));
}

/** A value as JSON; undefined, which JSON has not, as null. */
export function json(name: string, value: unknown): string {
  try {
    return JSON.stringify(value) ?? "null";
  } catch (error) {
    throw new LoraError("invalid-argument", `${name}: expected what JSON can hold: ${String(error)}`);
  }
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

/** Binds a public object to its wasm object; `owned` is how a warning calls one whose GPU memory goes with its `dispose()` alone. */
export function bind(object: object, raw: unknown, owned?: string): void {
  raws.set(object, raw);
  if (owned) undisposed?.register(object, owned, object);
}

// With `Gpu.request({ debug: true })`: tells of what was dropped without dispose().
let undisposed: FinalizationRegistry<string> | undefined;

export function warnOfUndisposed(): void {
  undisposed ??= new FinalizationRegistry((what) => console.warn(`lora-webgpu: ${what} was dropped without dispose(), and its GPU memory stays taken`));
}

/** What is freed by something else from now on. */
export function handedOver(object: object): void {
  undisposed?.unregister(object);
}

/** The wasm object behind `value`, which must be a `type`. */
export function unwrap<R>(name: string, type: { name: string; prototype: object }, value: unknown): R {
  const raw = typeof value === "object" && value !== null && value instanceof (type as never) ? raws.get(value) : undefined;
  if (raw === undefined) {
    throw new LoraError("invalid-argument", `${name}: expected a ${type.name}, got ${show(value)}`);
  }
  return raw as R;
}

/** Lets `dispose()` end the watch, and makes `object[Symbol.dispose]` do what it does, where the engine has that symbol. */
export function disposable(prototype: { dispose(): void }): void {
  const { dispose } = prototype;
  prototype.dispose = function () {
    handedOver(this);
    dispose.call(this);
  };
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
