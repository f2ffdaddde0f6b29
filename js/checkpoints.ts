import { callable, show } from "./check.js";
import { LoraError } from "./error.js";

/** What has a state to keep: a `Trainer`. */
export interface Resumable {
  /** The whole state as bytes. */
  saveState(): Promise<Uint8Array>;
  /** Takes it over; throws code `checkpoint` for one that is not its own. */
  loadState(bytes: Uint8Array): { bitsMayDiffer: boolean };
}

/** What {@link Checkpoints.list} tells of a run. */
export interface CheckpointInfo {
  /** The name it was opened by. */
  readonly name: string;
  /** Bytes that its files take. */
  readonly bytes: number;
  /** When its last checkpoint was written; undefined where there is none yet. */
  readonly savedAt: Date | undefined;
  /** Whether somebody has it open. */
  readonly inUse: boolean;
}

// lora-webgpu-checkpoints/NAME.run/{a,b}: each file one checkpoint, written in turns, so that the one before is whole
// whatever happens. A file is HEADER bytes and the state:
//   SHA-256 of all that follows [32 bytes]; "loraslot"; generation and time in ms, as float64.
const FOLDER = "lora-webgpu-checkpoints";
const SUFFIX = ".run";
const SLOTS = ["a", "b"] as const;
const HEADER = 56;
const MAGIC = 0x6c6f7261736c6f74n;
// How long a run is waited for that another page is just leaving.
const PATIENCE = 1000;

interface Slot {
  readonly index: number;
  readonly generation: number;
}

// TypeScript has it for workers alone.
interface SyncAccessHandle {
  truncate(size: number): void;
  write(data: Uint8Array, options: { at: number }): number;
  flush(): void;
  close(): void;
}

/**
 * The checkpoints of one run, in the browser's origin-private file system: the last one, and the one before it until a
 * newer one is whole. One page or worker has a run open at a time.
 */
export class Checkpoints {
  /** The name of the run. */
  readonly name: string;
  readonly #folder: FileSystemDirectoryHandle;
  readonly #release: () => void;
  #closed = false;
  // The slot written last, once it is known.
  #last: Slot | undefined;
  #queue: Promise<unknown> = Promise.resolve();

  private constructor(name: string, folder: FileSystemDirectoryHandle, release: () => void) {
    this.name = name;
    this.#folder = folder;
    this.#release = release;
  }

  /**
   * Opens a run, a new one where there is none of this name. Rejects with code `checkpoint-in-use` while another tab or
   * worker has it open, `storage` where the browser has no such file system.
   */
  static async open(name: string): Promise<Checkpoints> {
    const entry = entryName(name);
    const release = await lock(name);
    try {
      const folder = await (await root()).getDirectoryHandle(entry, { create: true });
      return new Checkpoints(name, folder, release);
    } catch (error) {
      release();
      throw storageError(error);
    }
  }

  /** All runs of this site. */
  static async list(): Promise<CheckpointInfo[]> {
    try {
      const held = new Set((await locks().query()).held?.map((each) => each.name));
      const runs: CheckpointInfo[] = [];
      for await (const [entry, folder] of await root()) {
        if (folder.kind !== "directory" || !entry.endsWith(SUFFIX)) continue;
        const name = nameOf(entry);
        if (name === undefined) continue;
        let [bytes, savedAt] = [0, 0];
        for await (const [, handle] of folder as FileSystemDirectoryHandle) {
          try {
            const file = await (handle as FileSystemFileHandle).getFile();
            bytes += file.size;
            savedAt = Math.max(savedAt, parse(await file.slice(0, HEADER).arrayBuffer())?.savedAt ?? 0);
          } catch (error) {
            // A training in a worker writes it anew just now.
            if (!["NotFoundError", "NotReadableError"].includes((error as DOMException).name)) throw error;
          }
        }
        runs.push({ name, bytes, savedAt: savedAt > 0 ? new Date(savedAt) : undefined, inUse: held.has(lockName(name)) });
      }
      return runs.sort((a, b) => (a.name < b.name ? -1 : 1));
    } catch (error) {
      throw storageError(error);
    }
  }

