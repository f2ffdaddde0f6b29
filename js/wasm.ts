// Loading the wasm: once, retried after a failure.
import instantiate, { setUp } from "./wasm/lora_webgpu.js";
import { LoraError, type LoraErrorCode } from "./error.js";

/** Where the wasm comes from: a URL, a response, or its bytes. */
export type WasmSource = string | URL | Response | BufferSource;

let loading: Promise<void> | undefined;

// Where the wasm is by itself: beside this module.
let own = (): WasmSource | Promise<WasmSource> => new URL("./wasm/lora_webgpu_bg.wasm", import.meta.url);

/** Takes it from elsewhere: where there is a file system, see node.ts. */
export function ownSource(source: typeof own): void {
  own = source;
}

/**
 * Loads the wasm, by default the file beside this module. Optional: `Gpu.request()` does it by itself. Later calls
 * return the first one's promise; after a failure the next call tries again.
 */
export function init(source?: WasmSource | Promise<Response>): Promise<void> {
  loading ??= load(source).catch((error: unknown) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

async function load(source?: WasmSource | Promise<Response>): Promise<void> {
  let given: WasmSource;
  try {
    given = (await source) ?? (await own());
    if (typeof given === "string" || given instanceof URL) given = await fetch(given);
  } catch (error) {
    throw new LoraError("wasm-load", `the wasm file could not be fetched: ${String(error)}`);
  }
  if (given instanceof Response) {
    const type = given.headers.get("content-type") ?? "";
    if (!given.ok || type.startsWith("text/html")) {
      const got = given.ok ? `HTML instead of wasm from ${given.url}` : `HTTP ${given.status} from ${given.url}`;
      throw new LoraError(
        "wasm-load",
        `${got}. With Vite in development set optimizeDeps.exclude: ["lora-webgpu"], or pass the file's address: init(url).`,
      );
    }
  }
  try {
    await instantiate({ module_or_path: given });
  } catch (error) {
    throw new LoraError("wasm-load", `the wasm could not be started: ${String(error)}`);
  }
  // Errors about files speak of their keys.
  const plain: LoraErrorCode[] = ["checkpoint", "file", "incomplete", "unmatched", "unsupported"];
  setUp((code: LoraErrorCode, message: string) => new LoraError(code, plain.includes(code) ? message : camelCase(message)));
}

/** Rust's argument names as JavaScript's (`d_output` → `dOutput`); labels, in backticks, stay as they are. */
function camelCase(message: string): string {
  return message.replace(/`[^`]*`|(?<=[a-z])_([a-z])/g, (match, letter?: string) => letter?.toUpperCase() ?? match);
}
