// Zip archives as systems make them, for tests.
import { crc32, deflateRawSync } from "node:zlib";

/** A zip whose entries are deflated. */
export function deflated(files, damage = 0) {
  const entries = [], directory = [];
  let at = 0;
  const numbers = (format, ...values) => Buffer.concat(values.map((v, i) => {
    const bytes = Buffer.alloc(Number(format[i]));
    bytes.writeUIntLE(v, 0, bytes.length);
    return bytes;
  }));
  for (const [name, data] of Object.entries(files)) {
    const packed = deflateRawSync(data), encoded = Buffer.from(name);
    const common = numbers("222224442" + "2", 20, 0, 8, 0, 0, (crc32(data) ^ damage) >>> 0, packed.length, data.length, encoded.length, 0);
    const entry = Buffer.concat([numbers("4", 0x04034b50), common, encoded, packed]);
    directory.push(numbers("42", 0x02014b50, 20), common, numbers("22244", 0, 0, 0, 0, at), encoded);
    entries.push(entry);
    at += entry.length;
  }
  const end = Buffer.concat(directory), count = entries.length;
  return new Uint8Array(Buffer.concat([...entries, end, numbers("4222244" + "2", 0x06054b50, 0, 0, count, count, end.length, at, 0)]));
}
