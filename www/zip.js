// A zip archive of files that are stored, not compressed, and its reading: what PEFT's two files need.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k += 1) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
const crc32 = (bytes) => {
  let crc = ~0;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
};

/** `{ name: bytes, … }` as one archive. */
export function zip(files) {
  const parts = [], directory = [];
  let at = 0;
  for (const [name, bytes] of Object.entries(files)) {
    const path = new TextEncoder().encode(name);
    // Version, flags (UTF-8 names), method 0, time, date (1 January 1980), CRC, sizes, lengths.
    const fields = [[20, 2], [0x800, 2], [0, 2], [0, 2], [33, 2], [crc32(bytes), 4], [bytes.length, 4], [bytes.length, 4], [path.length, 2], [0, 2]];
    const local = record(0x04034b50, fields);
    parts.push(local, path, bytes);
    directory.push(record(0x02014b50, [[20, 2], ...fields, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]]), path);
    at += local.length + path.length + bytes.length;
  }
  const size = directory.reduce((sum, { length }) => sum + length, 0), count = Object.keys(files).length;
  const end = record(0x06054b50, [[0, 2], [0, 2], [count, 2], [count, 2], [size, 4], [at, 4], [0, 2]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

function record(signature, fields) {
  const bytes = new Uint8Array(4 + fields.reduce((sum, [, size]) => sum + size, 0)), view = new DataView(bytes.buffer);
  view.setUint32(0, signature, true);
  let at = 4;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return bytes;
}

/** The stored files of an archive, by name; undefined where it is none, or compressed. */
export function unzip(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), files = {};
  try {
    let at = 0;
    while (view.getUint32(at, true) === 0x04034b50) {
      const method = view.getUint16(at + 8, true), size = view.getUint32(at + 18, true);
      const path = view.getUint16(at + 26, true), extra = view.getUint16(at + 28, true), from = at + 30 + path + extra;
      if (method !== 0 || from + size > bytes.length) return;
      files[new TextDecoder().decode(bytes.subarray(at + 30, at + 30 + path))] = bytes.slice(from, from + size);
      at = from + size;
    }
    return Object.keys(files).length ? files : undefined;
  } catch { /* ends in the middle */ }
}