  /** Deletes a run, if there is one. Rejects with code `checkpoint-in-use` while it is open anywhere. */
  static async delete(name: string): Promise<void> {
    const entry = entryName(name);
    const release = await lock(name);
    try {
      await (await root()).removeEntry(entry, { recursive: true });
    } catch (error) {
      if ((error as Partial<DOMException>).name !== "NotFoundError") throw storageError(error);
    } finally {
      release();
    }
  }

  /**
   * Asks the browser not to clear this site's storage by itself when space runs short, and resolves to whether it will
   * not. In a worker, where asking is not possible, it says how things stand.
   */
  static async persist(): Promise<boolean> {
    const { storage } = navigator;
    if (!storage) throw noStorage();
    return typeof storage.persist === "function" ? storage.persist() : storage.persisted();
  }

  /**
   * Writes the trainer's state, as it is after the steps submitted so far. May be called while the trainer trains, e.g.
   * when the page is hidden. Rejects with code `storage-full` where the browser allows no more, `storage` where writing
   * fails otherwise; the checkpoint before is then still there.
   */
  save(trainer: Resumable): Promise<void> {
    callable("trainer.saveState", (trainer as Resumable | undefined)?.saveState);
    const state = Promise.resolve(trainer.saveState()); // reads back from here on
    state.catch(() => {}); // awaited below, in order
    return this.#inTurn(async () => this.#write(await state));
  }

  /**
   * Gives the trainer the last state that was written, so that its next `train()` goes on from there. Resolves to
   * undefined, and does nothing, in a new run. Rejects with code `checkpoint` where the state is of another training.
   */
  restore(trainer: Resumable): Promise<{ bitsMayDiffer: boolean; savedAt: Date } | undefined> {
    callable("trainer.loadState", (trainer as Resumable | undefined)?.loadState);
    return this.#inTurn(async () => {
      const found = await this.#find();
      return found && { ...trainer.loadState(found.state), savedAt: new Date(found.savedAt) };
    });
  }

  /** Lets others open the run, after what is being written. Idempotent. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#queue;
    this.#release();
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) return Promise.reject(new LoraError("disposed", `the run ${show(this.name)} was closed; expected an open one`));
    const result = this.#queue.then(work).catch((error: unknown) => {
      throw storageError(error);
    });
    this.#queue = result.catch(() => {});
    return result;
  }

  async #find(): Promise<(Slot & { savedAt: number; state: Uint8Array }) | undefined> {
    const files = SLOTS.map(async (slot, index) => {
      const handle = await this.#folder.getFileHandle(slot, { create: true });
      const bytes = await (await handle.getFile()).arrayBuffer();
      return { index, bytes, header: parse(bytes) };
    });
    const all = await Promise.all(files);
    // The newer one that is whole.
    for (const { index, bytes, header } of all.sort((a, b) => (b.header?.generation ?? 0) - (a.header?.generation ?? 0))) {
      if (!header || !(await isWhole(bytes))) continue;
      this.#last = { index, generation: header.generation };
      return { ...this.#last, savedAt: header.savedAt, state: new Uint8Array(bytes, HEADER) };
    }
    this.#last = { index: 1, generation: 0 };
    // The second slot is written once the first is whole: both broken is no interrupted first write.
    if (all.every(({ bytes }) => bytes.byteLength > 0)) {
      throw new LoraError("checkpoint", `both files of the run ${show(this.name)} are damaged; expected one to be whole`);
    }
    return undefined;
  }

  async #write(state: Uint8Array): Promise<void> {
    if (!this.#last) await this.#find();
    const { index, generation } = this.#last as Slot;
    const next = { index: 1 - index, generation: generation + 1 };
    const handle = await this.#folder.getFileHandle(SLOTS[next.index] as string, { create: true });
    const bytes = await frame(state, next.generation);
    try {
      await writeFile(handle, bytes);
    } catch (error) {
      // Chrome sometimes says no more than that its pipe broke.
      const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
      throw quota - usage < bytes.length ? storageFull() : error;
    }
    this.#last = next;
  }
}

function noStorage(): LoraError {
  if (globalThis.isSecureContext === false) {
    return new LoraError("insecure-context", "checkpoints need a secure context; open the page by localhost or https");
  }
  return new LoraError("storage", "this browser has no origin-private file system; expected a recent Chrome, Edge, Safari or Firefox");
}

const storageFull = () =>
  new LoraError("storage-full", "the browser allows this site no more storage; delete other runs, or free space on the disk");

function storageError(error: unknown): LoraError {
  if (error instanceof LoraError) return error;
  if ((error as Partial<DOMException> | null)?.name === "QuotaExceededError") return storageFull();
  return new LoraError("storage", `the browser's private file system failed: ${String(error)}`);
}

function locks(): LockManager {
  const { locks } = navigator as { locks?: LockManager };
  if (!locks) throw noStorage();
  return locks;
}

const lockName = (name: string) => `${FOLDER}/${name}`;

/** Resolves, once the run is ours, to what gives it back. Pages and workers that end give it back by themselves. */
function lock(name: string): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const held = locks().request(lockName(name), { signal: AbortSignal.timeout(PATIENCE) }, () => new Promise<void>(resolve));
    held.catch((error: DOMException) => {
      const late = error.name === "TimeoutError" || error.name === "AbortError";
      const inUse = () => new LoraError("checkpoint-in-use", `the run ${show(name)} is open in another tab or worker; expected one at a time`);
      reject(late ? inUse() : storageError(error));
    });
  });
}

