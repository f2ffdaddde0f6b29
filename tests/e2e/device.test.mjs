// Devices and buffers of the page: a library of the page's own and this package on one GPUDevice.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

// Another library, as small as one can be: y = 2·x + 1 on buffers of its own device, and its own way to read them.
function library() {
  globalThis.makeHost = async (descriptor, options) => {
    const device = await (await navigator.gpu.requestAdapter(options)).requestDevice(descriptor);
    const code = "@group(0) @binding(0) var<storage> x: array<f32>; @group(0) @binding(1) var<storage, read_write> y: array<f32>;"
      + "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) { if (id.x < arrayLength(&y)) { y[id.x] = 2 * x[id.x] + 1; } }";
    const pipeline = device.createComputePipeline({ layout: "auto", compute: { module: device.createShaderModule({ code }) } });
    const [STORAGE, COPY_SRC, COPY_DST, MAP_READ] = [GPUBufferUsage.STORAGE, GPUBufferUsage.COPY_SRC, GPUBufferUsage.COPY_DST, GPUBufferUsage.MAP_READ];
    const buffer = (size, usage = STORAGE | COPY_SRC | COPY_DST) => device.createBuffer({ size, usage });
    return {
      device, buffer,
      upload(data) {
        const made = buffer(data.byteLength);
        device.queue.writeBuffer(made, 0, data);
        return made;
      },
      run(x, y) {
        const [from, to] = [x, y].map((part) => (part instanceof GPUBuffer ? { buffer: part } : part));
        const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource: from }, { binding: 1, resource: to }] });
        const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(Math.ceil((to.size ?? to.buffer.size) / 256));
        pass.end();
        device.queue.submit([encoder.finish()]);
      },
      async read(from, offset = 0, size = from.size - offset) {
        const staging = buffer(size, MAP_READ | COPY_DST), encoder = device.createCommandEncoder();
        encoder.copyBufferToBuffer(from, offset, staging, 0, size);
        device.queue.submit([encoder.finish()]);
        await staging.mapAsync(GPUMapMode.READ);
        return Array.from(new Float32Array(staging.getMappedRange().slice()));
      },
    };
  };
}

// `work` runs in the page; what it returns goes to `check`.
const inPage = (name, work, check = () => {}) => test(name, () => onPage(browser, `${server.url}tests/e2e/bare.html`, { init: library }, async (page) => {
  await page.waitForFunction(() => globalThis.ready);
  await check(await page.evaluate(work));
}));

// Each failure must have the code and words expected of it: { name: [failure, code, words] }.
function refused(failures) {
  for (const [name, [{ code, message }, expected, words]] of Object.entries(failures)) {
    assert.equal(code, expected, `${name}: ${message}`);
    assert.match(message, new RegExp(words), name);
  }
}

