// The layer's experiment on the GPU: the hidden target, the layer that learns it, and the two recordings that run them.
import { adamw, Gpu, LoraLinear, Optimizer, savePeft, sgd, Tensor } from "lora-webgpu";
import { answer, tell } from "./answer.js";
import { distance, fillNormal, leastLoss, makeProblem, norm, random } from "./problem.js";
import { singularValues } from "./spectrum.js";

const TOKENS = 64;

class Session {
  step = 0;
  #owned = [];

  constructor(gpu, settings) {
    const { inFeatures, outFeatures, rank, alpha, seed, optimizer, lr } = settings;
    this.settings = settings;
    this.problem = makeProblem(settings);
    this.floor = leastLoss(this.problem, rank, outFeatures);
    this.#uniform = random(seed + 1);
    const own = (thing) => { this.#owned.push(thing); return thing; };
    const tensor = (label, shape, data) => own(new Tensor(gpu, { label, shape, data }));
    try {
      const { weight, delta } = this.problem;
      const sizes = { inFeatures, outFeatures };
      // The hidden answer is a frozen layer of its own, with W + ΔW* for its weight and its adapter off.
      const target = own(new LoraLinear(gpu, { ...sizes, name: "target", weight: weight.map((w, i) => w + delta[i]), rank: 1 }));
      target.enabled = false;
      const layer = this.layer = own(new LoraLinear(gpu, { ...sizes, name: "demo", weight, rank, alpha, seed }));
      const rule = optimizer === "sgd" ? sgd({ lr, momentum: 0.9 }) : adamw({ lr, weightDecay: 0 });
      this.#optimizer = own(new Optimizer(gpu, { layers: [layer], optimizer: rule }));

      this.#input = new Float32Array(TOKENS * inFeatures);
      const x = this.#x = tensor("x", [TOKENS, inFeatures]);
      const dOutput = tensor("dOutput", [TOKENS, outFeatures]);
      const loss = this.#loss = tensor("loss", [1]);

      // A training step, recorded once and submitted again and again; only `x` is uploaded in between.
      const train = this.#train = gpu.record();
      const y = target.forward(train, x);
      const output = layer.forward(train, x);
      train.mse({ output, target: y, dOutput, loss });
      this.#optimizer.zeroGrad(train);
      layer.backward(train, { x, dOutput });
      this.#optimizer.step(train);

      // The loss on inputs that are kept back, with the adapter and without.
      const heldOut = tensor("heldOut", [TOKENS, inFeatures], fillNormal(new Float32Array(TOKENS * inFeatures), this.problem.uniform));
      const ignored = tensor("ignored", [TOKENS, outFeatures]);
      this.#losses = { on: tensor("lossOn", [1]), off: tensor("lossOff", [1]) };
      const evaluate = this.#evaluate = gpu.record();
      const answer = target.forward(evaluate, heldOut);
      for (const [name, lossTensor] of Object.entries(this.#losses)) {
        layer.enabled = name === "on";
        evaluate.mse({ output: layer.forward(evaluate, heldOut), target: answer, dOutput: ignored, loss: lossTensor });
      }
      layer.enabled = true;
    } catch (error) {
      this.dispose();
      throw error;
    }
  }
  #uniform; #optimizer; #input; #x; #loss; #losses; #train; #evaluate;

  /** Trains `steps` steps, one submit each, and reads the loss of the last: that wait keeps the queue short. */
  async train(steps) {
    const pending = [];
    for (let i = 0; i < steps; i += 1) {
      this.#x.write(fillNormal(this.#input, this.#uniform));
      pending.push(this.#train.submit());
    }
    this.step += steps;
    const [[loss]] = await Promise.all([this.#loss.read(), ...pending]);
    return loss;
  }

  /** What the page shows, all of it after the same step. */
  async measure() {
    const { layer, problem, step } = this;
    const [, [lossOn], [lossOff], delta, a, b, gradA, gradB] = await Promise.all([
      this.#evaluate.submit(), this.#losses.on.read(), this.#losses.off.read(),
      layer.deltaWeight(), layer.a.read(), layer.b.read(), layer.gradA.read(), layer.gradB.read(),
    ]);
    return {
      step, lossOn, lossOff, delta, a, b, distance: distance(delta, problem.delta), normA: norm(gradA), normB: norm(gradB),
      sigma: singularValues(a, b, layer.rank, layer.scaling),
    };
  }

  setLr(lr) {
    this.#optimizer.setLr(lr);
  }

  dispose() {
    for (const thing of this.#owned.reverse()) thing.dispose();
  }
}

const sessions = []; // by number; undefined where disposed of
let gpu;

answer({
  async open() {
    gpu = await Gpu.request();
    gpu.lost.then(({ message }) => tell("lost", { message }));
    return { info: gpu.info };
  },
  async make({ settings }) {
    const session = new Session(gpu, settings), { problem: { delta, sigma }, floor, layer: { scaling } } = session;
    try {
      return { now: await session.measure(), of: sessions.push(session) - 1, delta, sigma, floor, scaling };
    } catch (error) {
      session.dispose();
      throw error;
    }
  },
  train: async ({ of, steps }) => ({ loss: await sessions[of].train(steps) }),
  measure: ({ of }) => sessions[of].measure(),
  setLr: ({ of, lr }) => sessions[of].setLr(lr),
  save: async ({ of }) => ({ zip: (await savePeft({ layers: [sessions[of].layer] })).zip() }),
  dispose({ of }) {
    sessions[of].dispose();
    sessions[of] = undefined;
  },
  destroy() { gpu.device.destroy(); },
}, { gpu: () => gpu });
