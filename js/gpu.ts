import { RawGpu } from "./wasm/lora_webgpu.js";
import { bind, boolean, checkOptions, disposable, show } from "./check.js";
import { LoraError } from "./error.js";
import { Recording } from "./recording.js";
import { init } from "./wasm.js";

/** Options of {@link Gpu.request}. */
export interface GpuOptions {
  /** Which adapter of a machine with several. */
  powerPreference?: "low-power" | "high-performance";
  /** Take the software adapter even where there is hardware. */
  forceFallbackAdapter?: boolean;
}

/** What the browser tells of the adapter. */
export interface GpuInfo {
  readonly vendor: string;
  readonly architecture: string;
  readonly device: string;
  readonly description: string;
  /** Whether it computes on the CPU: correct, but slow. */
  readonly isSoftware: boolean;
}

/** Counters since the `Gpu` was made. */
export interface GpuStats {
  readonly submits: number;
  readonly dispatches: number;
  /** Bytes written to GPU buffers: data and kernel parameters. */
  readonly uploadedBytes: number;
  readonly pipelines: number;
  readonly bindGroups: number;
  readonly buffersCreated: number;
}

// The parts of WebGPU that this file touches; the package asks for no other types.
interface Adapter {
  readonly limits: object;
  readonly info: { vendor: string; architecture: string; device: string; description: string; isFallbackAdapter?: boolean };
  requestDevice(descriptor: object): Promise<Device>;
}
interface Device {
  readonly limits: object;
  readonly features: unknown;
  readonly adapterInfo?: Adapter["info"];
  readonly lost: Promise<{ reason: string; message: string }>;
}
interface WebGpu {
  requestAdapter(options?: object): Promise<Adapter | null>;
}

/** A WebGPU device. Everything else is made on one and works only with things of the same one. */
export class Gpu {
  /** Resolves when the device is lost: destroyed, crashed or taken away. */
  readonly lost: Promise<{ reason: string; message: string }>;
  readonly info: GpuInfo;
  #raw: RawGpu;

  private constructor(raw: RawGpu, device: Device, info: Adapter["info"]) {
    this.#raw = raw;
    bind(this, raw);
    this.lost = device.lost.then(({ reason, message }) => ({ reason, message }));
    const { vendor, architecture, device: name, description } = info;
    this.info = { vendor, architecture, device: name, description, isSoftware: isSoftware(info) };
  }

  /**
   * Loads the wasm where that has not been done, and asks for a device with the adapter's own limits. A missing adapter
   * is asked for again for a second: browsers answer null while their GPU process starts.
   *
   * Rejects with code `no-webgpu`, `insecure-context`, `no-adapter` or `wasm-load`.
   */
  static async request(options: GpuOptions = {}): Promise<Gpu> {
    checkOptions("Gpu.request", options, ["powerPreference", "forceFallbackAdapter"]);
    const { powerPreference, forceFallbackAdapter = false } = options;
    boolean("forceFallbackAdapter", forceFallbackAdapter);
    if (powerPreference !== undefined && powerPreference !== "low-power" && powerPreference !== "high-performance") {
      throw new LoraError("invalid-argument", `powerPreference: expected "low-power" or "high-performance", got ${show(powerPreference)}`);
    }
    const webgpu = findWebGpu();
    const [adapter] = await Promise.all([findAdapter(webgpu, { powerPreference, forceFallbackAdapter }), init()]);
    const requiredLimits: Record<string, number> = {};
    for (const name in adapter.limits) {
      const value = (adapter.limits as Record<string, unknown>)[name];
      if (typeof value === "number") requiredLimits[name] = value;
    }
    let device: Device;
    try {
      device = await adapter.requestDevice({ label: "lora-webgpu", requiredLimits });
    } catch (error) {
      throw new LoraError("no-adapter", `the adapter gives no device: ${String(error)}`);
    }
    const info = device.adapterInfo ?? adapter.info;
    return new Gpu(await adopt(webgpu, device, isSoftware(info)), device, info);
  }

  /** Starts a recording of dispatches. */
  record(): Recording {
    return new Recording(this);
  }

  /** Resolves when everything submitted so far has been computed. */
  async finished(): Promise<void> {
    await this.#raw.finished();
  }

  /** Live GPU buffers and their bytes. */
  memory(): { buffers: number; bytes: number } {
    const [buffers = 0, bytes = 0] = this.#raw.memory();
    return { buffers, bytes };
  }

  /** What was done so far. */
  stats(): GpuStats {
    const [submits = 0, dispatches = 0, uploadedBytes = 0, pipelines = 0, bindGroups = 0, buffersCreated = 0] = this.#raw.stats();
    return { submits, dispatches, uploadedBytes, pipelines, bindGroups, buffersCreated };
  }

  /** Destroys the device with everything on it, after the calls that wait for it. Idempotent; later use of anything on it gives code `disposed`. */
  dispose(): void {
    this.#raw.destroy();
  }
}
disposable(Gpu.prototype);

function isSoftware({ architecture, description, isFallbackAdapter }: Adapter["info"]): boolean {
  return isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|warp/i.test(`${architecture} ${description}`);
}

function findWebGpu(): WebGpu {
  const { navigator, isSecureContext } = globalThis as { navigator?: { gpu?: WebGpu }; isSecureContext?: boolean };
  if (navigator?.gpu) return navigator.gpu;
  if (isSecureContext === false) {
    throw new LoraError("insecure-context", "WebGPU needs a secure context; open the page by localhost or https");
  }
  throw new LoraError("no-webgpu", "this browser has no WebGPU (navigator.gpu is missing); expected a recent Chrome, Edge, Safari or Firefox");
}

async function findAdapter(webgpu: WebGpu, options: object): Promise<Adapter> {
  for (let waited = 0; ; waited += 100) {
    const adapter = await webgpu.requestAdapter(options);
    if (adapter) return adapter;
    if (waited >= 1000) throw new LoraError("no-adapter", "WebGPU is there, but gives no adapter; the browser may block this GPU");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Hands a device to wgpu, which would request its own: for one synchronous call its question is answered with ours. */
async function adopt(webgpu: WebGpu, device: Device, software: boolean): Promise<RawGpu> {
  const answer = {
    limits: device.limits,
    features: device.features,
    info: device.adapterInfo,
    requestDevice: () => Promise.resolve(device),
  };
  const own = Object.getOwnPropertyDescriptor(webgpu, "requestAdapter"); // where somebody has put one there
  Object.defineProperty(webgpu, "requestAdapter", { configurable: true, value: () => Promise.resolve(answer) });
  let pending: Promise<RawGpu>;
  try {
    pending = RawGpu.adopt(true, software) as Promise<RawGpu>;
  } finally {
    if (own) Object.defineProperty(webgpu, "requestAdapter", own);
    else delete (webgpu as Partial<WebGpu>).requestAdapter;
  }
  return pending;
}