inPage("the page's device and buffers: both sides see each other's writes, in the order of their submits", async () => {
  const host = await makeHost();
  const own = await Gpu.fromDevice(host.device);
  const [T, I, O, rank] = [5, 8, 4, 2];
  const raw = host.upload(numbers(T * I, 1)), x = host.buffer(4 * T * I), result = host.buffer(4 * T * O), after = host.buffer(4 * T * O);
  const target = host.buffer(256 + 4 * T * O); // its first 256 bytes are somebody else's
  const layer = new LoraLinear(own, { inFeatures: I, outFeatures: O, rank, weight: numbers(I * O, 2), bias: numbers(O, 3), seed: 1 });
  layer.b.write(numbers(O * rank, 4));
  const lent = {
    x: Tensor.fromBuffer(own, { label: "x", buffer: x, shape: [T, I] }),
    target: Tensor.fromBuffer(own, { label: "target", buffer: target, byteOffset: 256, shape: [T, O] }),
    result: Tensor.fromBuffer(own, { label: "result", buffer: result, shape: [T, O] }),
  };
  const memory = own.memory();
  host.device.queue.writeBuffer(target, 0, numbers(64, 9));
  lent.target.write(numbers(T * O, 5)); // our write, their buffer
  host.run(raw, x); // their kernel, our input
  const rec = own.record();
  const output = layer.forward(rec, lent.x);
  rec.saveActivation({ src: output, dst: lent.result });
  await rec.submit();
  host.run(result, after); // our kernel, their input
  const start = { x: await host.read(x), ours: Array.from(await output.read()), theirs: await host.read(result), after: await host.read(after), handed: await host.read(output.buffer, output.byteOffset, 4 * T * O) };
  const around = [await host.read(target, 0, 256), await host.read(target, 256)];

  const optimizer = new Optimizer(own, { layers: [layer], optimizer: adamw({ lr: 0.05 }) });
  const dOutput = new Tensor(own, { shape: [T, O] }), loss = new Tensor(own, { shape: [1] });
  const step = own.record();
  optimizer.zeroGrad(step);
  const prediction = layer.forward(step, lent.x);
  step.mse({ output: prediction, target: lent.target, dOutput, loss });
  layer.backward(step, { x: lent.x, dOutput });
  optimizer.step(step);
  const losses = [];
  for (let i = 0; i < 30; i += 1) {
    await step.submit();
    losses.push((await loss.read())[0]);
  }
  const parameter = layer.a; // in the optimiser's arena now
  const moved = [await host.read(parameter.buffer, parameter.byteOffset, 4 * parameter.length), Array.from(await parameter.read())];

  // The same by plain loops.
  const X = Array.from(numbers(T * I, 1), (value) => 2 * value + 1), W = numbers(I * O, 2), bias = numbers(O, 3), B = numbers(O * rank, 4);
  const fresh = new LoraLinear(own, { inFeatures: I, outFeatures: O, rank, weight: W, seed: 1 });
  const A = await fresh.a.read(); // the same seed
  const dot = (n, term) => Array.from({ length: n }, (_, k) => term(k)).reduce((sum, value) => sum + value, 0);
  const expected = Array.from({ length: T * O }, (_, i) => {
    const [t, o] = [Math.floor(i / O), i % O];
    return bias[o] + dot(I, (k) => X[t * I + k] * W[o * I + k]) + dot(rank, (r) => B[o * rank + r] * dot(I, (k) => X[t * I + k] * A[r * I + k]));
  });
  return { start, X, expected, around, neighbour: Array.from(numbers(64, 9)), target: Array.from(numbers(T * O, 5)), losses, moved, same: own.device === host.device, sameBuffer: lent.x.buffer === x && lent.target.byteOffset === 256, memory, counted: own.memory().buffers };
}, ({ start, X, expected, around, neighbour, target, losses, moved, same, sameBuffer, memory, counted }) => {
  assert.ok(same && sameBuffer, "what was lent is what is handed out");
  assert.deepEqual(start.x, X);
  assert.ok(expected.some((value) => Math.abs(value) > 0.1));
  start.ours.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) < 1e-5, `${value}, expected ${expected[i]}`));
  assert.deepEqual(start.theirs, start.ours, "their buffer, read by them, and ours, read by us");
  assert.deepEqual(start.handed, start.ours, "our buffer, read by them");
  assert.deepEqual(start.after, start.ours.map((value) => Math.fround(2 * value + 1)));
  assert.deepEqual(around, [neighbour, target], "a tensor begins at its offset");
  assert.ok(losses.at(-1) < losses[0] / 4, `${losses[0]} → ${losses.at(-1)}`);
  assert.deepEqual(moved[0], moved[1], "a parameter, read by them");
  assert.ok(moved[0].some((value) => value !== 0));
  assert.ok(memory.buffers < counted, "only what was made here counts");
});

inPage("integers in the page's buffer are labels", async () => {
  const host = await makeHost(), own = await Gpu.fromDevice(host.device);
  const target = Tensor.fromBuffer(own, { buffer: host.upload(Int32Array.of(2, -100, 0)), shape: [3], dtype: "int32", label: "labels" });
  const output = new Tensor(own, { shape: [3, 3], data: numbers(9, 1) }), dOutput = new Tensor(own, { shape: [3, 3] }), loss = new Tensor(own, { shape: [1] });
  const rec = own.record();
  rec.crossEntropy({ output, target, dOutput, loss });
  await rec.submit();
  const logits = numbers(9, 1), row = (i, label) => Math.log([0, 1, 2].reduce((sum, k) => sum + Math.exp(logits[3 * i + k]), 0)) - logits[3 * i + label];
  return { labels: Array.from(await target.readIntegers()), loss: (await loss.read())[0], expected: (row(0, 2) + row(2, 0)) / 2, floats: await failure(() => target.read()) };
}, ({ labels, loss, expected, floats }) => {
  assert.deepEqual(labels, [2, -100, 0]);
  assert.ok(Math.abs(loss - expected) < 1e-6, `${loss}, expected ${expected}`);
  assert.equal(floats.code, "invalid-argument");
});

