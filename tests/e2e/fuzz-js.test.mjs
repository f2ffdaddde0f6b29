// What the fuzzers of JavaScript's readers kept, once more; in Node, without a page.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { TARGETS, fault } from "../../fuzz/js.mjs";
import { root } from "../../scripts/lib.mjs";

for (const target of Object.keys(TARGETS)) {
  test(`${target}: what the fuzzer kept throws nothing but LoraErrors, quickly and without holding much`, async () => {
    const folder = join(root, "fuzz/corpus", target);
    const inputs = [...(await TARGETS[target].seeds()), ...readdirSync(folder).map((name) => new Uint8Array(readFileSync(join(folder, name))))];
    for (const bytes of inputs) assert.equal(await fault(target, bytes), undefined, Buffer.from(bytes).toString("base64"));
    assert.ok(inputs.length > 5);
  });
}
