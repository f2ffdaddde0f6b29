// The page's side of session.worker.js, where the experiment runs.

export class Session {
  step = 0;
  #ask;

  /** A new experiment with these settings: `[session, what was measured]`. */
  static async make(ask, settings) {
    const { now, of, ...known } = await ask("make", { settings });
    const session = new Session();
    session.#ask = (kind, data) => ask(kind, { of, ...data });
    return [Object.assign(session, { settings, ...known }), now]; // delta, sigma, floor, scaling
  }

  /** Trains, and gives the loss of the last step. */
  async train(steps) {
    const { loss } = await this.#ask("train", { steps });
    this.step += steps;
    return loss;
  }

  /** What the page shows, all of it after the same step. */
  measure() { return this.#ask("measure"); }

  setLr(lr) { return this.#ask("setLr", { lr }); }

  /** The adapter as a zip of PEFT's two files. */
  async save() { return (await this.#ask("save")).zip; }

  dispose() { return this.#ask("dispose"); }
}