inPage("dispose() leaves the page's device and buffers alone and frees everything of ours", async () => {
  const host = await makeHost();
  let lost = false;
  host.device.lost.then(() => { lost = true; });
  const data = host.upload(numbers(64, 1)), y = host.buffer(256);
  const own = await Gpu.fromDevice(host.device), beside = await Gpu.fromDevice(host.device);
  const lent = Tensor.fromBuffer(own, { buffer: data, shape: [64] });
  const ours = new Tensor(own, { shape: [64], data: numbers(64, 2) }), { buffer } = ours;
  const layer = new LoraLinear(own, { inFeatures: 64, outFeatures: 2, rank: 1, weight: numbers(128, 3) });
  const output = layer.forward(own.record(), Tensor.fromBuffer(own, { buffer: data, shape: [1, 64] })).buffer;
  const waiting = lent.read(); // ends as it would have
  const destroyed = [];
  const original = GPUBuffer.prototype.destroy;
  GPUBuffer.prototype.destroy = function () { destroyed.push(this); return original.call(this); };
  lent.dispose();
  const single = await failure(() => lent.read());
  own.dispose();
  own.dispose();
  const values = Array.from(await waiting);
  await new Promise((done) => setTimeout(done, 50));
  GPUBuffer.prototype.destroy = original;
  const after = [await failure(() => ours.read()), await failure(() => Tensor.fromBuffer(own, { buffer: data, shape: [64] }))];
  const rec = beside.record(); // another Gpu on the same device works on
  const theirs = Tensor.fromBuffer(beside, { buffer: data, shape: [64] }), sum = Tensor.fromBuffer(beside, { buffer: y, shape: [64] });
  rec.addScaled({ y: theirs, output: sum, scale: 2 });
  await rec.submit();
  const doubled = await host.read(y);
  host.run(data, y); // and so does the page
  return {
    values, single, after, lost, doubled, kept: await host.read(data), y: await host.read(y), memory: own.memory(),
    gone: [buffer, output].map((each) => destroyed.includes(each)), spared: [data, y].map((each) => destroyed.includes(each)),
    data: Array.from(numbers(64, 1)),
  };
}, ({ values, single, after, lost, doubled, kept, y, memory, gone, spared, data }) => {
  assert.deepEqual(values, data, "the call that waited");
  assert.equal(single.code, "disposed");
  for (const { code } of after) assert.equal(code, "disposed");
  assert.equal(lost, false);
  assert.deepEqual(gone, [true, true], "our buffers are destroyed");
  assert.deepEqual(spared, [false, false], "theirs are not");
  assert.deepEqual(memory, { buffers: 0, bytes: 0 });
  assert.deepEqual(kept, data);
  assert.deepEqual(doubled, data.map((value) => 2 * value));
  assert.deepEqual(y, data.map((value) => 2 * value + 1));
});

inPage("error handlers and error scopes stay the owner's, whatever goes wrong in our calls", async () => {
  const host = await makeHost(), other = await makeHost();
  const heard = [];
  const handler = ({ error }) => heard.push(error.message);
  host.device.onuncapturederror = handler;
  host.device.addEventListener("uncapturederror", (event) => event.preventDefault()); // nothing on the console
  const invalid = () => host.buffer(16, GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE);
  const keys = () => [Object.getOwnPropertyNames(navigator.gpu), Object.getOwnPropertyNames(host.device)].flat();
  host.device.pushErrorScope("validation"); // the owner's, open all the time
  const own = await Gpu.fromDevice(host.device);
  const foreign = Tensor.fromBuffer(own, { buffer: other.buffer(64), shape: [16] });
  const y = new Tensor(own, { shape: [16], data: numbers(16, 1) });
  const rec = own.record();
  rec.addScaled({ y, output: foreign, scale: 1 });
  const submitted = failure(() => rec.submit());
  host.device.pushErrorScope("validation"); // within our waiting
  invalid();
  const inner = host.device.popErrorScope();
  const code = (await submitted).code;
  const silent = [...heard];
  const outer = await host.device.popErrorScope();
  const innerMessage = (await inner)?.message;
  invalid();
  await y.read();
  let empty;
  try { await host.device.popErrorScope(); } catch (error) { empty = error.name; }
  return { code, silent, outer: outer?.message ?? null, inner: innerMessage, heard, empty, handler: host.device.onuncapturederror === handler, keys: keys(), values: Array.from(await y.read()), expected: Array.from(numbers(16, 1)) };
}, ({ code, silent, outer, inner, heard, empty, handler, keys, values, expected }) => {
  assert.equal(code, "foreign-buffer");
  assert.deepEqual(silent, []);
  assert.equal(outer, null, "the owner's scope caught nothing of ours");
  assert.match(inner, /usage/i);
  assert.equal(heard.length, 1, "the owner hears its own errors");
  assert.equal(empty, "OperationError", "no scope of ours is left on the stack");
  assert.ok(handler);
  assert.deepEqual(keys, [], "no property is left on navigator.gpu or on the device");
  assert.deepEqual(values, expected);
});

