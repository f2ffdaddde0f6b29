// Zip archives: written stored, read stored or deflated. Format: PKWARE's APPNOTE, 4.3.
import { LoraError } from "./error.js";

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = (n >>> 1) ^ (n & 1 ? 0xedb88320 : 0);
  return n;
});

function crc32(bytes: Uint8Array): number {
  let crc = -1;
  for (const byte of bytes) crc = (crc >>> 8) ^ (TABLE[(crc ^ byte) & 255] as number);
  return ~crc >>> 0;
}

/** An archive of these files, not compressed: weights hardly shrink. */
export function zip(files: Record<string, Uint8Array>): Blob {
  const parts: BlobPart[] = [], directory: BlobPart[] = [];
  let offset = 0, directoryLength = 0;
  const names = Object.entries(files);
  for (const [name, data] of names) {
    const encoded = new TextEncoder().encode(name);
    // Version 2.0, names in UTF-8, stored, 1 January 1980; checksum and lengths.
    const common = [20, 0, 0, 8, 0, 0, 0, 0, 33, 0, ...words(crc32(data), data.length, data.length), ...shorts(encoded.length, 0)];
    parts.push(Uint8Array.from([...words(0x04034b50), ...common]), encoded, data as Uint8Array<ArrayBuffer>);
    directory.push(Uint8Array.from([...words(0x02014b50), 20, 0, ...common, ...shorts(0, 0, 0), ...words(0, offset)]), encoded);
    offset += 30 + encoded.length + data.length;
    directoryLength += 46 + encoded.length;
  }
  if (offset + directoryLength > 0xffffffff) throw new LoraError("limit", "zip: expected less than 4 GiB");
  const count = names.length;
  const end = [...words(0x06054b50), ...shorts(0, 0, count, count), ...words(directoryLength, offset), ...shorts(0)];
  return new Blob([...parts, ...directory, Uint8Array.from(end)], { type: "application/zip" });
}

const words = (...values: number[]): number[] => values.flatMap((v) => [v & 255, (v >>> 8) & 255, (v >>> 16) & 255, v >>> 24]);
const shorts = (...values: number[]): number[] => values.flatMap((v) => [v & 255, v >>> 8]);

export const isZip = (bytes: Uint8Array): boolean => bytes[0] === 0x50 && bytes[1] === 0x4b && bytes[2] === 3 && bytes[3] === 4;

// Bytes that a small file may unpack to.
const MOST = 1 << 26;

/** The files of an archive whose names `wanted` accepts. */
export async function unzip(archive: Uint8Array, wanted: (name: string) => boolean): Promise<Map<string, Uint8Array>> {
  const broken = (what: string) => new LoraError("file", `the zip archive ${what}`);
  const view = new DataView(archive.buffer, archive.byteOffset, archive.byteLength);
  // The end record: 22 bytes and a comment.
  let end = archive.length - 22;
  while (end >= 0 && end > archive.length - 65558 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0 || view.getUint32(end, true) !== 0x06054b50) throw broken("is cut off");
  const found = new Map<string, Uint8Array>();
  let inside = 0;
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (at + 46 > archive.length || view.getUint32(at, true) !== 0x02014b50) throw broken("has a broken directory");
    const [method, checksum] = [view.getUint16(at + 10, true), view.getUint32(at + 16, true)];
    const [packed, size] = [view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
    const nameLength = view.getUint16(at + 28, true), start = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(archive.subarray(at + 46, at + 46 + nameLength));
    at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    if (!wanted(name)) continue;
    if (start + 30 > archive.length) throw broken("has a broken directory");
    const data = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    if (data + packed > archive.length || (method !== 0 && method !== 8)) {
      throw broken(`holds ${name} cut off, or packed in a way that is not read here; expected stored or deflated`);
    }
    // Weights hardly shrink; what unpacks to a thousand times as much wants a page's memory.
    if (size > MOST && size > 32 * packed) throw new LoraError("limit", `the zip archive: ${name} says that it unpacks to ${size} bytes from ${packed}`);
    if ((inside += packed) > archive.length) throw broken("has files that lie in one another");
    const bytes = archive.subarray(data, data + packed);
    const unpacked = method === 0 ? bytes : await inflate(bytes, size).catch(() => undefined);
    if (unpacked?.length !== size || crc32(unpacked) !== checksum) throw broken(`holds ${name} damaged`);
    found.set(name, unpacked);
  }
  return found;
}

async function inflate(bytes: Uint8Array, size: number): Promise<Uint8Array> {
  const stream = new Blob([bytes as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader(), pieces: Uint8Array[] = [];
  let length = 0;
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    length += piece.value.length;
    // No more than it says, whatever it unpacks to.
    if (length > size) throw new Error("too long");
    pieces.push(piece.value);
  }
  const out = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    out.set(piece, at);
    at += piece.length;
  }
  return out;
}