/** A run's name, of a folder that is one. */
function nameOf(entry: string): string | undefined {
  try {
    return decodeURIComponent(entry.slice(0, -SUFFIX.length));
  } catch {
    return undefined; // somebody else's
  }
}

function entryName(name: unknown): string {
  const wrong = () => new LoraError("invalid-argument", `name: expected a name of 1 to some 60 letters, got ${show(name)}`);
  if (typeof name !== "string" || name === "") throw wrong();
  try {
    const entry = encodeURIComponent(name) + SUFFIX; // names may hold slashes and be ".."
    if (entry.length <= 200) return entry;
  } catch {
    // half a surrogate pair
  }
  throw wrong();
}

async function root(): Promise<FileSystemDirectoryHandle> {
  if (typeof navigator.storage?.getDirectory !== "function") throw noStorage();
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** The header of a file, unless it is none of ours. */
function parse(bytes: ArrayBuffer): { generation: number; savedAt: number } | undefined {
  if (bytes.byteLength < HEADER) return undefined;
  const view = new DataView(bytes);
  if (view.getBigUint64(32) !== MAGIC) return undefined;
  return { generation: view.getFloat64(40), savedAt: view.getFloat64(48) };
}

const digest = async (bytes: Uint8Array<ArrayBuffer>) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes.subarray(32)));

async function isWhole(bytes: ArrayBuffer): Promise<boolean> {
  const all = new Uint8Array(bytes);
  const sum = await digest(all);
  return sum.every((byte, i) => byte === all[i]);
}

async function frame(state: Uint8Array, generation: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(HEADER + state.length);
  bytes.set(state, HEADER);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(32, MAGIC);
  view.setFloat64(40, generation);
  view.setFloat64(48, Date.now());
  bytes.set(await digest(bytes));
  return bytes;
}

async function writeFile(handle: FileSystemFileHandle, bytes: Uint8Array): Promise<void> {
  const { createSyncAccessHandle } = handle as { createSyncAccessHandle?(): Promise<SyncAccessHandle> };
  if (createSyncAccessHandle) {
    // In a worker, in place: the header, which makes the rest count, after the rest is on the disk.
    const file = await createSyncAccessHandle.call(handle);
    try {
      file.truncate(0);
      writeAll(file, bytes, HEADER, bytes.length);
      file.flush();
      writeAll(file, bytes, 0, HEADER);
      file.flush();
    } catch (error) {
      try {
        file.truncate(0); // gives back what it took
      } catch {
        // the first error counts
      }
      throw error;
    } finally {
      file.close();
    }
    return;
  }
  if (!handle.createWritable) {
    throw new LoraError("storage", "this browser writes such files only in workers; train in a worker");
  }
  // Into a copy, which takes the file's place when it is closed.
  const file = await handle.createWritable();
  try {
    await file.write(bytes as Uint8Array<ArrayBuffer>);
    await file.close();
  } catch (error) {
    await file.abort().catch(() => {});
    throw error;
  }
}

function writeAll(file: SyncAccessHandle, bytes: Uint8Array, from: number, to: number): void {
  while (from < to) {
    const written = file.write(bytes.subarray(from, to), { at: from });
    if (!(written > 0)) throw new DOMException("nothing more was written", "QuotaExceededError");
    from += written;
  }
}