inPage("a buffer that does not fit is refused by name", async () => {
  const result = {};
  const host = await makeHost(), own = await Gpu.fromDevice(host.device), other = await makeHost();
  const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
  const buffer = host.buffer(512);
  const from = (options) => failure(() => Tensor.fromBuffer(own, { label: "mine", buffer, shape: [4], ...options }));
  result.usage = [await from({ buffer: host.buffer(512, COPY_SRC | COPY_DST) }), "invalid-argument", "mine.*STORAGE.*COPY_SRC \\| COPY_DST"];
  result.offset = [await from({ byteOffset: 128 }), "invalid-argument", "byteOffset.*256.*minStorageBufferOffsetAlignment.*128"];
  for (const byteOffset of [-256, 0.5, NaN, "256", 2 ** 60]) result[`offset ${byteOffset}`] = [await from({ byteOffset }), "invalid-argument", "byteOffset"];
  result.small = [await from({ shape: [16, 9] }), "invalid-argument", "576 bytes.*mine.*\\[16, 9\\].*512 bytes"];
  result.end = [await from({ byteOffset: 256, shape: [65] }), "invalid-argument", "260 bytes.*256.*mine.*512"];
  result.shape = [await from({ shape: [0] }), "invalid-argument", "shape.*0"];
  result.noShape = [await from({ shape: undefined }), "invalid-argument", "shape"];
  result.dtype = [await from({ dtype: "float16" }), "invalid-argument", "dtype.*float16"];
  result.unknown = [await from({ offset: 0 }), "unknown-option", "offset.*byteOffset"];
  for (const [name, value] of Object.entries({ array: new Float32Array(4), object: { size: 512, usage: 140 }, nothing: undefined, device: host.device, tensor: new Tensor(own, { shape: [4] }) })) {
    result[`buffer: ${name}`] = [await from({ buffer: value }), "invalid-argument", "buffer: expected a GPUBuffer"];
  }
  result.gpu = [await failure(() => Tensor.fromBuffer(host.device, { buffer, shape: [4] })), "invalid-argument", "gpu: expected a Gpu"];
  const mapped = host.device.createBuffer({ size: 16, usage: STORAGE, mappedAtCreation: true });
  result.mapped = [await from({ buffer: mapped }), "invalid-argument", "buffer.*mapped"];
  mapped.unmap();
  result.unmapped = [await from({ buffer: mapped }), "none", ""];
  const bare = Tensor.fromBuffer(own, { label: "bare", buffer: mapped, shape: [4] });
  result.read = [await failure(() => bare.read()), "invalid-argument", "bare.*COPY_SRC.*read"];
  result.write = [await failure(() => bare.write(numbers(4, 1))), "invalid-argument", "bare.*COPY_DST.*written"];
  result.zero = [await failure(() => own.record().zero(bare)), "invalid-argument", "bare.*COPY_DST.*zeroed"];

  const foreign = () => Tensor.fromBuffer(own, { label: "stranger", buffer: other.buffer(512), shape: [4] });
  const words = "stranger.*GPUBuffer of the device", y = new Tensor(own, { shape: [4], data: numbers(4, 1) });
  result.foreignRead = [await failure(() => foreign().read()), "foreign-buffer", words];
  const written = foreign();
  written.write(numbers(4, 1));
  result.foreignWrite = [await failure(() => written.read()), "foreign-buffer", words];
  const rec = own.record();
  rec.addScaled({ y: foreign(), output: new Tensor(own, { shape: [4] }), scale: 1 });
  result.foreignSubmit = [await failure(() => rec.submit()), "foreign-buffer", words];
  const beside = await Gpu.fromDevice(host.device);
  result.otherGpu = [await failure(() => beside.record().addScaled({ y, output: new Tensor(beside, { shape: [4] }), scale: 1 })), "foreign-tensor", "Gpu"];

  const one = Tensor.fromBuffer(own, { buffer, shape: [4] }), two = Tensor.fromBuffer(own, { buffer, byteOffset: 256, shape: [4] });
  result.aliased = [await failure(() => own.record().addScaled({ y: one, output: two, scale: 1 })), "aliased-buffer", "output"];
  const twin = Tensor.fromBuffer(own, { buffer: y.buffer, shape: [4] });
  result.aliasedOurs = [await failure(() => own.record().addScaled({ y: twin, output: y, scale: 1 })), "aliased-buffer", "output"];
  const gone = host.buffer(16), late = Tensor.fromBuffer(own, { label: "late", buffer: gone, shape: [4] });
  gone.destroy();
  result.destroyed = [await failure(() => late.read()), "validation", "late.*destroyed"];
  y.dispose();
  result.handedOut = [await failure(() => y.buffer), "disposed", "tensor"];
  const again = own.record(); // and still all works
  const sum = new Tensor(own, { shape: [4] });
  one.write(numbers(4, 2));
  again.addScaled({ y: one, output: sum, scale: 1 });
  await again.submit();
  return { result, sum: Array.from(await sum.read()), expected: Array.from(numbers(4, 2)) };
}, ({ result, sum, expected }) => {
  refused(result);
  assert.deepEqual(sum, expected);
});

