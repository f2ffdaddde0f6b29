// node scripts/golden-index.mjs: writes tests/golden/index.json, the list of files that a test in a browser, which
// cannot read a folder, fetches. A native test fails when the list and the folder disagree.
import { readdirSync, writeFileSync } from "node:fs";
import { join, sep } from "node:path";
import { pathToFileURL } from "node:url";
import { main, root, say } from "./lib.mjs";

// Relative paths of all files below `folder`, in one order everywhere.
export const listing = (folder) => readdirSync(folder, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name !== "index.json")
  .map((entry) => join(entry.parentPath, entry.name).slice(join(folder, sep).length).split(sep).join("/"))
  .sort();

export function writeIndex(folder) {
  const files = listing(folder);
  writeFileSync(join(folder, "index.json"), `${JSON.stringify(files, null, 1)}\n`);
  return files;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href)
  main(async () => say(`tests/golden/index.json names ${writeIndex(join(root, "tests/golden")).length} files.`));
