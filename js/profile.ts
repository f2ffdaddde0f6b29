// Which kernels a device gets: those for GPUs, or those for adapters that compute on the CPU.
import { RawFrozen, type RawGpu, RawRecording, RawTensor } from "./wasm/lora_webgpu.js";

/** Kernels for GPUs, or for software adapters: those have other tiles and few barriers. Both are right on any device. */
export type GpuProfile = "hardware" | "software";
/** @internal */
export const PROFILES: readonly GpuProfile[] = ["hardware", "software"];

/** The parts of a GPUAdapterInfo. @internal */
export interface AdapterInfo {
  vendor: string;
  architecture: string;
  device: string;
  description: string;
  isFallbackAdapter?: boolean;
}

/** What the adapter says it is; undefined where it says nothing, or names a maker of software adapters. @internal */
export function saidProfile({ vendor, architecture, description, isFallbackAdapter }: AdapterInfo): GpuProfile | undefined {
  const software = isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|warp|basic render/i.test(`${architecture} ${description}`);
  if (software) return "software";
  return vendor === "" || /google|mesa|microsoft/i.test(vendor) ? undefined : "hardware";
}

// The package's, since its kernels may change.
const VERSION = "0.1.0";
const timed = new Map<string, Promise<GpuProfile>>();

/** The profile of the faster kernels, timed once for an adapter like this; `open` gives a Gpu of a profile. @internal */
export function timedProfile(
  device: { limits: object; features: ReadonlySet<string> },
  { vendor, architecture, device: name, description }: AdapterInfo,
  open: (profile: GpuProfile) => Promise<RawGpu>,
): Promise<GpuProfile> {
  const limits: unknown[] = [];
  for (const limit in device.limits) limits.push((device.limits as Record<string, unknown>)[limit]);
  const key = [VERSION, navigator.userAgent, vendor, architecture, name, description, ...[...device.features].sort(), ...limits].join();
  let profile = timed.get(key);
  if (!profile) {
    profile = remembered(key, () => faster(open)).catch(() => {
      timed.delete(key);
      return "hardware" as const; // a device that cannot do this says so in its own time
    });
    timed.set(key, profile);
  }
  return profile;
}

/** What `find` found in an earlier page, where the browser keeps such things; workers have this storage, too. */
async function remembered(key: string, find: () => Promise<GpuProfile>): Promise<GpuProfile> {
  const url = `https://lora-webgpu.invalid/profile?${encodeURIComponent(key)}`;
  let cache: Cache | undefined;
  try {
    cache = await caches.open("lora-webgpu");
    const text = await (await cache.match(url))?.text();
    const before = PROFILES.find((profile) => profile === text);
    if (before) return before;
  } catch {
    // There is none, or the page may not use it.
  }
  const profile = await find();
  await cache?.put(url, new Response(profile)).catch(() => {});
  return profile;
}

const [TOKENS, FEATURES] = [64, 512];
const ENOUGH = 20; // milliseconds, of clocks that browsers make coarse

/**
 * Times the same products by both kernels, more and more of them until the slower ones take long enough to tell. On a CPU those
 * for GPUs take many times as long; a GPU that small products leave idle must not be taken for one.
 */
async function faster(open: (profile: GpuProfile) => Promise<RawGpu>): Promise<GpuProfile> {
  const runs: Run[] = [];
  try {
    for (const profile of PROFILES) runs.push(prepare(await open(profile)));
    for (const { time } of runs) await time(1); // compiles
    for (let count = 1; ; count *= 4) {
      const [hardware = 0, software = 0] = [await runs[0]?.time(count), await runs[1]?.time(count)];
      if (Math.max(hardware, software) >= ENOUGH || count === 256) return 2 * software < hardware ? "software" : "hardware";
    }
  } finally {
    for (const { destroy } of runs) destroy();
  }
}

interface Run {
  time(count: number): Promise<number>;
  destroy(): void;
}

function prepare(gpu: RawGpu): Run {
  const tensor = (rows: number) => new RawTensor(gpu, "timed", Uint32Array.of(rows, FEATURES), false);
  const [w, x, output] = [tensor(FEATURES), tensor(TOKENS), tensor(TOKENS)];
  const weight = RawFrozen.fromTensors(w, w, false);
  return {
    async time(count) {
      const rec = new RawRecording(gpu);
      for (let i = 0; i < count; i++) weight.forwardRows(rec, 0, FEATURES, x, output);
      const began = performance.now();
      await rec.submit();
      await gpu.finished();
      return performance.now() - began;
    },
    destroy: () => gpu.destroy(),
  };
}