inPage("a device that is lost, that is none, or that has lower limits than the kernels need is refused", async () => {
  const result = {};
  const gone = await makeHost();
  gone.device.destroy();
  result.lost = [await failure(() => Gpu.fromDevice(gone.device)), "device-lost", "destroyed"];
  result.lostAgain = [await failure(() => Gpu.fromDevice(gone.device)), "device-lost", "destroyed"];
  for (const [name, value] of Object.entries({ adapter: await navigator.gpu.requestAdapter(), object: {}, nothing: undefined, promise: makeHost(), gpu })) {
    result[name] = [await failure(() => Gpu.fromDevice(value)), "invalid-argument", "device: expected a GPUDevice"];
  }
  const low = await makeHost({}, { featureLevel: "compatibility" });
  const limit = low.device.limits.maxComputeInvocationsPerWorkgroup; // 128, where the browser has that mode
  result.low = [await failure(() => Gpu.fromDevice(low.device)), limit < 256 ? "limit" : "none", limit < 256 ? "device.*256.*128.*maxComputeInvocationsPerWorkgroup" : ""];
  const plain = await makeHost(); // the default limits, lower than the adapter's
  const own = await Gpu.fromDevice(plain.device), many = plain.device.limits.maxStorageBufferBindingSize / 4 + 1;
  result.large = [await failure(() => new Tensor(own, { label: "large", shape: [many] })), "limit", "large.*max(StorageBufferBinding|Buffer)Size"];

  const x = Tensor.fromBuffer(own, { label: "x", buffer: plain.buffer(16), shape: [4] });
  const pending = [failure(() => x.read()), failure(() => own.finished())];
  plain.device.destroy(); // by its owner, while we wait
  const { reason } = await own.lost;
  const ended = (await Promise.all(pending)).map(({ code }) => code);
  result.read = [await failure(() => x.read()), "device-lost", ""];
  result.submit = [await failure(() => own.record().submit()), "device-lost", ""];
  result.make = [await failure(() => new Tensor(own, { shape: [1] })), "device-lost", ""];
  result.fromBuffer = [await failure(() => Tensor.fromBuffer(own, { buffer: plain.buffer(16), shape: [4] })), "device-lost", ""];
  own.dispose();
  result.recovered = [await failure(async () => Gpu.fromDevice((await makeHost()).device)), "none", ""];
  return { result, reason, ended, limit };
}, ({ result, reason, ended, limit }) => {
  refused(result);
  assert.equal(reason, "destroyed");
  for (const code of ended) assert.ok(["none", "device-lost"].includes(code), code);
  console.log(`# the compatibility mode allows ${limit} invocations`);
});

inPage("Gpu.request() asks for features, and refuses what it does not know or the adapter does not have", async () => {
  const result = {};
  const has = (await navigator.gpu.requestAdapter()).features;
  const asked = {};
  for (const name of ["subgroups", "shader-f16", "timestamp-query"]) {
    if (!has.has(name)) {
      result[name] = [await failure(() => Gpu.request({ features: [name] })), "missing-feature", name];
      continue;
    }
    const made = await Gpu.request({ features: [name] });
    const byItself = name !== "timestamp-query"; // kernels are chosen by the others
    asked[name] = [made.features.has(name), made.device.features.has(name), gpu.features.has(name) !== byItself];
    const sum = new Tensor(made, { shape: [4] }), rec = made.record();
    rec.addScaled({ y: new Tensor(made, { shape: [4], data: numbers(4, 1) }), output: sum, scale: 1 });
    await rec.submit();
    asked[name].push(Array.from(await sum.read()));
    made.dispose();
  }
  for (const features of [["wings"], ["depth-clip-control"], [undefined], [3], ["subgroups", "Shader-F16"]]) {
    result[String(features)] = [await failure(() => Gpu.request({ features })), "invalid-argument", "features: expected names among shader-f16, subgroups, timestamp-query"];
  }
  for (const features of ["subgroups", {}, null]) result[`no array: ${features}`] = [await failure(() => Gpu.request({ features })), "invalid-argument", "features: expected an array"];
  return { result, asked, expected: Array.from(numbers(4, 1)) };
}, ({ result, asked, expected }) => {
  refused(result);
  assert.ok(Object.keys(asked).length, "this adapter has one of them at least");
  for (const [name, seen] of Object.entries(asked)) assert.deepEqual(seen, [true, true, false, expected], name);
});

inPage("a Gpu's own device serves another library", async () => {
  const own = await Gpu.request();
  const made = new Tensor(own, { shape: [64], data: numbers(64, 1) }), target = new Tensor(own, { shape: [64] });
  const adapter = Object.getPrototypeOf(navigator.gpu), original = adapter.requestAdapter;
  adapter.requestAdapter = async () => ({ requestDevice: async () => own.device }); // the library, on our device
  const host = await makeHost();
  adapter.requestAdapter = original;
  host.run(made.buffer, target.buffer);
  const seen = Array.from(await target.read());
  const parts = new LoraGrad(own, new LoraWeight(own, { inFeatures: 3, outFeatures: 5, rank: 2 }));
  return { seen, expected: Array.from(numbers(64, 1), (value) => 2 * value + 1), offsets: [made, target, parts.a, parts.b].map(({ byteOffset }) => byteOffset), usage: made.buffer.usage };
}, ({ seen, expected, offsets, usage }) => {
  assert.deepEqual(seen, expected);
  for (const offset of offsets) assert.equal(offset % 256, 0);
  assert.equal(usage, 0x80 | 0x4 | 0x8);
});

test("a page's device and buffers are used in place in a Web Worker, too", () => onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
  const source = `
    import { Gpu, Tensor } from "${server.url}dist/index.js";
    const device = await (await navigator.gpu.requestAdapter()).requestDevice();
    const gpu = await Gpu.fromDevice(device);
    const buffer = device.createBuffer({ size: 16, usage: 0x80 | 0x4 | 0x8 });
    device.queue.writeBuffer(buffer, 0, Float32Array.of(1, 2, 3, 4));
    const y = Tensor.fromBuffer(gpu, { buffer, shape: [4] }), output = new Tensor(gpu, { shape: [4] });
    const rec = gpu.record();
    rec.addScaled({ y, output, scale: 3 });
    await rec.submit();
    postMessage(Array.from(await output.read()));
  `;
  const values = await page.evaluate((text) => new Promise((done, failed) => {
    const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })), { type: "module" });
    worker.onmessage = ({ data }) => done(data);
    worker.onerror = ({ message }) => failed(new Error(message));
  }), source);
  assert.deepEqual(values, [3, 6, 9, 12]);
}));

inPage("a device that is not good enough is not left alive", async () => {
  const original = GPUAdapter.prototype.requestDevice;
  let device, destroyed = 0;
  GPUAdapter.prototype.requestDevice = async function (descriptor) {
    device = await original.call(this, descriptor);
    const limits = {};
    for (const name in device.limits) limits[name] = device.limits[name];
    Object.defineProperty(device, "limits", { value: { ...limits, maxStorageBuffersPerShaderStage: 4 } });
    const destroy = device.destroy.bind(device);
    device.destroy = () => (destroyed++, destroy());
    return device;
  };
  const refused = await failure(() => Gpu.request());
  GPUAdapter.prototype.requestDevice = original;
  return { code: refused.code, destroyed };
}, (result) => assert.deepEqual(result, { code: "limit", destroyed: 1 }));
